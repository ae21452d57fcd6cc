"""Sizes of blocks to try for a source, and the bytes that reading it in such blocks decodes."""

from __future__ import annotations

import math
import os
from itertools import pairwise

from streampca.errors import ParameterError
from streampca.sources.base import Source
from streampca.typing import DType

BLOCK_BYTES = 32 * 2**20 - 2**16
"""Preferred size of a block: the C library returns memory of 32 MiB and more to the system after every use."""
_BLOCK_ROWS = 2**18
_PANEL_ROWS, _EVEN_ROWS = 1024, 8192


def block_rows_to_try(source: Source, dtype: DType, block_bytes: int = BLOCK_BYTES, least_rows: int = 1) -> list[int]:
    """Return rows per block, best first: whole chunks of about `block_bytes`, fewer chunks, then fractions of a chunk.

    The best is of at least `least_rows` rows, where there are as many. ``STREAMPCA_BLOCK_ROWS`` sets the rows of every block.
    """
    n, d = source.shape[0], source.n_features_read
    chosen = os.environ.get("STREAMPCA_BLOCK_ROWS")
    if chosen is not None:
        if not chosen.isdecimal() or int(chosen) == 0:
            raise ParameterError(
                f"STREAMPCA_BLOCK_ROWS={chosen!r}: expected the number of rows of a block, at least 1; unset it for the default"
            )
        return [min(n, int(chosen))]
    band = min(source.chunk_rows, n)
    best = max(1, min(block_bytes // (d * max(source.dtype.itemsize, dtype.itemsize)), _BLOCK_ROWS))
    if source.chunk_bytes == 0 and best > _PANEL_ROWS:  # without chunks, whole panels
        best = _even_rows(n, best // _PANEL_ROWS * _PANEL_ROWS)
    best = max(best, least_rows)
    rows = [min(n, max(1, best // band) * band)]
    while rows[-1] > band:
        rows.append(max(band, rows[-1] // 2 // band * band))
    while rows[-1] > 256:
        rows.append(-(-rows[-1] // 2))
    return rows


def _even_rows(n: int, most: int) -> int:
    """Return the rows of blocks of at most `most` rows, as even as whole panels allow, and a multiple of four or two where they are long.

    Otherwise the last block may be a small rest, and one thread reads nearly all of a table that is a little longer than a block.
    """
    for multiple in (4, 2):
        n_blocks = -(-n // (most * multiple)) * multiple
        rows = -(-n // (n_blocks * _PANEL_ROWS)) * _PANEL_ROWS
        if n > most and rows >= _EVEN_ROWS:
            return rows
    return most


def bytes_to_read(source: Source, rows: int) -> int:
    """Return the decoded bytes of one pass in blocks of `rows` rows.

    All that is stored once, and each chunk, or inner chunk of a shard, once more for every edge between two blocks that lies
    inside it. Blocks are equal unless the source has edges for them.
    """
    n, band = source.shape[0], source.decoded_rows
    unequal = source.block_edges(rows)
    if unequal is not None:
        return sum(source.reads_of(start, stop) for start, stop in pairwise(unequal))
    once = source.reads_of(0, n)
    if rows % band == 0 or source.reads_of(0, 1) * n == once:
        return once
    # The last band of chunks may be shorter.
    last = (n - 1) // band * band
    edges, edges_in_last = (n - 1) // rows, (n - 1) // rows - last // rows
    between = (n - 1) // math.lcm(rows, band)
    return once + ((edges - edges_in_last - between) * band + edges_in_last * (n - last)) * once // n


def times_decoded(source: Source, n_bytes: int) -> float:
    """Return how many times a pass that reads `n_bytes` decodes what is stored, on average."""
    return n_bytes / source.reads_of(0, source.shape[0])


def repeated_reads_note(source: Source, reading: int, each: str = "") -> tuple[str, ...]:
    """Return a note on chunks that are decoded several times in a pass of `reading` bytes, if they are; `each` ends the first clause."""
    times = times_decoded(source, reading)
    if times <= 1.01:
        return ()
    return (
        f"a band of whole chunks ({source.chunk_rows:,} rows) does not fit: chunks are decoded {times:.1f} times{each}; "
        "fewer rows in a chunk or more memory would avoid it",
    )
