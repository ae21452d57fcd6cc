"""Datasets of an HDF5 file by their names, and the names of their dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from streampca.errors import DataError, NotAvailableError, OutsideStoreError
from streampca.labels import Dimension, Labels, Variable
from streampca.sources.conventions import describes_others, describing_names, packed_by
from streampca.sources.packing import unpacked
from streampca.sources.times import decoded_times
from streampca.typing import Array, JsonValue

if TYPE_CHECKING:
    import h5py

    from streampca.sources.zarr.reader import Axes

_MOST_LINKS, _MOST_LISTED, _MOST_COORDINATES = 16, 10_000, 2**27
_HOW_STORED = frozenset(
    {
        *("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned", "CLASS", "NAME"),
        *("DIMENSION_LIST", "DIMENSION_LABELS", "REFERENCE_LIST", "_Netcdf4Dimid", "_Netcdf4Coordinates"),
    }
)
_NO_COORDINATE = "This is a netCDF dimension but not a netCDF variable"


def dataset_in(file: h5py.File, name: str, label: str) -> h5py.Dataset:
    """Return the dataset `name` of an open file.

    Raises
    ------
    DataError
        If there is none; lists those there are.
    OutsideStoreError
        If it lies in another file: behind an external link, as external raw data, or as a virtual dataset.
    """
    _require_inside(file, name, label)
    try:
        node = file[name]
    except (KeyError, ValueError):
        node = None
    if node is None or not hasattr(node, "shape") or node.shape is None:
        raise DataError(f"{label} has no dataset {name[:80]!r}: expected one of: {_listing(file)}")
    if node.is_virtual or node.external:
        raise OutsideStoreError(
            f"{label}: the values of {name} lie in other files, of which a missing one would be read as a fill value: name these "
            "files, or write one dataset"
        )
    return node


def name_in(file: h5py.File, label: str) -> str:
    """Return the name of the only dataset of two or more dimensions that describes no other; `DataError` if there are more."""
    datasets = _datasets(file)
    described: set[str] = set().union(*(describing_names(plain_attributes(node)) for node in datasets.values()))
    chosen = [
        name
        for name, node in datasets.items()
        if len(node.shape or ()) >= 2
        and not node.is_scale
        and not describes_others(name)
        and name.rsplit("/", 1)[-1] not in described
    ]
    if len(chosen) != 1:
        raise DataError(f"{label}: name the dataset to read (source.array), one of: {_listing(file)}")
    return chosen[0]


def names_of(dataset: h5py.Dataset) -> tuple[str, ...]:
    """Return the names of the dimensions of a dataset: of their scales, their labels, or ``dim_0`` and so on."""
    names = []
    for axis, dimension in enumerate(dataset.dims):
        scale = dimension[0].name.rsplit("/", 1)[-1] if len(dimension) else ""
        names.append(scale or str(dimension.label) or f"dim_{axis}")
    return tuple(names) if len(set(names)) == len(names) else tuple(f"dim_{axis}" for axis in range(len(names)))


def labels_of(dataset: h5py.Dataset, names: tuple[str, ...], axes: Axes, label: str) -> Labels:
    """Return the labels of a dataset, with its dimension scales as coordinates."""
    dimensions = [_dimension(dataset, axis, name, label) for axis, name in enumerate(names)]
    rows, columns = axes
    features = tuple(dimensions[axis] for axis in columns)
    name = dataset.name.strip("/")
    variable = Variable(name, tuple(d.name for d in features), tuple(d.size for d in features), _short(dataset))
    return Labels(tuple(dimensions[axis] for axis in rows), features, (variable,))


def plain_attributes(node: h5py.Dataset | h5py.Group) -> dict[str, object]:
    """Return the attributes of a dataset as numbers, texts and lists; without those that cannot be read so."""
    plain: dict[str, object] = {}
    for name in node.attrs:
        if name in ("DIMENSION_LIST", "REFERENCE_LIST"):
            continue
        try:
            value = node.attrs[name]
        except (OSError, TypeError, ValueError):
            continue
        value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        plain[name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return plain


def scales_are_float32(dataset: h5py.Dataset) -> bool:
    """Return whether the attributes of a packed dataset that are stored, its scale and its offset, are float32."""
    names = [name for name in ("scale_factor", "add_offset") if name in dataset.attrs]
    return all(np.asarray(dataset.attrs[name]).dtype == np.float32 for name in names)


def _short(node: h5py.Dataset | h5py.Group) -> dict[str, JsonValue]:
    """Return the attributes that are numbers or short texts, without those that say how values are stored."""
    attributes: Mapping[str, object] = plain_attributes(node)
    return {
        key: value
        for key, value in attributes.items()
        if key not in _HOW_STORED and isinstance(value, bool | int | float | str) and len(str(value)) <= 200
    }


def _dimension(dataset: h5py.Dataset, axis: int, name: str, label: str) -> Dimension:
    """Return a dimension with the values of its first scale."""
    size, dimension = int(dataset.shape[axis]), dataset.dims[axis]
    if not len(dimension) or name.startswith("dim_"):
        return Dimension(name, size)
    scale = dimension[0]
    is_dummy = str(plain_attributes(scale).get("NAME", "")).startswith(_NO_COORDINATE)
    if scale.shape != (size,) or is_dummy or scale.is_virtual or scale.external:
        return Dimension(name, size)
    if size * scale.dtype.itemsize > _MOST_COORDINATES:
        raise DataError(f"{label}: the scale {name} takes more than {_MOST_COORDINATES:,} bytes")
    values: Array = np.asarray(scale[...])
    if values.dtype.kind in "SO":
        values = np.array([v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values.tolist()])
    if values.dtype.kind not in "biufU":
        return Dimension(name, size)
    attributes, what = plain_attributes(scale), f"{label}: scale {name}"
    if values.dtype.kind in "iuf" and " since " not in str(attributes.get("units")):
        values = unpacked(values, packed_by(attributes, values.dtype), what)
    return Dimension(name, size, decoded_times(values, attributes, what), _short(scale))


def _require_inside(file: h5py.File, name: str, label: str) -> None:
    """Raise `OutsideStoreError` if a path leads through an external link, followed by soft links within the file."""
    import h5py

    left, at, n_links = [part for part in name.split("/") if part], "", 0
    while left:
        at = f"{at}/{left.pop(0)}"
        try:
            link = file.get(at, getlink=True)
        except (KeyError, ValueError):
            return
        if isinstance(link, h5py.ExternalLink):
            raise OutsideStoreError(
                f"{label}: {at.strip('/')} is a link to {str(link.filename)[:80]}/{str(link.path).strip('/')[:80]}, another file: name that file"
            )
        if isinstance(link, h5py.SoftLink):
            n_links += 1
            if n_links > _MOST_LINKS:
                raise DataError(f"{label}: {name} leads through more than {_MOST_LINKS} links")
            base = "" if link.path.startswith("/") else at.rpartition("/")[0]
            left = [part for part in f"{base}/{link.path}".split("/") if part and part != "."] + left
            at = ""


def _datasets(file: h5py.File) -> dict[str, h5py.Dataset]:
    """Return the datasets in a file by their names, without those behind links."""
    datasets: dict[str, h5py.Dataset] = {}

    def add(name: str, node: h5py.Dataset | h5py.Group) -> bool | None:
        if hasattr(node, "shape"):
            datasets[name] = node
        return True if len(datasets) >= _MOST_LISTED else None

    file.visititems(add)
    if len(datasets) >= _MOST_LISTED:
        raise NotAvailableError(
            f"the file holds {_MOST_LISTED:,} datasets or more: name the one to read (source.array)"
        )
    return datasets


def _listing(file: h5py.File) -> str:
    """Return names and shapes of the datasets in a file, those of most dimensions first."""
    nodes = sorted(_datasets(file).items(), key=lambda pair: (-len(pair[1].shape or ()), pair[0]))
    shown = [
        f"{name} {node.shape} [{', '.join(names_of(node))}]" for name, node in nodes[:12] if node.shape is not None
    ]
    return ", ".join(shown) + (f" and {len(nodes) - 12} more" if len(nodes) > 12 else "") or "none"
