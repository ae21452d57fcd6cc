"""Texts as two arrays of numbers: their concatenated UTF-8 bytes, and the end of each text in them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from streampca.typing import Array


def text_arrays(texts: Iterable[object]) -> tuple[Array, Array]:
    """Return bytes, ``uint8``, and ends, ``int64``, of some texts."""
    encoded = [str(text).encode("utf-8", "surrogatepass") for text in texts]
    ends = np.cumsum([len(each) for each in encoded], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), ends


def texts_of(data: Array, ends: Array) -> list[str]:
    """Return the texts that `text_arrays` has written; `ValueError` if they are damaged."""
    if data.ndim != 1 or ends.ndim != 1 or data.dtype != np.uint8:
        raise ValueError("the arrays of texts are no vectors")
    starts = np.concatenate([[0], ends[:-1]])
    if not bool((starts <= ends).all()) or (int(ends[-1]) if len(ends) else 0) != len(data):
        raise ValueError("the ends of texts are not in order")
    text, pairs = data.tobytes(), zip(starts.tolist(), ends.tolist(), strict=True)
    return [text[start:end].decode("utf-8", "surrogatepass") for start, end in pairs]
