"""Small files as odd as those that other programs write, each by the library of its format, and what is to become of them."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conforming import NAMED, RIGHT

Write = Callable[[Path], object]


@dataclass(frozen=True)
class OddFile:
    """A file that was written."""

    path: Path
    outcome: str
    """`RIGHT`, or `NAMED` where an error of streampca is expected."""


def write_all(directory: Path, formats: Collection[str] | None = None) -> list[OddFile]:
    """Write the files of these formats, by default of all in `WRITERS`, into a directory and return them."""
    files = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in formats or WRITERS:
            for name, outcome, write in WRITERS[each]():
                path = directory / name
                write(path)
                files.append(OddFile(path, outcome))
    return files


def _rows(dtype: Any = "f8", shape: tuple[int, ...] = (40, 6)) -> np.ndarray[Any, Any]:
    """Return correlated numbers of a type."""
    rng = np.random.default_rng(len(str(dtype)) + len(shape))
    flat = rng.standard_normal((shape[0], int(np.prod(shape[1:]))))
    flat += 3 * flat[:, :1]
    if np.dtype(dtype).kind == "b":
        return (flat > 0).reshape(shape)
    if np.dtype(dtype).kind in "iu":
        flat = np.round(flat * 5) + (60 if np.dtype(dtype).kind == "u" else 0)
    return flat.reshape(shape).astype(dtype)


def _parquet() -> Iterator[tuple[str, str, Write]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(dtype: Any = "f8") -> Any:
        return pa.table({f"f{number}": column for number, column in enumerate(_rows(dtype).T)})

    def file(name: str, content: Any, outcome: str = RIGHT, **options: Any) -> tuple[str, str, Write]:
        return f"{name}.parquet", outcome, lambda path: pq.write_table(content, path, **options)

    for dtype in ("f8", "f4", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?"):
        yield file(f"of-{np.dtype(dtype).name}", table(dtype))
    for codec in ("none", "gzip", "brotli", "zstd", "lz4"):
        yield file(f"by-{codec}", table(), compression=codec)
    yield file("groups-of-7-rows", table(), row_group_size=7)
    yield file("pages-of-version-2", table(), data_page_version="2.0", data_page_size=64)
    yield file("byte-stream-split", table("f4"), use_dictionary=False, use_byte_stream_split=True)
    yield file("delta", table("i4"), use_dictionary=False, column_encoding="DELTA_BINARY_PACKED")
    yield file("without-statistics", table(), write_statistics=False)
    yield file("written-as-version-1", table(), version="1.0")
    yield file("page-checksums", table(), write_page_checksum=True)
    nulls = [None if row % 5 == 0 else float(row) for row in range(40)]
    yield file("nulls", table().append_column("n", pa.array(nulls)))
    yield file("null-page", table().append_column("n", pa.array([None] * 40, pa.float64())), data_page_size=64)
    yield file("column-of-type-null", table().append_column("n", pa.nulls(40)))
    yield file("text-beside", table().append_column("name", pa.array([f"r{row}" for row in range(40)])))
    yield file("dictionary-of-text-beside", table().append_column("c", pa.array(["a", "b"] * 20).dictionary_encode()))
    yield file("times-beside", table().append_column("t", pa.array(range(40), pa.timestamp("ms"))))
    yield file("decimals-beside", table().append_column("d", pa.array([1] * 40).cast(pa.decimal128(24, 2))))
    yield file("struct-beside", table().append_column("s", pa.array([{"a": 1}] * 40)))
    lists = pa.FixedSizeListArray.from_arrays(pa.array(_rows("f4").ravel()), 6)
    yield file("embeddings", pa.table({"embedding": lists}))
    yield file("two-columns-of-one-name", pa.table([pa.array(range(9)), pa.array(range(9))], names=["a", "a"]), NAMED)
    yield file("no-rows", table().slice(0, 0), NAMED)
    yield file("names-of-other-scripts", table().rename_columns(["α", "β", "γ", "δ", "a b", "a.b"]))


def _arrow() -> Iterator[tuple[str, str, Write]]:
    import pyarrow as pa
    from pyarrow import feather

    table = pa.table({f"f{number}": column for number, column in enumerate(_rows("f4").T)})

    def written(content: Any, **options: Any) -> Write:
        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, content.schema, **options) as file:
                for batch in content.to_batches(max_chunksize=11):
                    file.write_batch(batch)

        return write

    yield "batches.arrow", RIGHT, written(table)
    for codec in ("lz4", "zstd"):
        yield f"by-{codec}.arrow", RIGHT, written(table, options=pa.ipc.IpcWriteOptions(compression=codec))
    yield "half.arrow", RIGHT, written(pa.table({"a": _rows("f2")[:, 0], "b": _rows("f2")[:, 1]}))
    yield "bool.arrow", RIGHT, written(pa.table({"a": _rows("?")[:, 0], "b": _rows("f8")[:, 1]}))
    yield "text.arrow", RIGHT, written(table.append_column("name", pa.array(["é"] * 40)))
    categories = pa.array(["a", "b"] * 20).dictionary_encode()
    yield "dictionary.arrow", RIGHT, written(table.append_column("c", categories))
    yield "view-of-text.arrow", RIGHT, written(table.append_column("v", pa.array(["x"] * 40, pa.string_view())))
    yield "no-batches.arrow", NAMED, written(table.slice(0, 0))
    yield "version-2.feather", RIGHT, lambda path: feather.write_feather(table, path)
    yield "version-1.feather", NAMED, lambda path: feather.write_feather(table, path, version=1)

    def streamed(content: Any, **options: Any) -> Write:
        def write(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, content.schema, **options) as file:
                file.write_table(content, max_chunksize=11)

        return write

    yield "a-stream.arrow", RIGHT, streamed(table)
    yield "a-stream-by-zstd.arrow", RIGHT, streamed(table, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    yield "a-stream-of-dictionaries.arrow", RIGHT, streamed(table.append_column("c", categories))
    yield "a-stream-without-batches.arrow", NAMED, streamed(table.slice(0, 0))


def _hdf5() -> Iterator[tuple[str, str, Write]]:
    import h5py

    def of(
        values: Any, outcome: str = RIGHT, attributes: dict[str, Any] | None = None, /, **options: Any
    ) -> tuple[str, Write]:
        def write(path: Path) -> None:
            with h5py.File(path, "w") as file:
                file.create_dataset("x", data=values, **options).attrs.update(attributes or {})

        return outcome, write

    filters = {
        "contiguous": {},
        "gzip": {"chunks": (7, 4), "compression": "gzip"},
        "lzf": {"chunks": (7, 4), "compression": "lzf"},
        "shuffle": {"chunks": (7, 6), "shuffle": True, "compression": "gzip"},
        "checksum": {"chunks": (7, 6), "fletcher32": True},
        "resizable": {"chunks": (7, 6), "maxshape": (None, 6)},
    }
    for name, options in filters.items():
        yield f"{name}.h5", *of(_rows(), **options)
    yield "scale-offset.h5", *of(_rows("i4"), chunks=(7, 6), scaleoffset=0)
    for dtype in (">f8", ">i2", "f2", "i1", "u8", "?"):
        yield f"of-{np.dtype(dtype).name}{'-big' if dtype[0] == '>' else ''}.h5", *of(_rows(dtype))
    packed = {"scale_factor": np.float32(0.01), "add_offset": np.float32(20), "_FillValue": np.int16(-5)}
    yield "packed.h5", *of(_rows("i2"), RIGHT, packed)
    yield "packed-by-doubles.h5", *of(_rows("i2"), RIGHT, {"scale_factor": 0.01, "add_offset": 1e6})
    yield "scale-as-text.h5", *of(_rows("i2"), NAMED, {"scale_factor": "0.01"})
    yield "unsigned.h5", *of(_rows("i1"), RIGHT, {"_Unsigned": "true"})
    yield "valid-range.h5", *of(_rows("f4"), RIGHT, {"valid_range": np.array([-2, 5], "f4")})
    yield "missing-value.h5", *of(_rows("i4"), RIGHT, {"missing_value": np.int32(0)})
    yield "fill-that-the-type-lacks.h5", *of(_rows("u1"), RIGHT, {"_FillValue": -999})
    yield "three-dimensions.h5", *of(_rows("f4", (40, 3, 4)), chunks=(7, 2, 4))
    yield "no-table.h5", *of(np.arange(5.0), NAMED)
    yield "records.h5", *of(np.zeros(5, [("a", "f4"), ("b", "i4")]), NAMED)

    def nested(path: Path) -> None:
        with h5py.File(path, "w", libver="latest") as file:
            file["a/b/c/x"] = _rows()

    def behind_user_block(path: Path) -> None:
        with h5py.File(path, "w", userblock_size=512) as file:
            file["x"] = _rows()

    def named(labels: tuple[str, ...]) -> Write:
        def write(path: Path) -> None:
            with h5py.File(path, "w") as file:
                data = file.create_dataset("x", data=_rows("f4", (40, 3, 4)))
                for axis, label in enumerate(labels):
                    data.dims[axis].label = label

        return write

    def virtual(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["part"] = _rows()[:20]
            layout = h5py.VirtualLayout((40, 6), "f8")
            layout[:20] = layout[20:] = h5py.VirtualSource(file["part"])
            file.create_virtual_dataset("x", layout)

    def of_enumeration(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=_rows("i1"), dtype=h5py.enum_dtype({"a": 0, "b": 1}, basetype="i1"))

    yield "nested.h5", RIGHT, nested
    yield "user-block.h5", RIGHT, behind_user_block
    yield "dimension-names.h5", RIGHT, named(("time", "y", "x"))
    yield "virtual.h5", RIGHT, virtual
    yield "enumeration.h5", RIGHT, of_enumeration


def _netcdf() -> Iterator[tuple[str, str, Write]]:
    from scipy.io import netcdf_file

    def of(
        values: Any, outcome: str = RIGHT, version: int = 1, /, record: bool = False, **attributes: Any
    ) -> tuple[str, Write]:
        def write(path: Path) -> None:
            with netcdf_file(path, "w", version=version) as file:
                names = ("time", "lat", "lon")[: values.ndim]
                for name, size in zip(names, values.shape, strict=True):
                    file.createDimension(name, None if record and name == "time" else size)
                variable = file.createVariable("x", values.dtype, names)
                variable[:] = values
                for key, value in attributes.items():
                    setattr(variable, key, value)

        return outcome, write

    yield "classic.nc", *of(_rows("f4"))
    yield "offsets-of-64-bits.nc", *of(_rows("f8"), RIGHT, 2)
    yield "records.nc", *of(_rows("f4", (40, 3, 4)), record=True)
    yield "packed.nc", *of(_rows("i2"), scale_factor=np.float64(0.1), add_offset=np.float64(5), _FillValue=np.int16(3))
    yield "bytes.nc", *of(_rows("i1"), _Unsigned="true")
    yield "unsigned-range.nc", *of(_rows("i2"), _Unsigned="true", valid_range=np.array([0, -6], "i2"))
    yield "valid-range.nc", *of(_rows("i2"), valid_range=np.array([-10, 20], "i2"))

    def of_hdf5(values: Any, **attributes: Any) -> tuple[str, Write]:
        def write(path: Path) -> None:
            import h5py

            with h5py.File(path, "w", track_order=True) as file:
                data = file.create_dataset("x", data=values, chunks=True, shuffle=True, compression="gzip")
                data.attrs.update(attributes)
                for axis, name in enumerate(("time", "lat", "lon")[: values.ndim]):
                    file[name] = np.arange(values.shape[axis], dtype="f8")
                    file[name].make_scale(name)
                    data.dims[axis].attach_scale(file[name])

        return RIGHT, write

    yield "fields.nc4", *of_hdf5(_rows("f4", (40, 3, 4)))
    yield "big-endian.nc4", *of_hdf5(_rows(">f8"))
    yield "packed.nc4", *of_hdf5(_rows("i2"), scale_factor=0.1, add_offset=5.0, _FillValue=np.int16(3))


def _zarr() -> Iterator[tuple[str, str, Write]]:
    import numcodecs
    import zarr
    from zarr import codecs

    def of(
        values: Any, outcome: str = RIGHT, /, attributes: dict[str, Any] | None = None, **options: Any
    ) -> tuple[str, Write]:
        def write(path: Path) -> None:
            with zarr.config.set({"array.write_empty_chunks": True}):
                zarr.create_array(path, data=values, attributes=attributes or {}, **{"chunks": (7, 4), **options})

        return outcome, write

    yield "two-plain.zarr", *of(_rows(), zarr_format=2, compressors=None)
    yield "two-order-f.zarr", *of(_rows(), zarr_format=2, order="F")
    yield "two-nested-keys.zarr", *of(_rows(), zarr_format=2, chunk_key_encoding={"name": "v2", "separator": "/"})
    yield "two-big-endian.zarr", *of(_rows(">f4"), zarr_format=2)
    yield "two-delta.zarr", *of(_rows("i4"), zarr_format=2, filters=[numcodecs.Delta(dtype="i4")])
    for compressor in (numcodecs.LZ4(), numcodecs.GZip(), numcodecs.Zstd(), numcodecs.Blosc("lz4hc", shuffle=2)):
        name = compressor.codec_id
        yield f"two-{name}.zarr", *of(_rows("f4"), zarr_format=2, compressors=compressor)
    yield "two-named.zarr", *of(_rows(), zarr_format=2, attributes={"_ARRAY_DIMENSIONS": ["time", "x"]})
    yield "three-plain.zarr", *of(_rows(), compressors=None)
    yield "three-checksum.zarr", *of(_rows(), compressors=[codecs.ZstdCodec(), codecs.Crc32cCodec()])
    yield "three-gzip.zarr", *of(_rows(), compressors=codecs.GzipCodec())
    yield "three-blosc.zarr", *of(_rows("i2"), compressors=codecs.BloscCodec(cname="zstd", shuffle="bitshuffle"))
    yield "three-big-endian.zarr", *of(_rows(), serializer=codecs.BytesCodec(endian="big"))
    yield "three-transposed.zarr", *of(_rows(), filters=[codecs.TransposeCodec(order=(1, 0))])
    yield "three-keys-of-2.zarr", *of(_rows(), chunk_key_encoding={"name": "v2", "separator": "."})
    yield "three-null-names.zarr", *of(_rows("f4", (40, 3, 4)), chunks=(7, 3, 4), dimension_names=("t", None, None))
    yield "three-sharded.zarr", *of(_rows(), chunks=(5, 3), shards=(20, 6))
    for dtype in ("f2", "i1", "u8", "?"):
        yield f"three-of-{np.dtype(dtype).name}.zarr", *of(_rows(dtype))

    def shards(**options: Any) -> Write:
        def write(path: Path) -> None:
            inner = codecs.ShardingCodec(chunk_shape=(5, 3), **options)
            array = zarr.create_array(
                path, shape=(40, 6), chunks=(20, 6), dtype="f8", serializer=inner, compressors=None
            )
            array[...] = _rows()

        return write

    yield "shard-index-first.zarr", RIGHT, shards(index_location="start")
    yield "shard-index-without-checksum.zarr", RIGHT, shards(index_codecs=[codecs.BytesCodec()])

    def missing_chunk(path: Path) -> None:
        zarr.create_array(path, shape=(40, 6), chunks=(7, 6), dtype="f8")[:7] = 1.0

    def group(path: Path) -> None:
        root = zarr.create_group(path)
        root.create_array("a/x", data=_rows(), chunks=(7, 6))
        root.create_array("scale", data=np.arange(6.0))

    def consolidated(path: Path) -> None:
        group(path)
        zarr.consolidate_metadata(path)

    packed = {"scale_factor": 0.1, "add_offset": -3.0, "_FillValue": 2}
    yield "chunks-missing.zarr", NAMED, missing_chunk
    yield "group.zarr", RIGHT, group
    yield "consolidated.zarr", RIGHT, consolidated
    yield "packed.zarr", *of(_rows("i2"), attributes=packed, dimension_names=("time", "x"))
    yield "fill-of-named.zarr", *of(_rows("i2"), fill_value=5, dimension_names=("time", "x"))
    yield "one-chunk-larger-than-all.zarr", *of(_rows(), chunks=(64, 16))

    def zipped(compression: int) -> Write:
        def write(path: Path) -> None:
            with zarr.storage.ZipStore(path, mode="w", compression=compression) as store:
                zarr.create_group(store).create_array("x", data=_rows(), chunks=(7, 6))

        return write

    yield "stored.zarr.zip", RIGHT, zipped(zipfile.ZIP_STORED)
    yield "deflated.zarr.zip", RIGHT, zipped(zipfile.ZIP_DEFLATED)
    if hasattr(codecs, "ScaleOffset"):
        yield "scale-offset.zarr", *of(_rows(), filters=[codecs.ScaleOffset(scale=100.0, offset=1.0)])

        def rectilinear(path: Path) -> None:
            with zarr.config.set({"array.rectilinear_chunks": True}):
                zarr.create_array(path, data=_rows(), chunks=[[7, 13, 20], [6]])

        yield "rectilinear.zarr", NAMED, rectilinear


def _delta() -> Iterator[tuple[str, str, Write]]:
    import deltalake
    import pyarrow as pa

    def table(rows: np.ndarray[Any, Any]) -> Any:
        return pa.table({f"f{number}": column for number, column in enumerate(rows.T)})

    def appended(path: Path) -> None:
        deltalake.write_deltalake(path, table(_rows()))
        deltalake.write_deltalake(path, table(_rows() + 1), mode="append")
        deltalake.DeltaTable(path).delete("f0 > 1")
        deltalake.DeltaTable(path).optimize.compact()

    def overwritten(path: Path) -> None:
        deltalake.write_deltalake(path, table(_rows()))
        deltalake.write_deltalake(path, table(_rows("f4")), mode="overwrite", schema_mode="overwrite")

    def emptied(path: Path) -> None:
        deltalake.write_deltalake(path, table(_rows()))
        deltalake.DeltaTable(path).delete()

    def vectors(path: Path) -> None:
        deltalake.write_deltalake(path, table(_rows()), configuration={"delta.enableDeletionVectors": "true"})

    yield "appended", RIGHT, appended
    yield "overwritten", RIGHT, overwritten
    yield "emptied", NAMED, emptied
    yield "deletion-vectors", NAMED, vectors


def _anndata() -> Iterator[tuple[str, str, Write]]:
    import anndata
    import h5py
    import pandas as pd
    import scipy.sparse as sparse

    def cells(matrix: Any) -> Any:
        data = anndata.AnnData(matrix, obs=pd.DataFrame({"kind": pd.Categorical(["a", "b"] * 20)}))
        data.layers["counts"] = sparse.csr_matrix(np.abs(_rows("f4")))
        return data

    def legacy(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["X"] = _rows("f4")
            file["obs"] = np.array([(f"c{row}".encode(),) for row in range(40)], [("index", "S8")])
            file["var"] = np.array([(f"g{column}".encode(),) for column in range(6)], [("index", "S8")])

    counts = np.maximum(_rows("i4"), 0).astype("f4")
    for name, matrix in {
        "dense": _rows(),
        "rows": sparse.csr_matrix(counts),
        "columns": sparse.csc_matrix(counts),
    }.items():
        yield f"{name}.h5ad", RIGHT, lambda path, matrix=matrix: cells(matrix).write_h5ad(path)
        yield f"cells-{name}.zarr", RIGHT, lambda path, matrix=matrix: cells(matrix).write_zarr(path)
    yield "compressed.h5ad", RIGHT, lambda path: cells(sparse.csr_matrix(counts)).write_h5ad(path, compression="gzip")
    yield "legacy.h5ad", RIGHT, legacy


def _npy() -> Iterator[tuple[str, str, Write]]:
    def of(values: Any, outcome: str = RIGHT) -> tuple[str, Write]:
        return outcome, lambda path: np.save(path, values)

    for dtype in ("f8", ">f4", "f2", "i8", "u1", "?"):
        yield f"of-{np.dtype(dtype).name}{'-big' if dtype[0] == '>' else ''}.npy", *of(_rows(dtype))
    yield "order-f.npy", *of(np.asfortranarray(_rows()))
    yield "objects.npy", *of(np.array([["a", 1]], dtype=object), NAMED)
    yield "of-one-dimension.npy", *of(np.arange(5.0), NAMED)
    yield "complex.npy", *of(_rows().astype(complex), NAMED)

    def header_of_version_2(path: Path) -> None:
        with path.open("wb") as file:
            np.lib.format.write_array(file, _rows(), version=(2, 0))

    yield "header-of-version-2.npy", RIGHT, header_of_version_2


def _plink() -> Iterator[tuple[str, str, Write]]:
    from bed_reader import to_bed

    rng = np.random.default_rng(0)
    alleles = rng.binomial(2, 0.4, (41, 9)).astype("i1")
    yield "people.bed", RIGHT, lambda path: to_bed(path, alleles)
    missing = np.where(rng.random(alleles.shape) < 0.1, -127, alleles).astype("i1")
    yield "missing.bed", RIGHT, lambda path: to_bed(path, missing)
    yield "by-person.bed", NAMED, lambda path: to_bed(path, alleles, major="individual")


WRITERS = {
    "Parquet": _parquet,
    "Arrow": _arrow,
    "HDF5": _hdf5,
    "NetCDF": _netcdf,
    "zarr": _zarr,
    "Delta": _delta,
    "AnnData": _anndata,
    "npy": _npy,
    "PLINK": _plink,
}
"""What writes the files of each format."""
