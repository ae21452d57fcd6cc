"""Random labelled stores, and the tables that numpy makes of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from hypothesis import strategies as st
from numpy.typing import NDArray
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

NAMES = ("time", "lat", "lon", "level", "band")
PLAIN = ("float64", "float32", "float16", "uint8", "int16", "int64", "bool", ">f8", ">f4", ">i2")
PACKED = ("int16", "uint8", "int8", "int32", ">i2")
CODECS: dict[int, dict[str, Any]] = {
    2: {
        "none": None,
        "zstd": numcodecs.Zstd(1),
        "blosc": numcodecs.Blosc(cname="lz4"),
        "gzip": numcodecs.GZip(1),
        "lz4": numcodecs.LZ4(),
    },
    3: {
        "none": None,
        "zstd": [ZstdCodec(level=1)],
        "blosc": [BloscCodec(cname="zstd")],
        "gzip": [GzipCodec(level=1)],
        "crc32c": [Crc32cCodec()],
        "zstd+crc32c": [ZstdCodec(level=1), Crc32cCodec()],
    },
}
_MOST_CHUNKS = 24


@dataclass
class Stored:
    """One array as it will be written."""

    name: str
    dims: tuple[str, ...]
    values: NDArray[Any]
    chunks: tuple[int, ...]
    shards: tuple[int, ...] | None
    version: int
    codec: str
    attributes: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return (
            f"Stored({self.name} {self.values.dtype} {dict(zip(self.dims, self.values.shape, strict=True))} chunks={self.chunks} "
            f"shards={self.shards} format {self.version} {self.codec} {self.attributes})"
        )

    def write(self, group: zarr.Group) -> zarr.Array[Any]:
        """Write it to `group`."""
        attributes = dict(self.attributes)
        if self.version == 2:
            attributes["_ARRAY_DIMENSIONS"] = list(self.dims)
        array = group.create_array(
            self.name,
            shape=self.values.shape,
            dtype=self.values.dtype,
            chunks=self.chunks,
            shards=self.shards,
            compressors=CODECS[self.version][self.codec],
            dimension_names=self.dims if self.version == 3 else None,
            config={"write_empty_chunks": True},
            attributes=attributes,
        )
        array[...] = self.values
        return array

    def decoded(self, *, raw: bool = False) -> NDArray[Any]:
        """Return what its values mean, in float64 where they are packed."""
        if raw or not self.attributes:
            return self.values
        fill = self.attributes.get("_FillValue")
        values = self.values.astype(np.float64)
        values = values * self.attributes.get("scale_factor", 1.0) + self.attributes.get("add_offset", 0.0)
        values[self.values == fill if fill is not None else np.zeros(values.shape, bool)] = np.nan
        return values

    def rows(self, samples: tuple[str, ...], features: tuple[str, ...], *, raw: bool = False) -> NDArray[Any]:
        """Return the samples as rows, ``(n_samples, n_features)``."""
        sizes = dict(zip(self.dims, self.values.shape, strict=True))
        ordered = self.decoded(raw=raw).transpose([self.dims.index(name) for name in (*samples, *features)])
        return ordered.reshape(math.prod(sizes[name] for name in samples), -1)


@dataclass
class Case:
    """Arrays of one store, and how they are opened."""

    arrays: list[Stored]
    samples: tuple[str, ...]
    features: tuple[str, ...] | None
    decode: str
    mask: Any
    kept: list[NDArray[np.bool_]] | None
    mask_array: Stored | None

    def __repr__(self) -> str:
        mask = self.mask if self.mask is None or isinstance(self.mask, str) else f"{self.mask.dtype} {self.mask.shape}"
        return (
            f"Case({self.arrays}, samples={self.samples}, features={self.features}, decode={self.decode}, mask={mask})"
        )

    def write(self, path: Path) -> zarr.Group:
        """Write the store."""
        group = zarr.create_group(str(path), zarr_format=self.arrays[0].version)
        for stored in [*self.arrays, *([] if self.mask_array is None else [self.mask_array])]:
            stored.write(group)
        return group

    def feature_dims(self, stored: Stored) -> tuple[str, ...]:
        """Return the dimensions of an array that make columns."""
        return self.features or tuple(name for name in stored.dims if name not in self.samples)

    def table(self) -> NDArray[Any]:
        """Return all rows, as numpy makes them of the values that were written."""
        raw = self.decode == "raw"
        parts = [stored.rows(self.samples, self.feature_dims(stored), raw=raw) for stored in self.arrays]
        if self.kept is not None:
            parts = [np.take(part, np.flatnonzero(kept), axis=1) for part, kept in zip(parts, self.kept, strict=True)]
        return np.concatenate(parts, axis=1)

    def options(self) -> dict[str, Any]:
        """Return the keywords that open the table."""
        return {
            "variables": [stored.name for stored in self.arrays],
            "samples": list(self.samples),
            "features": None if self.features is None else list(self.features),
            "decode": self.decode,
            "mask": self.mask,
        }


def _values(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> NDArray[Any]:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(
            limits.min, limits.max, shape, dtype=np.dtype(dtype).newbyteorder("="), endpoint=True
        ).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _attributes(draw: st.DrawFn, dtype: str, values: NDArray[Any]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    if draw(st.booleans()):
        attributes["scale_factor"] = draw(st.sampled_from([0.01, -2.0, 3e-5]))
    if draw(st.booleans()):
        attributes["add_offset"] = draw(st.sampled_from([273.15, -5.0]))
    if draw(st.booleans()) or not attributes:
        limits = np.iinfo(dtype)
        fill = attributes["_FillValue"] = int(draw(st.sampled_from([limits.min, limits.max, int(values.flat[0])])))
        if not attributes:
            attributes["_FillValue"] = fill
    return attributes


def _grid(draw: st.DrawFn, shape: tuple[int, ...], version: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    chunks = tuple(draw(st.integers(1, n + 1)) for n in shape)
    while math.prod(-(-n // size) for n, size in zip(shape, chunks, strict=True)) > _MOST_CHUNKS:
        chunks = tuple(min(2 * size, n) for n, size in zip(shape, chunks, strict=True))
    sharded = version == 3 and draw(st.integers(0, 3)) == 0
    return chunks, tuple(size * draw(st.integers(1, 3)) for size in chunks) if sharded else None


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw arrays of one to five dimensions in any order, with any chunks, types, codecs, packing and masks."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = draw(st.permutations(NAMES))
    sizes = dict(zip(names, draw(st.lists(st.integers(1, 6), min_size=5, max_size=5)), strict=True))
    samples = tuple(names[: draw(st.integers(1, 3))])
    others = names[len(samples) :]
    version, n_arrays = draw(st.sampled_from([2, 3])), draw(st.sampled_from([1, 1, 2, 3]))
    arrays: list[Stored] = []
    for index in range(n_arrays):
        features = tuple(draw(st.permutations(others)))[: draw(st.integers(0, len(others)))]
        dims = tuple(draw(st.permutations([*samples, *features])))
        shape = tuple(sizes[name] for name in dims)
        packed = draw(st.integers(0, 2)) == 0
        dtype = draw(st.sampled_from(PACKED if packed else PLAIN))
        values = _values(shape, dtype, rng)
        attributes = _attributes(draw, dtype, values) if packed else {}
        if np.dtype(dtype).kind == "f" and draw(st.booleans()):
            values[rng.random(shape) < 0.2] = np.nan
        codec = draw(st.sampled_from(sorted(CODECS[version])))
        arrays.append(Stored(f"v{index}", dims, values, *_grid(draw, shape, version), version, codec, attributes))
    features_named = None
    if n_arrays == 1 and draw(st.booleans()):
        rest = [name for name in arrays[0].dims if name not in samples]
        features_named = tuple(draw(st.permutations(rest))) or None
    case = Case(arrays, samples, features_named, draw(st.sampled_from(["auto", "auto", "raw"])), None, None, None)
    _draw_mask(draw, case, sizes, rng)
    return case


def _draw_mask(draw: st.DrawFn, case: Case, sizes: dict[str, int], rng: np.random.Generator) -> None:
    """Give a case a mask: an array, one by name in another order of dimensions, one value for each feature, or none."""
    kind = draw(st.sampled_from(["none", "none", "flat", "shape", "name", "observed", "survey"]))
    shapes = [tuple(sizes[name] for name in case.feature_dims(stored)) for stored in case.arrays]
    if kind == "none":
        return
    if kind in ("observed", "survey"):
        case.mask, kept = kind, []
        for stored in case.arrays:
            dims = case.feature_dims(stored)
            rows = stored.rows(case.samples, dims, raw=case.decode == "raw")
            kept.append(~np.isnan(rows.astype(np.float64)).all(axis=0))
        case.kept = kept
        return
    if kind == "flat":
        mask = rng.random(sum(math.prod(shape) for shape in shapes)) < 0.6
        mask[rng.integers(len(mask))] = True
        case.mask = mask if draw(st.booleans()) else mask.astype(">f4")
        case.kept = np.split(mask, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        return
    first = case.feature_dims(case.arrays[0])
    if not first:
        return
    shape = shapes[0]
    mask = rng.random(shape) < 0.6
    mask.flat[rng.integers(mask.size)] = True
    if kind == "shape":
        case.mask = mask
        if mask.ndim == 1 and mask.size == sum(math.prod(shape) for shape in shapes):
            case.kept = np.split(mask, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        else:
            case.kept = [mask.ravel() if other == shape else np.ones(math.prod(other), bool) for other in shapes]
        return
    dims = tuple(draw(st.permutations(first)))
    stored_mask = mask.transpose([first.index(name) for name in dims]).astype(
        draw(st.sampled_from(["bool", "int8", "f4"]))
    )
    version = case.arrays[0].version
    chunks = tuple(draw(st.integers(1, n)) for n in stored_mask.shape)
    case.mask_array = Stored("land", dims, stored_mask, chunks, None, version, "none")
    case.mask = "land"
    case.kept = []
    for stored, shape in zip(case.arrays, shapes, strict=True):
        dims = case.feature_dims(stored)
        if set(first) <= set(dims):
            ordered = mask.transpose([first.index(name) for name in dims if name in first])
            shown = ordered.reshape([sizes[name] if name in first else 1 for name in dims])
            case.kept.append(np.broadcast_to(shown, shape).ravel())
        else:
            case.kept.append(np.ones(math.prod(shape), bool))
