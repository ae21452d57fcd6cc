"""Results of a pass over the source and of a fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streampca.accumulators import Covariance, ExactIntegerCovariance
from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.quality import STATISTICS, Quality, Statistic
from streampca.formatting import plural
from streampca.models import certificate_sentences as sentences
from streampca.models.pca import Model, PCAModel
from streampca.models.rotated import rotate
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.parameters.statement import Rotation
from streampca.planning.plan import Plan
from streampca.sources.base import ReadCount, Source
from streampca.typing import FloatArray, Json

if TYPE_CHECKING:
    from streampca.accumulators import RowsState


@dataclass(frozen=True)
class Accumulated:
    """The state after one pass over the source, before anything is solved."""

    accumulator: AnyAccumulator
    """The accumulator that merges and finalizes the state."""
    state: Any
    """The accumulated state."""
    n_left_out: int = 0
    """Rows that were left out because values are missing in them."""
    groups: tuple[Any, ...] = ()
    """States of groups of these rows, for cross-validation or sampling errors; empty where no reading kept them."""

    def fitted_state(self, source: Source, parameters: Parameters, plan: Plan) -> FittedState:
        """Return the state with the configuration that it was made with, so that it can be continued."""
        integers = parameters.sample_weight is None and parameters.forgetting == 1
        integers = integers and parameters.remove is None
        integers = integers and isinstance(self.accumulator, Covariance) and ExactIntegerCovariance.takes(source.dtype)
        return FittedState(
            solver=plan.solver,
            accumulator=self.accumulator,
            state=self.state,
            parameters=replace(parameters, sample_weight=None),
            work_dtype=plan.work_dtype,
            source=source.describe(),
            exact=integers,
            weighted=parameters.weighted,
            n_left_out=self.n_left_out,
            labels=None if source.labels is None else source.labels.without_sample_coordinates(),
            fragments=source.fragments,
            groups=self.groups,
        )


@dataclass(frozen=True, kw_only=True)
class FitResult(ABC):
    """A finished fit of either kind of PCA."""

    model: Model
    """The model."""
    plan: Plan
    """The plan that was carried out."""
    samples: RowsState | None = None
    """Rows copied out of the stream, where asked for."""
    count: ReadCount = field(default_factory=ReadCount)
    """Chunks and bytes that were read."""
    stream_seconds: float = 0.0
    """Time of the passes over the source."""
    solve_seconds: float = 0.0
    """Time of the eigenproblems."""
    n_passes: int | None = None
    """Passes over the whole source; None = as planned."""
    fitted_state: FittedState | None = None
    """The state of linear PCA, to be merged and continued; None where the solver keeps none."""
    quality: QualityFound | None = None
    """What the reading says of the quality of the data; None where that was not asked for."""
    scores: FloatArray | None = None
    """Scores of all samples where the solver has them without reading again, ``(n_samples, k)``."""
    updates: tuple[Json, ...] = ()
    """One entry for each time that new rows were added to a finished run, for its manifest."""

    @property
    def passes(self) -> int:
        """Return how many passes over the whole source the fit took."""
        return self.plan.passes if self.n_passes is None else self.n_passes

    def summary(self) -> Json:
        """Return the result as the manifest of a run records it; all of it follows from the model."""
        return self.model.summary()

    @property
    def has_scores(self) -> bool:
        """Tell whether the solver has the scores of all rows as they are written, without another reading."""
        return self.scores is not None

    @abstractmethod
    def warnings(self) -> list[str]:
        """Return sentences about what limits the use of the result, or makes it other than was asked for."""

    def notes(self, source: Source) -> list[str]:
        """Return sentences about facts that follow from the data and from what was asked for, and do not limit the result."""
        notes = [*self.plan.notes, *self.model.notes()]
        if source.missing_chunks_filled:
            notes.append(
                f"{plural(source.missing_chunks_filled, 'chunk was', 'chunks were')} missing and read as the fill value, as requested"
            )
        if self.updates:
            added = self.updates[-1]["n_samples_added"]
            notes.append(
                f"updated {plural(len(self.updates), 'time')}: the fit read the {added:,} new rows and added them to the "
                f"state of the other {source.shape[0] - added:,}"
            )
        return notes

    def write_known_scores(self, source: Source, path: Path) -> bool:
        """Write the scores of all rows of `source` to `path` if the solver has them; tell whether it has."""
        if self.scores is not None and self.model.linear is not None:
            from streampca.execution.write import write_known_scores  # here, because it imports zarr

            write_known_scores(source, self.model.linear, self.scores, path)
        return self.scores is not None


@dataclass(frozen=True, kw_only=True)
class Fit(FitResult):
    """A finished fit of linear PCA."""

    model: PCAModel
    """The model."""

    def warnings(self) -> list[str]:
        """Return sentences about what limits the use of the result, or makes it other than was asked for."""
        model, warnings = self.model, []
        if model.numerical_rank < len(model.components):
            warnings.append(
                f"only {model.numerical_rank} of {len(model.components)} components stand above rounding: the others span directions without variance"
            )
        warnings += sentences.clipped(model.certificate.clipped_mass or 0.0, model.total_variance)
        return warnings + model.concerns + sentences.warnings_of_pca(model.certificate, self.plan.sketch)

    def rotated(self, method: Rotation) -> Fit:
        """Return the fit with its components rotated, which keeps no state; errors are those of `streampca.PCA.rotate`."""
        model = rotate(self.model, method=method)
        scores = None if self.scores is None else self.scores @ model.turn
        return replace(self, model=model, scores=scores, fitted_state=None)


@dataclass(frozen=True)
class QualityFound:
    """What a reading says of the quality of the data."""

    accumulators: tuple[AnyAccumulator, ...]
    """A `Quality`, which says what was examined, and the `STATISTICS`."""
    states: tuple[Any, ...]
    """Their states."""

    @property
    def quality(self) -> Quality:
        """Return which rows and features were examined."""
        quality = self.accumulators[0]
        assert isinstance(quality, Quality)  # noqa: S101 for the type checker: `examining` has it first
        return quality

    def statistics(self) -> Iterator[tuple[Statistic, FloatArray]]:
        """Yield the further statistics with their sums."""
        for statistic, state in zip(self.accumulators[1:], self.states[1:], strict=True):
            assert isinstance(statistic, Statistic)  # noqa: S101 as above
            yield statistic, statistic.finalize(state)


def examining(source: Source, missing: str, *, by_features: bool = False) -> tuple[AnyAccumulator, ...]:
    """Return what examines the rows of `source`, with the parameter `missing`: a `Quality`, and the `STATISTICS` of the same rows and features."""
    may_miss = missing != "error" and source.dtype.kind == "f"
    quality = replace(Quality.of(source.shape, str(source.dtype), missing=may_miss), by_features=by_features)
    return (quality, *(kind(quality) for kind in STATISTICS))


def quality_bytes(source: Source, threads: int, missing: str) -> int:
    """Return what data quality takes beside a fit: 2 N + 2 states and N times the scratch of an update, N = `threads` (``docs/reference/memory-formulas.md``)."""
    accumulators, (n, d) = examining(source, missing), source.shape
    scratch = max(each.scratch_bytes(d, n, source.dtype.itemsize) for each in accumulators)
    return (2 * threads + 2) * sum(each.state_bytes(d) for each in accumulators) + threads * scratch
