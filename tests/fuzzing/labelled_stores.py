"""Random arrays with named dimensions, written by other libraries in many forms and compared with plain numpy."""

from __future__ import annotations

import itertools
import shutil
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr
import zarr
from judging import Verdict, Wrong, last_line
from numpy.typing import NDArray
from scipy.io import netcdf_file

import streampca as sp

FORMS = ("zarr2", "zarr3", "hdf5", "hdf5", "netcdf3", "netcdf3", "dataset", "lazy", "xarray_zarr")
NAMES = ("time", "lat", "lon", "level")
CALENDARS = ("standard", "proleptic_gregorian", "noleap", "all_leap", "360_day", "julian")
DTYPES = ("<f8", "<f4", "<i2", "<u1", "<i4", "|i1")


@dataclass
class Stored:
    """One variable."""

    name: str
    """Name."""
    dims: tuple[str, ...]
    """Names of its dimensions."""
    values: NDArray[Any]
    """Stored values."""
    attributes: dict[str, Any]
    """Attributes that declare them as packed."""

    def meant(self) -> NDArray[Any]:
        """Return the values that are meant, in float64 or in the data type of values that are not packed."""
        if not self.attributes:
            return self.values
        values = self.values.astype("f8") * self.attributes.get("scale_factor", 1.0) + self.attributes.get(
            "add_offset", 0.0
        )
        fill = self.attributes.get("_FillValue")
        return values if fill is None else np.where(self.values == fill, np.nan, values)


@dataclass
class Case:
    """One store."""

    seed: int
    """What decides everything else."""
    form: str
    """How it is stored."""
    variables: list[Stored]
    """Variables on the same samples."""
    sizes: dict[str, int]
    """Sizes of the dimensions."""
    samples: tuple[str, ...]
    """Dimensions of the samples."""
    calendar: str
    """Calendar of the times, in days since 1 January 1999."""
    coordinate: NDArray[Any]
    """Latitudes."""
    mask: NDArray[Any] | None
    """Mask along the latitudes and longitudes, or None."""
    mask_by_name: bool
    """Whether the mask is an array in the store."""
    chunked: bool
    """Whether arrays are stored in chunks."""
    cuts: list[int] = field(default_factory=list)
    """Where the first dimension of the samples is cut into files."""

    def line(self) -> str:
        """Return the case in words."""
        parts = [f"{v.name}{v.dims}{v.values.shape} {v.values.dtype} {v.attributes}" for v in self.variables]
        return f"{self.form} samples={self.samples} calendar={self.calendar} cuts={self.cuts} mask={self.mask_by_name} {parts}"


def draw(seed: int) -> Case:
    """Return the case that `seed` stands for."""
    rng = np.random.default_rng([seed, 20261125])
    form = str(rng.choice(FORMS))
    dims = [str(name) for name in rng.permutation(NAMES)[: int(rng.integers(2, 5))]]
    sizes = {name: int(rng.integers(2, 8)) for name in NAMES}
    samples = tuple(str(name) for name in rng.permutation(dims)[: int(rng.integers(1, len(dims)))])
    variables = []
    for index in range(int(rng.choice([1, 1, 2]))):
        own = [name for name in dims if name in samples or index == 0 or rng.random() < 0.7]
        own = own if len(own) > len(samples) else dims
        variables.append(_variable(rng, f"v{index}", tuple(own), sizes, form))
    coordinate = np.sort(rng.normal(scale=30, size=sizes["lat"]))
    masked = [name for name in ("lat", "lon") if name in dims and name not in samples]
    mask = None
    if len(masked) == 2 and rng.random() < 0.6:
        mask = rng.random((sizes["lat"], sizes["lon"])) < 0.7
        mask[0, 0] = True
    n = sizes[samples[0]]
    cuts = [0, n]
    if form in ("hdf5", "netcdf3") and rng.random() < 0.4:
        cuts = [0, int(rng.integers(1, n)), n]
    by_name, chunked = bool(rng.random() < 0.5), bool(rng.random() < 0.7)
    return Case(
        seed, form, variables, sizes, samples, str(rng.choice(CALENDARS)), coordinate, mask, by_name, chunked, cuts
    )


