"""Types of arrays that annotations name."""

from __future__ import annotations

from typing import Any

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
