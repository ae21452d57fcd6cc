"""Write a generated zarr store of any size, for examples and benchmarks: low rank plus noise.

A table (the default kind) has a known spectrum. The rows are ``x = m + sum_j sqrt(lambda_j) z_j v_j + s e``: orthonormal directions ``v_j``, standard normal ``z_j``
and ``e``, eigenvalues ``lambda_j = (j + 1) ** -spectrum`` for ``j < rank``, noise ``s``. Their covariance has the
eigenvalues ``lambda_j + s ** 2``, then ``s ** 2``. The mean of a feature is its standard deviation times
``--mean-to-sd``. Integer types take the same values scaled so that the feature that varies most has a sixteenth of the
type's range as its standard deviation, centred in the range and clipped.

Random numbers are addressed by (seed, purpose, block of rows), so any block can be made alone, and the values depend on
the seed, the number of features and the recipe, but not on chunks, codec, threads, or the number of rows.

The other kinds have named dimensions with coordinates, chunks across all of them, and known patterns (`labelled_data.py`):
``field``, monthly sea temperatures (time, lat, lon) packed as int16; ``movie`` (time, y, x); ``cube`` (y, x, wavelength).
``cells`` is an AnnData store of sparse counts (`cell_data.py`).

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
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from cell_data import SHAPE, write_cells
from labelled_data import KINDS, write_labelled
from numpy.typing import NDArray
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
    parser.add_argument("path", type=Path, help="the store to write; must not exist")
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
    if options.kind == "cells":
        shape = options.shape or SHAPE
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
    started = time.perf_counter()
    try:
        if options.kind == "shards":
            write_shards(recipe, options.path, options.rows, options.files)
        else:
            write(recipe, options.path, options.rows, options.chunks, options.codec, options.threads)
    except OSError as error:
        sys.exit(f"make_data: {error}")
    seconds = time.perf_counter() - started
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
