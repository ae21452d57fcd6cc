"""Types of arrays, documents and Dask clients for annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from scipy.sparse._base import _spbase
    from typing_extensions import override as override
else:

    def override(method: Callable[..., Any]) -> Callable[..., Any]:
        """Return `method`: accumulators need numpy and scipy alone."""
        return method


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


class DaskFuture(Protocol):
    """What is used of a `distributed.Future`, whose methods have no types."""

    @property
    def status(self) -> str | None:
        """``"pending"``, ``"finished"``, ``"error"``, ``"cancelled"`` or ``"lost"``."""
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result."""
        ...

    def release(self) -> None:
        """Give the task and its result up."""
        ...

    def add_done_callback(self, callback: Callable[[DaskFuture], None], /) -> None:
        """Have `callback` called when the task is over."""
        ...


class DaskClient(Protocol):
    """What is used of a `distributed.Client`, whose methods have no types."""

    status: str
    scheduler: Any
    scheduler_comm: object

    @property
    def asynchronous(self) -> bool:
        """Whether its methods are coroutines."""
        ...

    def submit(self, function: Callable[..., object], /, *arguments: Any, **options: Any) -> DaskFuture:
        """Have a worker call `function`."""
        ...

    def scheduler_info(self, n_workers: int) -> dict[str, Any]:
        """Return what the scheduler knows of its workers."""
        ...

    def register_plugin(self, plugin: Any) -> object:
        """Give a plugin to all workers."""
        ...

    def forward_logging(self, logger_name: str, level: int) -> object:
        """Have log lines of workers come here."""
        ...
