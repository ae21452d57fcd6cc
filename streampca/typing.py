"""Types of arrays and documents that annotations name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse._base import _spbase

Array = NDArray[Any]
"""An array of any type of numbers."""
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
DType = np.dtype[Any]
"""A type of numbers."""
Json = dict[str, Any]
"""Plain data by name, as JSON has it: descriptions of sources, certificates, summaries, attributes of stored groups."""
JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
"""A value of JSON, as `json.loads` returns it."""
SparseRows: TypeAlias = "_spbase"
"""A matrix of scipy, in any sparse format."""
Rows: TypeAlias = "ArrayLike | _spbase"
"""Rows of a table, dense or sparse, that are not checked yet."""
