"""Write a generated zarr store of any size, for examples and benchmarks: low rank plus noise.

A table (the default kind) has a known spectrum. The rows are ``x = m + sum_j sqrt(lambda_j) z_j v_j + s e``: orthonormal directions ``v_j``, standard normal ``z_j``
and ``e``, eigenvalues ``lambda_j = (j + 1) ** -spectrum`` for ``j < rank``, noise ``s``. Their covariance has the
eigenvalues ``lambda_j + s ** 2``, then ``s ** 2``. The mean of a feature is its standard deviation times
``--mean-to-sd``. Integer types take the same values scaled so that the feature that varies most has a sixteenth of the
type's range as its standard deviation, centred in the range and clipped.

Random numbers are addressed by (seed, purpose, block of rows), so any block can be made alone, and the values depend on
the seed, the number of features and the recipe, but not on chunks, codec, threads, or the number of rows.

The other kinds have named dimensions with coordinates, chunks across all of them, and known patterns; each is
a sum of these and noise, made one place of its first dimension after another, so that memory does not grow with its length:
``field``, monthly sea temperatures (time, lat, lon) packed as int16; ``movie`` (time, y, x); ``cube`` (y, x, wavelength).
``cells`` is an AnnData store of sparse Poisson counts of cells that mix programs of genes, by its documented encoding (anndata is not needed).

``shards`` is a table, too, as a directory of ``--files`` Parquet files with the columns ``id`` and ``embedding`` (needs pyarrow).

    .venv/bin/python scripts/make_data.py data/big.zarr --rows 400000 --features 1024
    .venv/bin/python scripts/make_data.py data/wide.zarr --rows 2000 --features 500000 --chunks 500,10000 --codec blosc
    .venv/bin/python scripts/make_data.py data/sst.zarr --kind field --shape 480,90,180
    .venv/bin/python scripts/make_data.py data/embeddings --kind shards --rows 20000 --features 64 --files 8
    .venv/bin/python scripts/make_data.py data/cells.zarr --kind cells --shape 20000,2000
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.sparse import csr_array
from threadpoolctl import threadpool_limits
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

DTYPES = ("float16", "float32", "float64", "uint8", "int8", "uint16", "int16", "int32")
CODECS: dict[str, Any] = {
    "none": lambda: None,
    "zstd": lambda: [ZstdCodec(level=3)],
    "blosc": lambda: [BloscCodec(cname="zstd")],
    "gzip": lambda: [GzipCodec(level=5)],
    # Inside Blosc, because that is the only LZ4 that the specification of zarr v3 knows.
    "lz4": lambda: [BloscCodec(cname="lz4")],
}
_PURPOSES = {"directions": 1, "scores": 2, "noise": 3}
_BLOCK_VALUES = 2**20
_WRITE_VALUES = 2**22


@dataclass(frozen=True)
class Recipe:
    """Everything that the values of a row depend on."""

    features: int
    """Number of features."""
    dtype: str = "float32"
    """Data type of the values, one of `DTYPES`."""
    spectrum: float = 1.0
    """Exponent of the decay of the eigenvalues: ``(j + 1) ** -spectrum``."""
    rank: int = 64
    """Number of directions; where there are fewer features, their number."""
    noise: float = 0.05
    """Standard deviation of the noise in every feature; that along the first direction is 1."""
    mean_to_sd: float = 0.0
    """Mean of every feature in units of its standard deviation; 0 for integer types."""
    seed: int = 0
    """Seed of all random numbers, 0 to 2**64 - 1."""

    @property
    def block_rows(self) -> int:
        """Rows of one block, which is the unit that random numbers are addressed by."""
        return max(1, min(1024, _BLOCK_VALUES // self.features))

    @property
    def _n_directions(self) -> int:
        return min(self.rank, self.features)

    @property
    def _precision(self) -> type[np.float32] | type[np.float64]:
        return np.float64 if self.dtype in ("float64", "int32") else np.float32

    def _generator(self, purpose: str, block: int) -> np.random.Generator:
        # The stream walks through the low words of the counter; the high words are the address.
        return np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, block, _PURPOSES[purpose]]))

    @cached_property
    def directions(self) -> NDArray[np.float64]:
        """The orthonormal directions, shape ``(n_directions, features)``."""
        normal = self._generator("directions", 0).standard_normal((self.features, self._n_directions))
        return np.ascontiguousarray(np.linalg.qr(normal)[0].T)

    @cached_property
    def eigenvalues(self) -> NDArray[np.float64]:
        """Variances along the directions without the noise, shape ``(n_directions,)``."""
        return np.arange(1, self._n_directions + 1, dtype=np.float64) ** -self.spectrum

    @cached_property
    def _affine(self) -> tuple[NDArray[Any], NDArray[Any], float]:
        """What a block is made with: scaled directions ``(n_directions, features)``, mean ``(features,)``, noise."""
        scaled = np.sqrt(self.eigenvalues)[:, None] * self.directions
        deviation = np.sqrt(np.einsum("jf,jf->f", scaled, scaled) + self.noise**2)
        mean, factor = self.mean_to_sd * deviation, 1.0
        if np.dtype(self.dtype).kind in "iu":
            low, high = self._range
            mean, factor = np.full(self.features, (low + high) / 2), (high - low) / 16 / float(deviation.max())
        return (scaled * factor).astype(self._precision), mean.astype(self._precision), self.noise * factor

    @cached_property
    def _range(self) -> tuple[float, float]:
        limits = np.iinfo(self.dtype)
        return float(limits.min), float(limits.max)

    def block(self, index: int) -> NDArray[Any]:
        """Return block `index`, shape ``(block_rows, features)``, in the data type of the store."""
        scaled, mean, noise = self._affine
        shape = (self.block_rows, self.features)
        values: NDArray[Any] = self._generator("noise", index).standard_normal(shape, dtype=self._precision)
        values *= noise
        shape = (self.block_rows, len(scaled))
        values += self._generator("scores", index).standard_normal(shape, dtype=self._precision) @ scaled
        values += mean
        if np.dtype(self.dtype).kind in "iu":
            np.clip(np.rint(values, out=values), *self._range, out=values)
        return values.astype(self.dtype, copy=False)

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows `start` to `stop`, shape ``(stop - start, features)``."""
        result = np.empty((stop - start, self.features), dtype=self.dtype)
        for index in range(start // self.block_rows, -(-stop // self.block_rows)):
            first = index * self.block_rows
            low, high = max(start, first), min(stop, first + self.block_rows)
            result[low - start : high - start] = self.block(index)[low - first : high - first]
        return result


def write(
    recipe: Recipe,
    path: Path,
    n_rows: int,
    chunks: tuple[int, int],
    codec: str = "none",
    threads: int = 2,
    shards: tuple[int, int] | None = None,
) -> None:
    """Write `n_rows` rows to a new zarr v3 array; each thread holds a run of whole chunks, or shards, of about 4 million values."""
    with renamed_when_complete(path) as part:
        array = zarr.create_array(
            str(part),
            shape=(n_rows, recipe.features),
            chunks=chunks,
            shards=shards,
            dtype=recipe.dtype,
            compressors=CODECS[codec](),
            fill_value=0,
            attributes={"generated": dataclasses.asdict(recipe)},
            config={"write_empty_chunks": True},
        )
        band = (shards or chunks)[0]
        step = band * max(1, _WRITE_VALUES // (band * recipe.features))

        def write_run(start: int) -> None:
            stop = min(start + step, n_rows)
            array[start:stop] = recipe.rows(start, stop)

        with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
            recipe._affine  # noqa: B018 made once, before the threads ask for it
            for _ in pool.map(write_run, range(0, n_rows, step)):
                pass


def write_shards(recipe: Recipe, path: Path, n_rows: int, n_files: int) -> None:
    """Write rows of `recipe` to a new directory of Parquet files: `id`, text, and `embedding`, lists of one length."""
    import pyarrow as pa
    from pyarrow import parquet

    with renamed_when_complete(path) as part:
        part.mkdir(parents=True)
        for index in range(n_files):
            start, stop = (n_rows * i // n_files for i in (index, index + 1))
            lists = pa.FixedSizeListArray.from_arrays(pa.array(recipe.rows(start, stop).ravel()), recipe.features)
            ids = pa.array([f"doc-{row:07d}" for row in range(start, stop)])
            parquet.write_table(pa.table({"id": ids, "embedding": lists}), part / f"part-{index}.parquet")


FILL = -32768
"""Stored value of land in the packed field."""
CONTINENTS = (
    (48, 262, 24, 38), (-14, 300, 36, 20), (8, 20, 28, 24), (-18, 26, 20, 14), (52, 70, 24, 66), (22, 80, 18, 20),
    (-25, 134, 12, 20), (-90, 0, 18, 400), (74, 320, 11, 24),
)  # fmt: skip
"""Latitude, longitude, and half the height and width in degrees of the ellipses that are land."""


@dataclass(frozen=True)
class Labelled:
    """An array with named dimensions, and what stands beside it in its group."""

    name: str
    """Name of the array."""
    coordinates: dict[str, tuple[NDArray[Any], dict[str, Any]]]
    """Values and attributes of the coordinate of every dimension, in the order of the array's axes."""
    slices: Callable[[], Iterator[NDArray[Any]]]
    """Function that returns the values at one place of the first dimension after another, in the stored data type."""
    dtype: str
    """Data type of the stored values."""
    chunks: tuple[int, ...]
    """Shape of a chunk."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the array."""
    patterns: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """The known patterns, one in each row, in the shape of the feature dimensions."""
    beside: dict[str, tuple[tuple[str, ...], NDArray[Any]]] = field(default_factory=dict)
    """Dimensions and values of further arrays of the group."""
    fill: float = 0
    """Fill value of the array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array."""
        return tuple(len(values) for values, _ in self.coordinates.values())


def sea_temperature(shape: tuple[int, ...] = (480, 90, 180), seed: int = 0) -> Labelled:
    """Return a monthly field ``sst(time, lat, lon)``, packed as int16, with land, a seasonal cycle, four modes and red noise."""
    n_times, n_lat, n_lon = shape
    lat = -90 + (np.arange(n_lat) + 0.5) * 180 / n_lat
    lon = (np.arange(n_lon) + 0.5) * 360 / n_lon
    months = np.datetime64("1850-01") + np.arange(n_times)
    days = (months.astype("datetime64[D]") - np.datetime64("1850-01-01")).astype(np.int32)
    sea = np.ones((n_lat, n_lon), dtype=bool)
    for centre, meridian, height, width in CONTINENTS:
        sea &= ((lat - centre)[:, None] / height) ** 2 + (_around(lon, meridian) / width) ** 2 > 1
    hills = [
        _hill(lat, lon, 0, 220, 10, 45),
        _hill(lat, lon, 40, 190, 12, 30) - _hill(lat, lon, 15, 215, 10, 30),
        _hill(lat, lon, 55, 330, 12, 25) - _hill(lat, lon, 30, 310, 10, 25),
        _hill(lat, lon, -10, 55, 10, 15) - _hill(lat, lon, -10, 100, 10, 15),
    ]
    patterns = np.array([[1.6], [1.1], [0.9], [0.7]])[..., None] * np.array(hills) * sea
    series = red_noise(np.random.default_rng(seed), n_times, len(hills), memory=0.9)
    mean = 28 * np.cos(np.radians(lat))[:, None] ** 2 + np.zeros(n_lon)
    cycle = -5 * np.sin(2 * np.radians(lat))[:, None] * np.cos(2 * np.pi * np.arange(12) / 12 - 0.5)

    def slices() -> Iterator[NDArray[Any]]:
        noise = np.zeros((n_lat, n_lon))
        for time in range(n_times):
            fresh = place_generator(seed, time).standard_normal((n_lat, n_lon))
            noise = fresh if time == 0 else 0.6 * noise + 0.8 * fresh  # variance 1: 0.36 + 0.64
            values = mean + cycle[:, time % 12, None] + np.tensordot(series[time], patterns, 1) + 0.25 * noise
            yield np.where(sea, np.rint((values - 15) / 0.002), FILL).astype(np.int16)

    return Labelled(
        "sst",
        {
            "time": (days, {"units": "days since 1850-01-01", "calendar": "standard", "standard_name": "time"}),
            "lat": (lat, {"units": "degrees_north", "standard_name": "latitude"}),
            "lon": (lon, {"units": "degrees_east", "standard_name": "longitude"}),
        },
        slices,
        "int16",
        (min(48, n_times), -(-n_lat // 2), -(-n_lon // 3)),
        {"scale_factor": 0.002, "add_offset": 15.0, "_FillValue": FILL, "units": "degC"},
        patterns,
        {"sea_mask": (("lat", "lon"), sea)},
        FILL,
    )


def movie(shape: tuple[int, ...] = (2000, 128, 128), seed: int = 0) -> Labelled:
    """Return a movie ``frames(time, y, x)`` of counts: twelve spots that light up and decay, on a dim background."""
    n_times, n_y, n_x = shape
    random, places = np.random.default_rng(seed), np.arange(12)
    y, x = np.arange(n_y), np.arange(n_x)
    centres = np.stack([(places % 4 + 0.5) / 4 * n_y, (places // 4 + 0.5) / 3 * n_x])
    radius = min(n_y, n_x) / 20
    distance = (y - centres[0][:, None]) ** 2, (x - centres[1][:, None]) ** 2
    patterns = np.exp(-(distance[0][:, :, None] + distance[1][:, None, :]) / (2 * radius**2))
    flashes = (random.random((n_times, 12)) < 0.02) * np.linspace(240, 80, 12)
    light = np.zeros((n_times, 12))
    for time in range(n_times):
        light[time] = 0.9 * light[time - 1] * (time > 0) + flashes[time]
    background = 400 - 200 * ((y[:, None] / n_y - 0.5) ** 2 + (x / n_x - 0.5) ** 2)

    def slices() -> Iterator[NDArray[Any]]:
        for time in range(n_times):
            noise = 10 * place_generator(seed, time).standard_normal((n_y, n_x))
            yield np.rint(background + np.tensordot(light[time], patterns, 1) + noise).astype(np.uint16)

    return Labelled(
        "frames",
        {
            "time": (np.arange(n_times) / 30, {"units": "s"}),
            "y": (y * 1.5, {"units": "micrometer"}),
            "x": (x * 1.5, {"units": "micrometer"}),
        },
        slices,
        "uint16",
        (min(100, n_times), -(-n_y // 2), -(-n_x // 2)),
        {"units": "counts"},
        patterns,
    )


def cube(shape: tuple[int, ...] = (600, 500, 120), seed: int = 0) -> Labelled:
    """Return an image of spectra ``radiance(y, x, wavelength)``: four materials whose shares vary smoothly, plus noise."""
    n_y, n_x, n_bands = shape
    wavelength = np.linspace(400, 1000, n_bands)
    peaks = np.array([460, 580, 690, 850])[:, None]
    patterns = 0.2 + np.exp(-(((wavelength - peaks) / np.array([40, 60, 50, 90])[:, None]) ** 2))
    y, x = np.arange(n_y) / n_y, np.arange(n_x) / n_x

    def slices() -> Iterator[NDArray[Any]]:
        for place in range(n_y):
            waves = [np.cos(2 * np.pi * ((1 + m) * x + (2 - 0.5 * m) * y[place]) + m) for m in range(4)]
            shares = np.exp(2 * np.array(waves))
            noise = 0.01 * place_generator(seed, place).standard_normal((n_x, n_bands))
            yield ((shares / shares.sum(axis=0)).T @ patterns + noise).astype(np.float32)

    return Labelled(
        "radiance",
        {
            "y": (np.arange(n_y) * 2.0, {"units": "m"}),
            "x": (np.arange(n_x) * 2.0, {"units": "m"}),
            "wavelength": (wavelength, {"units": "nm"}),
        },
        slices,
        "float32",
        (min(100, n_y), -(-n_x // 3), -(-n_bands // 3)),
        {"units": "W m-2 sr-1 nm-1"},
        patterns,
    )


KINDS: dict[str, Callable[..., Labelled]] = {"field": sea_temperature, "movie": movie, "cube": cube}
"""Function that makes each kind, from a shape of three sizes and a seed."""


def write_labelled(data: Labelled, path: Path, chunks: Sequence[int] | None = None, zarr_format: int = 3) -> None:
    """Write the array, its coordinates and what stands beside it to a new group, one row of chunks at a time."""
    group = zarr.create_group(str(path), zarr_format=zarr_format)
    array = _create(
        group, data.name, tuple(data.coordinates), data.attributes,
        shape=data.shape, chunks=tuple(chunks or data.chunks), dtype=data.dtype, fill_value=data.fill,
        config={"write_empty_chunks": True},
    )  # fmt: skip
    slices = data.slices()
    for start in range(0, data.shape[0], array.chunks[0]):
        rows = list(itertools.islice(slices, array.chunks[0]))
        array[start : start + len(rows)] = np.stack(rows)
    for name, (values, attributes) in data.coordinates.items():
        _create(group, name, (name,), attributes, data=values, chunks=values.shape)
    for name, (dims, values) in data.beside.items():
        _create(group, name, dims, {}, data=values, chunks=values.shape)


def _create(
    group: zarr.Group, name: str, dims: Sequence[str], attributes: dict[str, Any], **options: Any
) -> zarr.Array[Any]:
    """Create an array whose axes are named: in the metadata of format 3, or by the attribute that xarray uses in format 2."""
    if group.metadata.zarr_format == 2:
        return group.create_array(name, attributes=attributes | {"_ARRAY_DIMENSIONS": list(dims)}, **options)
    return group.create_array(name, attributes=attributes, dimension_names=list(dims), **options)


def place_generator(seed: int, place: int) -> np.random.Generator:
    """Return the random numbers of one place of the first dimension."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, place, 4]))


def red_noise(random: np.random.Generator, n_times: int, n_series: int, memory: float) -> NDArray[np.float64]:
    """Return series ``(n_times, n_series)`` of variance 1 whose values at neighbouring times have the correlation `memory`."""
    series = random.standard_normal((n_times, n_series))
    for time in range(1, n_times):
        series[time] = memory * series[time - 1] + np.sqrt(1 - memory**2) * series[time]
    return series


def _hill(
    lat: NDArray[Any], lon: NDArray[Any], centre: float, meridian: float, height: float, width: float
) -> NDArray[Any]:
    """Return a bell of height 1 on the globe, ``(lat, lon)``."""
    distance = ((lat - centre)[:, None] / height) ** 2 + (_around(lon, meridian) / width) ** 2
    return np.exp(-distance / 2)


def _around(lon: NDArray[Any], meridian: float) -> NDArray[Any]:
    """Return the differences in longitude, -180 to 180 degrees."""
    return (lon - meridian + 180) % 360 - 180


CELLS_SHAPE = (20_000, 2_000)
"""Cells and genes."""
_PROGRAMS, _CELLS_BLOCK, _CELLS_CHUNK = 12, 2_000, 2**20


def cell_blocks(shape: tuple[int, int] = CELLS_SHAPE, seed: int = 0, depth: float = 1) -> Iterator[csr_array]:
    """Yield the counts of one block of cells after another; with `depth` 1 about 4 % of them are above zero, with 6 about 16 %."""
    n_cells, n_genes = shape
    rng = np.random.default_rng([seed, 2**32 - 1])
    base = rng.gamma(0.4, 0.08, n_genes)
    programs = np.exp(rng.normal(0, 1.2, (_PROGRAMS, n_genes)) * (rng.random((_PROGRAMS, n_genes)) < 0.15))
    for index, start in enumerate(range(0, n_cells, _CELLS_BLOCK)):
        rng = np.random.default_rng([seed, index])
        size = min(_CELLS_BLOCK, n_cells - start)
        strength = rng.dirichlet(1.5 * 0.8 ** np.arange(_PROGRAMS), size)
        counts = depth * rng.lognormal(0, 0.3, (size, 1))
        yield csr_array(rng.poisson(counts * (strength @ programs) * base).astype(np.float32))


def write_cells(
    path: Path, shape: tuple[int, int] = CELLS_SHAPE, seed: int = 0, zarr_format: int = 3, depth: float = 1
) -> None:
    """Write a new AnnData store of counts, one block of cells after another; the tenth of the genes that vary most is ``var["highly_variable"]``."""
    root = zarr.open_group(path, mode="w", zarr_format=zarr_format, attributes=_encoding("anndata", "0.1.0"))
    rows = root.create_group("X", attributes=_encoding("csr_matrix", "0.1.0") | {"shape": list(shape)})
    lengths, moments = [np.zeros(1, dtype=np.int64)], np.zeros((2, shape[1]))
    writers = _Growing(rows, "data", "float32"), _Growing(rows, "indices", "int32")
    for part in cell_blocks(shape, seed, depth):
        writers[0].add(part.data)
        writers[1].add(part.indices.astype(np.int32))
        lengths.append(np.diff(part.indptr))
        moments += [np.asarray((part**power).sum(axis=0)).ravel() / shape[0] for power in (1, 2)]
    for writer in writers:
        writer.close()
    edges = np.cumsum(np.concatenate(lengths))
    _array(rows, "indptr", edges.astype(np.int32 if edges[-1] < 2**31 else np.int64))  # scikit-learn takes one type
    for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
        root.create_group(name, attributes=_encoding("dict", "0.1.0"))
    spread = (moments[1] - moments[0] ** 2) / np.maximum(moments[0], 1e-12)
    variable = spread >= np.quantile(spread, 0.9)
    for axis, word, size in (("obs", "cell", shape[0]), ("var", "gene", shape[1])):
        columns = ["highly_variable"] if axis == "var" else []
        attributes = _encoding("dataframe", "0.2.0") | {"_index": "_index", "column-order": columns}
        frame = root.create_group(axis, attributes=attributes)
        names = frame.create_array(
            "_index", shape=(size,), chunks=(size,), dtype=str, attributes=_encoding("string-array", "0.2.0")
        )
        names[:] = np.array([f"{word}{index}" for index in range(size)], dtype=object if zarr_format == 2 else None)
        if columns:
            _array(frame, "highly_variable", variable)


class _Growing:
    """A vector of a group that is written as its values come; one that ends within the first chunk has a chunk of its own length."""

    def __init__(self, group: zarr.Group, name: str, dtype: str) -> None:
        self.group, self.name = group, name
        self.array: zarr.Array[Any] | None = None
        self.held = np.zeros(0, dtype=dtype)

    def add(self, values: NDArray[Any]) -> None:
        """Write all full chunks of what is held and of `values`, and hold the rest."""
        held = np.concatenate([self.held, values])
        full = len(held) - len(held) % _CELLS_CHUNK
        if full and self.array is None:
            self.array = _array(self.group, self.name, held[:full])
        elif full and self.array is not None:
            self.array.append(held[:full])
        self.held = held[full:]

    def close(self) -> None:
        """Write the rest."""
        if self.array is None:
            _array(self.group, self.name, self.held)
        elif len(self.held):
            self.array.append(self.held)


def _encoding(kind: str, version: str) -> dict[str, Any]:
    return {"encoding-type": kind, "encoding-version": version}


def _array(group: zarr.Group, name: str, values: NDArray[Any]) -> zarr.Array[Any]:
    """Add a vector to a group, every chunk of it, and return it."""
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=values.dtype,
        chunks=(max(1, min(len(values), _CELLS_CHUNK)),),
        attributes=_encoding("array", "0.2.0"),
        config={"write_empty_chunks": True},
    )
    array[:] = values
    return array


@contextmanager
def renamed_when_complete(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which becomes `path` at the end and is removed after an error."""
    if os.path.lexists(path):
        raise FileExistsError(f"{path} exists already")
    part = path.with_name(f"{path.name}.part-{os.getpid()}-{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield part
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the store to write; must not exist without --overwrite")
    parser.add_argument("--overwrite", action="store_true", help="replace a zarr store that is at the path")
    kinds = ("table", "shards", "cells", *KINDS)
    parser.add_argument("--kind", choices=kinds, default="table", help="(default: %(default)s)")
    parser.add_argument(
        "--shape", help="sizes of the three dimensions (cells: two) of the other kinds; with --chunks, --format, --seed"
    )
    parser.add_argument(
        "--format", type=int, choices=(2, 3), default=3, help="zarr format of the other kinds (default: 3)"
    )
    parser.add_argument("--rows", type=int, help="number of rows of a table")
    parser.add_argument("--features", type=int, help="number of features of a table")
    parser.add_argument("--files", type=int, default=8, help="number of files of shards (default: %(default)s)")
    parser.add_argument("--chunks", help="ROWS or ROWS,FEATURES of a chunk (default: whole rows, about 8 MiB)")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="data type (default: %(default)s)")
    parser.add_argument("--spectrum", type=float, default=1.0, help="decay of the eigenvalues (default: %(default)s)")
    parser.add_argument("--rank", type=int, default=64, help="number of directions (default: %(default)s)")
    parser.add_argument("--noise", type=float, default=0.05, help="sd of the noise per feature (default: %(default)s)")
    parser.add_argument("--mean-to-sd", type=float, default=0.0, help="mean over sd of each feature; floats only")
    parser.add_argument("--depth", type=float, default=1.0, help="cells: how many counts; 6 gives 16 %% above zero")
    parser.add_argument("--codec", choices=CODECS, default="none", help="compression (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random numbers (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    if not 0 <= options.seed < 2**64:
        parser.error("--seed must be between 0 and 2**64 - 1")
    if options.kind in (*KINDS, "cells"):
        if options.kind == "cells" and options.chunks is not None:
            parser.error("--chunks is not for cells")
        if not (np.isfinite(options.depth) and options.depth > 0):
            parser.error("--depth must be a finite number above 0")
        for name in ("shape", "chunks"):
            count = 2 if options.kind == "cells" else 3
            setattr(options, name, _sizes(getattr(options, name), count, f"--{name}", parser))
        return options
    if options.rows is None or options.features is None:
        parser.error("a table needs --rows and --features")
    if min(options.rows, options.features, options.rank, options.threads, options.files) < 1:
        parser.error("--rows, --features, --rank, --threads and --files must be at least 1")
    if not np.isfinite([options.spectrum, options.noise, options.mean_to_sd]).all() or options.noise < 0:
        parser.error("--spectrum, --noise and --mean-to-sd must be finite, and --noise not negative")
    if options.mean_to_sd and np.dtype(options.dtype).kind in "iu":
        parser.error("--mean-to-sd is for floating-point types: integers are centred in their range")
    default_rows = max(1, 2**23 // (options.features * np.dtype(options.dtype).itemsize))
    try:
        sides = [int(side) for side in options.chunks.split(",")] if options.chunks else [default_rows]
    except ValueError:
        sides = []
    if len(sides) not in (1, 2) or min(sides) < 1:
        parser.error("--chunks must be ROWS or ROWS,FEATURES, both at least 1")
    options.chunks = (min(sides[0], options.rows), min(sides[-1] if len(sides) == 2 else sys.maxsize, options.features))
    return options


def _sizes(text: str | None, count: int, option: str, parser: argparse.ArgumentParser) -> tuple[int, ...] | None:
    """Return the sizes that an option gives, None if it was not given; ends the program unless there are `count`."""
    if text is None:
        return None
    sizes = tuple(int(size) if size.isdecimal() else 0 for size in text.split(","))
    if len(sizes) != count or min(sizes) < 1:
        parser.error(f"{option} must be {count} numbers of at least 1 with commas between them")
    return sizes


def main() -> None:
    """Write the store and say how long it took."""
    options = parse_arguments()
    if options.overwrite and any((options.path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup")):
        shutil.rmtree(options.path)
    if options.kind == "cells":
        shape = options.shape or CELLS_SHAPE
        try:
            with renamed_when_complete(options.path) as part:
                write_cells(part, shape, options.seed, options.format, options.depth)
        except OSError as error:
            sys.exit(f"make_data: {error}")
        print(f"{options.path}: AnnData of {shape[0]:,} cells x {shape[1]:,} genes, float32 counts by rows")
        return
    if options.kind in KINDS:
        shape = {} if options.shape is None else {"shape": options.shape}
        data = KINDS[options.kind](**shape, seed=options.seed)
        try:
            with renamed_when_complete(options.path) as part:
                write_labelled(data, part, options.chunks, options.format)
        except OSError as error:
            sys.exit(f"make_data: {error}")
        sizes = ", ".join(f"{name}: {size}" for name, size in zip(data.coordinates, data.shape, strict=True))
        print(f"{options.path}: {data.name} ({sizes}), {data.dtype}")
        return
    recipe = Recipe(
        features=options.features,
        dtype=options.dtype,
        spectrum=options.spectrum,
        rank=options.rank,
        noise=options.noise,
        mean_to_sd=options.mean_to_sd,
        seed=options.seed,
    )
    started = perf_counter()
    try:
        if options.kind == "shards":
            write_shards(recipe, options.path, options.rows, options.files)
        else:
            write(recipe, options.path, options.rows, options.chunks, options.codec, options.threads)
    except OSError as error:
        sys.exit(f"make_data: {error}")
    seconds = perf_counter() - started
    n_bytes = options.rows * options.features * np.dtype(options.dtype).itemsize
    print(
        f"{options.path}: {options.rows:,} x {options.features:,} {options.dtype}, "
        + (
            f"{options.files} Parquet files"
            if options.kind == "shards"
            else f"chunks {options.chunks}, codec {options.codec}"
        )
        + f", {n_bytes / 1e6:,.0f} MB in {seconds:.1f} s"
    )


if __name__ == "__main__":
    main()
