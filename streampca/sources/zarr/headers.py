"""Sizes that compressed bytes declare in their headers: Blosc 1 and Zstandard (RFC 8878)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ZSTD_MAGIC, _ZSTD_SKIPPED, _ZSTD_BLOCK = 0xFD2FB528, 0x184D2A50, 2**17
_BLOSC_MEMCPY, _BLOSC_RESERVED, _BLOSC_COMPRESSORS = 0x2, 0x8, 5


def number_at(stored: NDArray[np.uint8], start: int, n_bytes: int) -> int:
    """Return the little-endian number at `start`; `ValueError` if the bytes end before."""
    digits = stored[start : start + n_bytes].tobytes()
    if len(digits) < n_bytes:
        raise ValueError("the header is cut short")
    return int.from_bytes(digits, "little")


def blosc_size(stored: NDArray[np.uint8]) -> int:
    """Return how many bytes a Blosc frame decodes to; `ValueError` if its header contradicts itself or the stored bytes.

    (Blosc 1 format: version, compressor's version, flags, size of a value, and the sizes of the content, of its blocks and
    of the frame, followed by the places of the blocks.) Blosc itself believes the last and reads on behind what there is.
    """
    if len(stored) < 16:
        raise ValueError(f"{len(stored)} bytes stored, expected a header of 16")
    version, _, flags, value_size = (int(n) for n in stored[:4])
    n_bytes, block, n_stored = (number_at(stored, start, 4) for start in (4, 8, 12))
    if n_stored != len(stored):
        raise ValueError(f"{len(stored)} bytes stored, {n_stored} expected by its header")
    known = 1 <= version <= 2 and not flags & _BLOSC_RESERVED and flags >> 5 < _BLOSC_COMPRESSORS
    if not known or value_size == 0:
        raise ValueError("its Blosc header is not one")
    if n_bytes == 0:
        return 0
    if flags & _BLOSC_MEMCPY:
        if n_stored != n_bytes + 16:
            raise ValueError(f"{n_stored} bytes stored as they are, {n_bytes + 16} expected by its header")
        return n_bytes
    first = 16 + 4 * -(-n_bytes // max(1, block))
    if not 0 < block <= n_bytes or first > n_stored:
        raise ValueError(f"blocks of {block} bytes do not fit in its header")
    places = np.frombuffer(stored[16:first].tobytes(), dtype="<u4")
    if bool(((places < first) | (places >= n_stored)).any()):
        raise ValueError("a block lies outside of the frame")
    return n_bytes


def frame_size(stored: NDArray[np.uint8]) -> int | None:
    """Return the decoded size in bytes that the first Zstandard frame declares, None if it declares none, or is no frame."""
    header = stored[:18].tobytes()
    if len(header) < 18 or int.from_bytes(header[:4], "little") != _ZSTD_MAGIC:
        return None
    descriptor = header[4]
    single, width = descriptor >> 5 & 1, (descriptor >> 5 & 1, 2, 4, 8)[descriptor >> 6]
    start = 6 - single + (0, 1, 2, 4)[descriptor & 3]
    return int.from_bytes(header[start : start + width], "little") + (256 if width == 2 else 0) if width else None


def zstd_size(stored: NDArray[np.uint8]) -> tuple[int, bool]:
    """Return the decoded size in bytes of Zstandard frames (RFC 8878), and whether it is exact or an upper bound."""
    at, total, is_exact = 0, 0, True
    while at < len(stored):
        magic = number_at(stored, at, 4)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPED:
            at += 8 + number_at(stored, at + 4, 4)
            continue
        if magic != _ZSTD_MAGIC:
            raise ValueError("no Zstandard frame begins where one should")
        size, bound, at = _zstd_frame(stored, at + 4)
        total += bound if size is None else size
        is_exact = is_exact and size is not None
    if at != len(stored) or at == 0:
        raise ValueError("the Zstandard frame is cut short")
    return total, is_exact


def _zstd_frame(stored: NDArray[np.uint8], at: int) -> tuple[int | None, int, int]:
    """Return the declared size of the frame whose header is at `at`, the upper bound from its blocks, and its end."""
    descriptor = number_at(stored, at, 1)
    single, has_checksum = bool(descriptor & 0x20), bool(descriptor & 0x4)
    at += 1
    largest = _ZSTD_BLOCK
    if not single:
        window = number_at(stored, at, 1)
        base = 2 ** (10 + (window >> 3))
        largest = min(largest, base + (base >> 3) * (window & 7))
        at += 1
    at += (0, 1, 2, 4)[descriptor & 3]
    width = (int(single), 2, 4, 8)[descriptor >> 6]
    size = number_at(stored, at, width) + (256 if width == 2 else 0) if width else None
    at += width
    bound, is_last = 0, False
    while not is_last:
        header = number_at(stored, at, 3)
        is_last, kind, length = bool(header & 1), header >> 1 & 3, header >> 3
        if kind == 3:
            raise ValueError("a Zstandard block is of no known kind")
        bound += largest if kind == 2 else length
        at += 3 + (1 if kind == 1 else length)
    return size, bound, at + 4 * has_checksum
