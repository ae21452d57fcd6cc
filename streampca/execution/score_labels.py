"""Names and coordinates of samples beside their scores, as xarray reads them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from streampca.sources.zarr.metadata import quietly
from streampca.storage.directories import ARRAYS_BESIDE_SCORES
from streampca.typing import Array, Json

if TYPE_CHECKING:
    from streampca.labels import Dimension, Labels

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,80}")
_OTHERS = frozenset({"scores", "mode", "t2", "q"})
_CHUNK = 2**20
_TIMES = {"units": "microseconds since 1970-01-01", "calendar": "proleptic_gregorian"}


def sample_axis(labels: Labels | None) -> str:
    """Return the name of the axis of samples: that of their only dimension, or ``sample``."""
    if labels is None or len(labels.samples) != 1:
        return "sample"
    name = labels.samples[0].name
    return "sample" if name in _OTHERS or not name or re.fullmatch(r"dim_\d+", name) else name


def write_sample_labels(
    group: zarr.Group, labels: Labels | None, n_components: int, further: tuple[str, ...] = ()
) -> None:
    """Write the coordinates of samples, and the numbers of components from 1 on, as arrays of a new group of scores.

    `further` are names of arrays that will stand beside them.
    """
    _write(group, "mode", np.arange(1, n_components + 1), {})
    samples = () if labels is None else labels.samples
    names = write_coordinates(group, samples, [*_OTHERS, *(["sample"] if len(samples) > 1 else [])])
    document = None if labels is None else labels.to_dict()["samples"]
    group.attrs.update({ARRAYS_BESIDE_SCORES: ["mode", *names, *further], "samples": document})


def write_coordinates(group: zarr.Group, dimensions: Iterable[Dimension], taken: Collection[str]) -> list[str]:
    """Write the coordinates of dimensions that have one and a name which no array can be mistaken for, or has `taken`; return these names."""
    names: list[str] = []
    for dimension in dimensions:
        usable = _NAME.fullmatch(dimension.name) and dimension.name not in (*taken, *names)
        if dimension.coordinate is not None and usable:
            _write_coordinate(group, dimension)
            names.append(dimension.name)
    return names


def _write_coordinate(group: zarr.Group, dimension: Dimension) -> None:
    values: Array | None = dimension.coordinate
    attributes: Json = dict(dimension.attributes)
    assert values is not None  # noqa: S101 for the type checker
    if values.dtype.kind == "M":
        values, attributes = values.astype("datetime64[us]").view(np.int64), {**attributes, **_TIMES}
    elif values.dtype.kind == "m":
        values, attributes = values.astype("timedelta64[us]").view(np.int64), attributes | {"units": "microseconds"}
    elif values.dtype.kind not in "iufb":
        values = values.astype(str)
    _write(group, dimension.name, values, attributes)


def _write(group: zarr.Group, name: str, values: Array, attributes: Json) -> None:
    text = values.dtype.kind not in "iufb"
    with quietly():
        array = group.create_array(
            name,
            shape=values.shape,
            chunks=(max(1, min(_CHUNK, len(values))),),
            dtype=str if text else values.dtype,
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
            dimension_names=(name,),
            attributes=attributes,
            config={"write_empty_chunks": True},
        )
        array[:] = values.astype(object) if text else values
