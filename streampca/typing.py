"""Types of arrays and documents that annotations name."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
