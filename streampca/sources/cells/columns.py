"""Columns of ``obs`` in stored AnnData: a label for each cell, also where it is stored as codes of categories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streampca.errors import DataError
from streampca.typing import Array

Read = Callable[[Any], Array]
"""Returns the values of a stored array of one axis."""


def names_in(frame: Any) -> tuple[str, ...]:
    """Return the names of the columns of a stored data frame."""
    return () if frame is None else tuple(str(each) for each in frame.attrs.get("column-order", []))


def column_of(frame: Any, name: str, label: str, read: Read) -> Array | None:
    """Return the column `name` of a stored data frame, None if there is none; `read` returns the values of an array of one axis."""
    if name not in names_in(frame) or name not in frame:
        return None
    node = frame[name]
    encoding = str(node.attrs.get("encoding-type", ""))
    categorical = _categorical(frame, name, label)
    if categorical is not None:
        codes, categories = map(read, categorical)
        missing, values = codes < 0, categories[np.where(codes < 0, 0, codes)] if len(categories) else codes
    elif encoding.startswith("nullable-"):
        missing, values = read(node["mask"]).astype(bool), read(node["values"])
    elif hasattr(node, "shape") and len(node.shape) == 1:
        values = read(node)
        missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    else:
        raise DataError(f"obs/{name} of {label} is {encoding or 'a group'}: expected numbers, text or categories")
    if missing.any():
        raise DataError(
            f"obs/{name} of {label} has {int(missing.sum()):,} missing values: expected a label for every cell"
        )
    return values


def _categorical(frame: Any, name: str, label: str) -> tuple[Any, Any] | None:
    """Return the arrays of codes and categories of the column `name`, None if it is no categorical one.

    Before version 0.8 anndata wrote categories beside the columns, and marked the codes by an attribute.
    """
    node = frame[name]
    if node.attrs.get("encoding-type") == "categorical":
        return node["codes"], node["categories"]
    if node.attrs.get("categories") is None:
        return None
    categories = frame.get(f"__categories/{name}")
    if categories is None:
        raise DataError(f"obs/{name} of {label} has codes of categories, and obs/__categories/{name} does not exist")
    return node, categories