def _variable(rng: np.random.Generator, name: str, dims: tuple[str, ...], sizes: dict[str, int], form: str) -> Stored:
    dtype = np.dtype(str(rng.choice(DTYPES)))
    if form == "netcdf3" and dtype == np.uint8:
        dtype = np.dtype("i1")
    shape = tuple(sizes[name] for name in dims)
    if dtype.kind == "f":
        return Stored(name, dims, rng.normal(size=shape).astype(dtype), {})
    values = rng.integers(1, 120, shape).astype(dtype)
    attributes: dict[str, Any] = {}
    if rng.random() < 0.6:
        attributes["scale_factor"] = float(rng.choice([0.5, 0.01, 3.0]))
    if rng.random() < 0.4:
        attributes["add_offset"] = float(rng.choice([-7.0, 290.1]))
    if rng.random() < 0.5:
        attributes["_FillValue"] = 121
        values[rng.random(shape) < 0.1] = 121
    return Stored(name, dims, values, attributes)


def times(case: Case) -> dict[str, Any]:
    """Return the attributes of the times."""
    return {"units": "days since 1999-01-01", "calendar": case.calendar}


def days(case: Case) -> NDArray[Any]:
    """Return the times: every 45 days."""
    return 45 * np.arange(case.sizes["time"])


