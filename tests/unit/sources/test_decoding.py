"""What compressed bytes say of their size, against the codecs; decoding that stops at a limit; documents in bounds."""

from __future__ import annotations

import bz2
import gzip
import lzma
import struct
import tracemalloc
import zlib

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.storage import MemoryStore

from streampca.errors import DataError
from streampca.sources import open_source
from streampca.sources.zarr.codecs import blosc_size, decode_into, decode_within, zstd_size
from streampca.sources.zarr.strictness import require_document

CODECS = {
    "zstd": numcodecs.Zstd(1),
    "zstd checksum": numcodecs.Zstd(3, checksum=True),
    "lz4": numcodecs.LZ4(),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "bz2": numcodecs.BZ2(1),
    "lzma": numcodecs.LZMA(preset=0),
    **{
        f"blosc {name} {shuffle}": numcodecs.Blosc(cname=name, shuffle=shuffle)
        for name in ("lz4", "zstd", "blosclz", "zlib", "lz4hc")
        for shuffle in (0, 1, 2)
    },
}
contents = st.one_of(
    st.binary(min_size=1, max_size=400),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=8), st.integers(1, 40_000)),
)


def _array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, dtype=np.uint8)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)
@given(content=contents)
def test_every_codec_decodes_as_ever(name, content):
    codec = CODECS[name]
    stored = _array(bytes(codec.encode(content)))
    if name.startswith("zstd"):
        assert zstd_size(stored) == (len(content), True)
    if name.startswith("blosc"):
        assert blosc_size(stored) == len(content)
    assert bytes(decode_within(codec, stored, len(content))) == content
    chunk = np.empty(len(content), dtype=np.uint8)
    decode_into(codec, stored, chunk)
    assert chunk.tobytes() == content
    for wrong in (len(content) - 1, len(content) + 1):
        if wrong:
            with pytest.raises((ValueError, RuntimeError)):
                decode_into(codec, stored, np.empty(wrong, dtype=np.uint8))
    if len(content) > 1:
        with pytest.raises(ValueError, match="bytes after decoding"):
            decode_within(codec, stored, len(content) - 1)


def _frame(*blocks: tuple[int, bytes, int], header: bytes = b"\x00\x38") -> bytes:
    """Return a Zstandard frame of blocks of some kind, content and size."""
    parts = [b"\x28\xb5\x2f\xfd", header]
    for i, (kind, content, size) in enumerate(blocks):
        parts.append((size << 3 | kind << 1 | (i == len(blocks) - 1)).to_bytes(3, "little") + content)
    return b"".join(parts)


def test_zstandard_frames_of_every_form():
    raw, run = (0, b"abcd", 4), (1, b"x", 1000)
    assert zstd_size(_array(_frame(raw))) == (4, False)
    assert zstd_size(_array(_frame(raw, run))) == (1004, False)
    assert zstd_size(_array(_frame(raw, header=b"\x20\x04"))) == (4, True)
    assert zstd_size(_array(_frame((0, b"a" * 300, 300), header=b"\x60" + struct.pack("<H", 44)))) == (300, True)
    assert zstd_size(_array(_frame(raw, header=b"\xe0" + struct.pack("<Q", 2**60)))) == (2**60, True)
    assert zstd_size(_array(_frame(raw, header=b"\x23" + b"dict" + b"\x04"))) == (4, True)
    skipped = struct.pack("<II", 0x184D2A53, 5) + b"12345"
    assert zstd_size(_array(skipped + _frame(raw) + skipped + _frame(run))) == (1004, False)
    assert bytes(decode_within(numcodecs.Zstd(), _array(_frame(raw, run)), 1004)) == b"abcd" + b"x" * 1000
    whole = bytes(numcodecs.Zstd().encode(b"abc" * 1000))
    for cut in range(len(whole)):
        with pytest.raises(ValueError, match=r"Zstandard|cut short"):
            zstd_size(_array(whole[:cut]))
    with pytest.raises(ValueError, match="begins where one should"):
        zstd_size(_array(whole + b"more"))
    with pytest.raises(ValueError, match="an unknown kind"):
        zstd_size(_array(_frame((3, b"", 0))))


def test_blosc_frames_that_contradict_themselves():
    whole = bytes(numcodecs.Blosc(cname="lz4", blocksize=1024).encode(np.arange(4096, dtype="<i4")))
    assert blosc_size(_array(whole)) == 16384
    changes = {
        0: b"\x05",
        2: bytes([whole[2] | 0xE0]),
        3: b"\0",
        4: b"\xff\xff\xff\x7f",
        8: b"\0\0\0\0",
        12: b"\x10\0\0\0",
    }
    for place, change in changes.items():
        with pytest.raises(ValueError, match=r"header|stored|frame"):
            blosc_size(_array(whole[:place] + change + whole[place + len(change) :]))
    with pytest.raises(ValueError, match="outside of the frame"):
        blosc_size(_array(whole[:16] + struct.pack("<I", len(whole)) + whole[20:]))
    for cut in (0, 15, 16, 20, len(whole) - 1):
        with pytest.raises(ValueError, match="stored"):
            blosc_size(_array(whole[:cut]))


