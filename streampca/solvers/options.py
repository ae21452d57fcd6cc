"""How a fit is run: on which workers, with whom told of its progress, and what is taken from the stream beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.joint import Joint
from streampca.accumulators.rows import RowSample, RowsState
from streampca.execution.drive import accumulate
from streampca.execution.progress import ProgressCallback
from streampca.parameters import Parameters
from streampca.planning.plan import Plan
from streampca.solvers.quality import QualityReading
from streampca.solvers.removing import Removing
from streampca.sources.base import ReadCount, Source
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from streampca.system.distributed_interface import DaskClient


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not change its result."""

    client: DaskClient | None = None
    """Dask client whose workers read; None = threads of this process."""
    progress: ProgressCallback | None = None
    """Called with a `Progress` as blocks finish."""
    keep_rows: int = 0
    """Rows to copy out of the stream, for a report."""
    removing: Removing | None = None
    """What is removed from the rows as they are read; None = nothing."""
    quality: QualityReading | None = None
    """What examines the rows in the first reading; None = nothing."""

    def sample_of(self, source: Source) -> RowSample:
        """Return the accumulator that copies the rows."""
        return RowSample(source.shape[0], self.keep_rows, str(source.dtype))

    def accumulate(
        self,
        source: Source,
        accumulator: AnyAccumulator,
        plan: Plan,
        weights: FloatArray | None = None,
        phase: str = "fit",
    ) -> tuple[Any, ReadCount]:
        """Read `source` once and return the state of all rows, and what reading cost."""

        def read(source: Source, accumulator: AnyAccumulator) -> tuple[Any, ReadCount]:
            def once(accumulator: AnyAccumulator) -> tuple[Any, ReadCount]:
                return accumulate(
                    source, accumulator, plan, client=self.client, progress=self.progress, weights=weights, phase=phase
                )

            if self.quality is None or self.quality.found is not None:
                return once(accumulator)
            return self.quality.joined(accumulator, once)

        if self.removing is None:
            return read(source, accumulator)
        return self.removing.accumulate(source, accumulator, read)

    def accumulate_and_sample(
        self,
        source: Source,
        accumulator: AnyAccumulator,
        plan: Plan,
        parameters: Parameters,
        phase: str = "fit",
    ) -> tuple[Any, RowsState | None, ReadCount]:
        """Read `source` once; return the state of all rows, the copied ones, and the cost."""
        weights = parameters.sample_weight
        if not self.keep_rows:
            state, count = self.accumulate(source, accumulator, plan, weights, phase)
            return state, None, count
        joint = Joint((accumulator, self.sample_of(source)))
        (state, samples), count = self.accumulate(source, joint, plan, weights, phase)
        return state, samples, count
