"""What a fit asks of one reading of its source, and who answers where several fits share their readings.

Who answers is a context variable, so that solvers need not pass it on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from streampca.accumulators.base import AnyAccumulator
from streampca.execution.progress import ProgressCallback
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount, Source
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.system.distributed_interface import DaskClient


@dataclass(frozen=True)
class Reading:
    """One reading of a source into the states of an accumulator, see `drive.accumulate`."""

    source: Source
    """Where the rows come from."""
    accumulator: AnyAccumulator
    """What is accumulated."""
    plan: Plan
    """Blocks, leaves and threads."""
    client: DaskClient | None = None
    """Dask client whose workers read; None = threads of this process."""
    progress: ProgressCallback | None = None
    """Called as blocks finish."""
    weights: FloatArray | None = None
    """Sample weights, ``(n_samples,)``; None = all 1."""
    phase: str = "fit"
    """Name of the reading, for progress and checkpoints."""


class SharedReader(Protocol):
    """Answers the readings of a fit together with those of other fits."""

    def read(self, reading: Reading) -> tuple[Any, ReadCount]:
        """Return the state of all rows and what reading them cost."""
        ...


_in_use: ContextVar[SharedReader | None] = ContextVar("streampca shared reader", default=None)


@contextmanager
def sharing(reader: SharedReader | None) -> Iterator[None]:
    """Have `reader` answer the readings of this block; None = each is read by itself."""
    token = _in_use.set(reader)
    try:
        yield
    finally:
        _in_use.reset(token)


def reader_in_use() -> SharedReader | None:
    """Return who answers the readings of the fit in progress, None where it reads by itself."""
    return _in_use.get()