def judge(case: Case) -> Verdict:
    """Write `case`, open it, and say what became of it."""
    place = Path(tempfile.mkdtemp(prefix="labelled-"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings(
                "ignore", "Consolidated metadata|Unable to decode|variable.*has.*_FillValue|The codec|calendar"
            )
            _check(case, place)
    except Wrong as wrong:
        return Verdict("wrong", str(wrong), ())
    except Exception as error:  # noqa: BLE001 whatever was raised is what was looked for
        return Verdict("bare", last_line(error), ())
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return Verdict("right", "", (), False)


def _check(case: Case, place: Path) -> None:
    data = WRITERS[case.form](case, place)
    names = [variable.name for variable in case.variables]
    keywords: dict[str, Any] = {"samples": list(case.samples), "variables": names}
    expected, columns = rows_of(case), None
    if case.mask is not None:
        by_name = case.mask_by_name and case.form not in ("dataset", "lazy", "xarray_zarr")
        keywords["mask"] = "mask" if by_name else _whole_mask(case)
        columns = _whole_mask(case)
        expected = expected[:, columns]
    table = sp.open(data, **keywords)
    if table.shape != expected.shape:
        raise Wrong(f"shape {table.shape}, expected {expected.shape}")
    for what, found in (("rows", table.to_dask(3).compute()), ("features", table.by_features().to_dask(2).compute().T)):
        _require_close(case, what, np.asarray(found), expected)
    _check_labels(case, table, columns)
    if np.isfinite(expected).all() and min(expected.shape) > 1 and (expected.std(axis=0) > 0).any():
        _check_fit(table, expected)


def _check_fit(table: Any, expected: NDArray[Any]) -> None:
    rows = expected.astype("f8")
    values = np.linalg.eigvalsh(np.cov(rows.T).reshape(rows.shape[1], -1))[::-1]
    found = sp.PCA(1).fit(table).explained_variance_[0]
    if not np.isclose(found, values[0], rtol=1e-5, atol=1e-9 * float(np.abs(rows).max()) ** 2):
        raise Wrong(f"first eigenvalue {found}, expected {values[0]}")


def _require_close(case: Case, what: str, found: NDArray[Any], expected: NDArray[Any]) -> None:
    packed = any(variable.attributes for variable in case.variables)
    single = found.dtype == np.float32
    rtol = 4e-7 if single else 1e-15 if packed else 0.0
    if not np.allclose(found.astype("f8"), expected.astype("f8"), rtol=rtol, atol=rtol * 300, equal_nan=True):
        raise Wrong(f"{what} differ by {np.nanmax(np.abs(found.astype('f8') - expected)):.1e}")


def rows_of(case: Case) -> NDArray[Any]:
    """Return the table: variables side by side."""
    parts = []
    for variable in case.variables:
        rest = [name for name in variable.dims if name not in case.samples]
        order = [variable.dims.index(name) for name in (*case.samples, *rest)]
        n = int(np.prod([case.sizes[name] for name in case.samples]))
        parts.append(variable.meant().transpose(order).reshape(n, -1))
    return np.hstack(parts)


def _whole_mask(case: Case) -> NDArray[Any]:
    """Return the mask of all features, True for variables that have not both dimensions of the mask."""
    parts = []
    for variable in case.variables:
        rest = [name for name in variable.dims if name not in case.samples]
        shape = [case.sizes[name] for name in rest]
        if not {"lat", "lon"} <= set(rest):
            parts.append(np.ones(int(np.prod(shape)), dtype=bool))
            continue
        inner = case.mask if rest.index("lat") < rest.index("lon") else np.asarray(case.mask).T
        sizes = [n if name in ("lat", "lon") else 1 for name, n in zip(rest, shape, strict=True)]
        parts.append(np.broadcast_to(np.asarray(inner).reshape(sizes), shape).ravel())
    return np.concatenate(parts)


def _check_labels(case: Case, table: Any, columns: NDArray[Any] | None) -> None:
    labels = table.labels
    if tuple(d.name for d in labels.samples) != case.samples:
        raise Wrong(f"samples {[d.name for d in labels.samples]}")
    known = {d.name for d in (*labels.samples, *labels.features)}
    if "lat" in known and not np.allclose(labels.dimension("lat").coordinate, case.coordinate, rtol=1e-6):
        raise Wrong(f"latitudes {labels.dimension('lat').coordinate}")
    if "time" in case.samples:
        _check_months(case, table)


def _check_months(case: Case, table: Any) -> None:
    import cftime

    dates = cftime.num2date(days(case), "days since 1999-01-01", case.calendar)
    months = np.array([date.month for date in dates])
    sizes = [case.sizes[name] for name in case.samples]
    axis = case.samples.index("time")
    each = np.broadcast_to(months.reshape([-1 if i == axis else 1 for i in range(len(sizes))]), sizes).ravel()
    rows = rows_of(case)
    if not np.isfinite(rows).all() or case.mask is not None or len(rows) < 3:
        return
    residuals = rows.astype("f8")
    for month in np.unique(months):
        residuals[each == month] -= residuals[each == month].mean(axis=0)
    size = float(np.abs(rows).max()) ** 2
    if residuals.var() < 1e-6 * size:
        return
    expected = np.linalg.svd(residuals, compute_uv=False)[0] ** 2 / (len(rows) - 1)
    found = sp.PCA(1, remove={"groups": "time.month"}).fit(table).explained_variance_[0]
    if not np.isclose(found, expected, rtol=1e-4, atol=1e-7 * size):
        raise Wrong(f"without months {found}, expected {expected}")


def _coordinates(case: Case) -> dict[str, tuple[NDArray[Any], dict[str, Any]]]:
    return {"time": (days(case), times(case)), "lat": (case.coordinate, {"units": "degrees_north"})}


def _chunks(case: Case, shape: tuple[int, ...]) -> tuple[int, ...]:
    rng = np.random.default_rng([case.seed, 1])
    return tuple(int(rng.integers(1, n + 1)) for n in shape) if case.chunked else shape


def _write_zarr(case: Case, place: Path, version: int) -> Path:
    group = zarr.open_group(place / "x.zarr", mode="w", zarr_format=version)  # type: ignore[arg-type]
    arrays = [(v.name, v.values, v.dims, v.attributes) for v in case.variables]
    arrays += [(name, values, (name,), attributes) for name, (values, attributes) in _coordinates(case).items()]
    if case.mask is not None:
        arrays.append(("mask", case.mask, ("lat", "lon"), {}))
    for name, values, dims, attributes in arrays:
        named: Any = {"dimension_names": dims} if version == 3 else {}
        config: Any = {"write_empty_chunks": True}
        array = group.create_array(
            name, shape=values.shape, dtype=values.dtype, chunks=_chunks(case, values.shape), config=config, **named
        )
        array[...] = values
        array.attrs.update(attributes | ({"_ARRAY_DIMENSIONS": list(dims)} if version == 2 else {}))
    return place / "x.zarr"


def _pieces(case: Case) -> list[tuple[slice, int]]:
    return [(slice(a, b), index) for index, (a, b) in enumerate(itertools.pairwise(case.cuts))]


def _cut(case: Case, values: NDArray[Any], dims: tuple[str, ...], piece: slice) -> NDArray[Any]:
    return values[tuple(piece if name == case.samples[0] else slice(None) for name in dims)]


def _write_hdf5(case: Case, place: Path) -> Any:
    for piece, index in _pieces(case):
        with h5py.File(place / f"{index}.h5", "w") as file:
            for name, (values, attributes) in _coordinates(case).items():
                file[name] = _cut(case, values, (name,), piece)
                file[name].make_scale(name)
                file[name].attrs.update(attributes)
            if case.mask is not None:
                file["mask"] = case.mask
                file["mask"].dims[0].label, file["mask"].dims[1].label = "lat", "lon"
            for v in case.variables:
                part = _cut(case, v.values, v.dims, piece)
                data = file.create_dataset(
                    v.name, data=part, chunks=_chunks(case, part.shape) if case.chunked else None
                )
                data.attrs.update(v.attributes)
                for axis, name in enumerate(v.dims):
                    if name in file and file[name].is_scale:
                        data.dims[axis].attach_scale(file[name])
                    else:
                        data.dims[axis].label = name
    return _paths(case, place, "h5")


def _paths(case: Case, place: Path, end: str) -> Any:
    paths = [place / f"{index}.{end}" for _, index in _pieces(case)]
    return paths if len(paths) > 1 else paths[0]


def _write_netcdf3(case: Case, place: Path) -> Any:
    for piece, index in _pieces(case):
        first = case.variables[0].dims[0]
        with netcdf_file(place / f"{index}.nc", "w", version=2) as file:
            inner = {name for v in case.variables for name in v.dims[1:]} | {"lat", "lon"}
            unlimited = case.chunked and first not in inner  # a dimension without a limit is the first of all
            for name in sorted(case.sizes, key=lambda name: name != first):
                n = len(range(*piece.indices(case.sizes[name]))) if name == case.samples[0] else case.sizes[name]
                file.createDimension(name, None if unlimited and name == first else n)
            for name, (values, attributes) in _coordinates(case).items():
                _add(file, name, _cut(case, values, (name,), piece), (name,), attributes)
            if case.mask is not None:
                _add(file, "mask", case.mask.astype("i1"), ("lat", "lon"), {})
            for v in case.variables:
                _add(file, v.name, _cut(case, v.values, v.dims, piece), v.dims, v.attributes)
    return _paths(case, place, "nc")


def _add(file: Any, name: str, values: NDArray[Any], dims: tuple[str, ...], attributes: dict[str, Any]) -> None:
    dtype = np.dtype("i4") if values.dtype == np.int64 else values.dtype
    variable = file.createVariable(name, dtype, dims)
    variable[:] = values
    for key, value in attributes.items():
        value = np.float64(value) if isinstance(value, float) else value  # scipy writes others as float32
        setattr(variable, key, dtype.type(value) if key == "_FillValue" else value)


def _dataset(case: Case) -> xr.Dataset:
    variables: dict[str, Any] = {v.name: (v.dims, v.values, v.attributes) for v in case.variables}
    for name, (values, attributes) in _coordinates(case).items():
        variables[name] = ((name,), values, attributes)
    return xr.Dataset(variables)


def _decoded(case: Case, place: Path) -> xr.Dataset:
    return xr.decode_cf(_dataset(case))


def _lazy(case: Case, place: Path) -> xr.Dataset:
    return _decoded(case, place).chunk({case.samples[0]: 2})


def _through_zarr(case: Case, place: Path) -> xr.Dataset:
    _dataset(case).to_zarr(
        place / "x.zarr", zarr_format=2, encoding={v.name: {"write_empty_chunks": True} for v in case.variables}
    )
    return xr.open_zarr(place / "x.zarr", chunks=None if case.chunked else {})


WRITERS: dict[str, Any] = {
    "zarr2": lambda case, place: _write_zarr(case, place, 2),
    "zarr3": lambda case, place: _write_zarr(case, place, 3),
    "hdf5": _write_hdf5,
    "netcdf3": _write_netcdf3,
    "dataset": _decoded,
    "lazy": _lazy,
    "xarray_zarr": _through_zarr,
}
