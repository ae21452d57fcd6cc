"""Generators of hypothesis: rows that break weak numerics, and every way of cutting them up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from facade import Block
from hypothesis import strategies as st
from numpy.typing import NDArray

DTYPES = ("float64", "float32", "float16", "uint8", "int8", "int16", "uint16", "int64", "bool", ">f8", ">f4", ">i2")
KINDS = ("normal", "far", "farther", "constant", "rank_deficient", "wild_first_row", "sparse")


def examples(n: int) -> int:
    """Return how many examples hypothesis tries: `n` times STREAMPCA_TEST_TIMES, which may be a fraction; at least five."""
    return max(min(n, 5), round(n * float(os.environ.get("STREAMPCA_TEST_TIMES", "1"))))


def spread(places: Sequence[Any], n: int) -> list[Any]:
    """Return `n` of `places`, from the first to the last at equal distances."""
    if n >= len(places):
        return list(places)
    return [places[i * (len(places) - 1) // max(n - 1, 1)] for i in range(n)]


def in_depth(check: Any, deep: Any) -> Any:
    """Return `check`; in the deep form (``scripts/test deep``) `deep`, such as the numbers of faults that are injected."""
    return deep if os.environ.get("STREAMPCA_TEST_DEEP") else check


def make_rows(n: int, d: int, dtype: str, kind: str, seed: int) -> NDArray[Any]:
    """Return ``(n, d)`` rows of `dtype`: `kind` says how they are distributed, as far as the type can hold it."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n, d))
    if kind == "rank_deficient":
        rows = rows[:, :1] * rng.standard_normal((1, d))
    elif kind == "sparse":
        rows *= rng.random((n, d)) < 0.3
    elif kind == "wild_first_row" and n:
        rows[0] *= 1e3
    kind_of_number = np.dtype(dtype).kind
    if kind_of_number == "b":
        values = rows > 0
    elif kind_of_number in "iu":
        limits = np.iinfo(dtype)
        values = np.clip(np.rint(rows * min(40.0, limits.max / 3) + (limits.max // 2)), limits.min, limits.max)
    else:
        far = {"far": 1e6, "farther": 1e8}.get(kind, 0.0)
        ceiling = {2: 1e2, 4: 1e4, 8: 1e8}[np.dtype(dtype).itemsize]
        values = rows + min(far, ceiling)
    out = values.astype(dtype)
    if kind == "constant" and n:
        out[:, :: 2 if d > 1 else 1] = np.array([0.1, 1e4 + 0.1, 7.0])[rng.integers(3)].astype(dtype)
    return np.asarray(out)


@dataclass(frozen=True)
class Chunked:
    """Rows, and the cuts that part them."""

    rows: NDArray[Any]
    """``(n, d)``, read only."""
    cuts: tuple[int, ...]
    """First row of every block, and n."""

    def __repr__(self) -> str:
        return f"Chunked({self.rows.shape} {self.rows.dtype}, cuts={self.cuts})"

    @property
    def blocks(self) -> list[Block]:
        """Return the rows in blocks, some of them empty."""
        return [Block(self.rows[start:stop], start) for start, stop in pairwise(self.cuts)]


@st.composite
def tables(draw: st.DrawFn, min_rows: int = 1, max_rows: int = 40, max_features: int = 7) -> NDArray[Any]:
    """Draw rows; n < d, single columns, and arrays that are not contiguous among them."""
    n, d = draw(st.integers(min_rows, max_rows)), draw(st.integers(1, max_features))
    rows = make_rows(n, d, draw(st.sampled_from(DTYPES)), draw(st.sampled_from(KINDS)), draw(st.integers(0, 2**32 - 1)))
    layout = draw(st.sampled_from(["C", "F", "strided"]))
    if layout == "F":
        rows = np.asfortranarray(rows)
    elif layout == "strided":
        wide = np.zeros((n, 2 * d), dtype=rows.dtype)
        wide[:, ::2] = rows
        rows = wide[:, ::2]
    rows.flags.writeable = False
    return rows


@st.composite
def chunked(draw: st.DrawFn, min_rows: int = 2) -> Chunked:
    """Draw rows and cuts; blocks may be empty or hold a single row."""
    rows = draw(tables(min_rows=min_rows))
    inner = draw(st.lists(st.integers(0, len(rows)), max_size=6))
    return Chunked(rows, (0, *sorted(inner), len(rows)))