@pytest.mark.parametrize("codec", [numcodecs.GZip(), numcodecs.BZ2(), numcodecs.LZMA(), numcodecs.Zlib()])
def test_streams_in_a_row(codec):
    compress = {"gzip": gzip.compress, "bz2": bz2.compress, "lzma": lzma.compress, "zlib": zlib.compress}[
        codec.codec_id
    ]
    one, two = compress(b"a" * 1000), compress(b"b" * 24)
    if codec.codec_id == "zlib":
        with pytest.raises(ValueError, match="follow behind the end"):
            decode_within(codec, one + two, 2000)
        return
    assert decode_within(codec, one + two, 1024) == b"a" * 1000 + b"b" * 24
    assert decode_within(codec, one + bytes(7), 1000) == b"a" * 1000  # padding
    with pytest.raises(ValueError, match="more than 1023 bytes"):
        decode_within(codec, one + two, 1023)
    with pytest.raises(ValueError, match="cut short"):
        decode_within(codec, one[:-5], 1024)
    with pytest.raises(ValueError, match="more than 1024 compressed streams"):
        decode_within(codec, compress(b"") * 1025, 1024)


@pytest.mark.parametrize("codec", [numcodecs.GZip(1), numcodecs.BZ2(1), numcodecs.LZMA(preset=0), numcodecs.Zlib(1)])
def test_large_chunks_are_decoded_in_place_with_little_further_memory(codec):
    content = np.random.default_rng(0).integers(0, 4, 2**22, dtype=np.uint8)
    content[2**20 : 3 * 2**20] = 0  # which a few bytes of input make
    stored, size = codec.encode(content), 2**21 + 3
    if codec.codec_id != "zlib":
        stored = codec.encode(content[:size]) + bytes(2**17) + codec.encode(content[size:]) + bytes(5)
    chunk, stored = np.empty_like(content), _array(stored)
    tracemalloc.start()
    try:
        decode_into(codec, stored, chunk)
        assert tracemalloc.get_traced_memory()[1] < 1.5 * 2**20
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(chunk, content)
    with pytest.raises(ValueError, match="cut short"):
        decode_into(codec, stored[:-20], chunk)
    for wrong in (content.size - 1, content.size + 1):
        with pytest.raises(ValueError, match="after decoding"):
            decode_into(codec, stored, np.empty(wrong, dtype=np.uint8))


@pytest.mark.parametrize("version", [2, 3])
def test_bounded_arrays_are_the_same_arrays(version):
    values = np.random.default_rng(0).standard_normal((50, 4))
    options = {"compressors": numcodecs.Zlib(1), "filters": [numcodecs.Delta(dtype="<f8"), numcodecs.Shuffle(8)]}
    if version == 3:
        options = {"compressors": [zarr.codecs.GzipCodec(level=1), zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]}
    array = zarr.create_array(MemoryStore(), shape=(50, 4), chunks=(20, 4), dtype="f8", zarr_format=version, **options)
    array[...] = values
    np.testing.assert_array_equal(open_source(array).read(10, 50)[0], array[10:50])


def test_shapes_of_pictures():
    for value, expected in (([2, 3], (2, 3)), ([2, 4], None), ([-2, -3], None), ("6", None), ([2**80, 2**80], None)):
        array = zarr.create_array(MemoryStore(), shape=(3, 6), dtype="f8", attributes={"feature_shape": value})
        array[...] = 1.0
        assert open_source(array).feature_shape == expected


def test_documents_in_bounds():
    require_document(b'{"a": [1, {"b": "[[[[\\"{{{"}], "c": NaN}', "zarr.json")
    nested = b'{"a": ' + b"[" * 63 + b"]" * 63 + b"}"
    require_document(nested, "zarr.json")
    for text, words in (
        (nested.replace(b"[", b"[[", 1).replace(b"]", b"]]", 1), "deeper than 64"),
        (b'{"a": {"b": 1, "c": 2, "b": 3}}', "gives 'b' twice"),
        (b'{"a": 1', "not JSON"),
        (b"[]", "holds list"),
        (b'"' + b'\\"' * 100_000, "not JSON"),
        (b'{"a": "' + b" " * 2**23 + b'"}', "at most 8,388,608"),
        (b"[" + b"1," * 1_000_001 + b"1]", "more than 1,000,000 values"),
    ):
        with pytest.raises(DataError, match=words):
            require_document(text, "zarr.json")


@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("version", [2, 3])
def test_names_of_many_features_are_read(tmp_path, version):
    n_features = 200_000
    names = [f"gene-{i:06d}-of-a-name-of-usual-length-in-databases" for i in range(n_features)]
    path = str(tmp_path / "x.zarr")
    options = {"zarr_format": version, "attributes": {"feature_names": names}, "chunks": (3, n_features)}
    array = zarr.create_array(path, shape=(3, n_features), dtype="u1", **options)
    array[...] = np.arange(3 * n_features, dtype=np.uint64).reshape(3, n_features) % 251
    assert open_source(path).feature_names == tuple(names)


@pytest.mark.slow
def test_limit_of_documents_grows_with_declared_features_that_are_named():
    names = b'"' + b"a" * 100 + b'", '
    for shape, count, words in (
        (b"[10, 100000]", 100_000, None),
        (b"[100000, 10]", 100_000, None),
        (b"[10, 1000]", 100_000, "expected at most 8,516,608"),
        (b"[10, 1000000000]", 600_000, "expected at most 59,588,608"),
    ):
        text = b'{"shape": ' + shape + b', "attributes": {"feature_names": [' + names * count + b'"b"]}}'
        if words is None:
            require_document(text, "zarr.json")
            text = text.replace(b"feature_names", b"other")
            words = "expected at most 8,388,608"
        with pytest.raises(DataError, match=words):
            require_document(text, "zarr.json")
