"""The task that computes the scores of a leaf and writes them, with sums of their products by groups of rows where asked for."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from streampca.accumulators.score_groups import GroupMoments
from streampca.block import Block
from streampca.errors import OutputError
from streampca.execution.leaf import Task
from streampca.execution.score_groups import GroupsOfRows, ScoreGroups
from streampca.models.diagnostics import row_diagnostics
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.scoring import require_finite_scores
from streampca.planning.shape import Leaf
from streampca.sources.base import Source
from streampca.storage.directories import DIAGNOSTICS
from streampca.storage.zarr_interface import opened_for_writing
from streampca.system.workspace import borrow
from streampca.typing import Array

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ZarrArray

_State = TypeVar("_State")
Sums = tuple[GroupMoments | None, ...]
"""Sums for each of several models, None for those that have none."""


@dataclass(frozen=True)
class WrittenScores:
    """What a leaf of scores has beside what is in the store."""

    arrays: tuple[ZarrArray, ...] = ()
    """The arrays that are written, once they are open."""
    moments: GroupMoments | None = None
    """Sums of products of the scores by groups of rows, where they are asked for."""


class WritingTask(Task[_State]):
    """A task that writes the scores of one model or of several."""

    @property
    @abstractmethod
    def writers(self) -> tuple[ScoreTask, ...]:
        """Return the task of each model alone, for rows without what it removes."""

    @abstractmethod
    def written(self, state: _State) -> tuple[WrittenScores, ...]:
        """Return what the result of a leaf has for each model."""

    @property
    def no_sums(self) -> Sums | None:
        """Return the sums of no rows for each model; None where no model has any."""
        moments = tuple(writer.no_moments for writer in self.writers)
        return None if all(each is None for each in moments) else moments

    def with_sums(self, total: Sums | None, state: _State) -> Sums | None:
        """Return the sums of the leaves so far with those of the next one."""
        if total is None:
            return None
        pairs = zip(total, self.written(state), strict=True)
        return tuple(None if sums is None or one.moments is None else sums.absorb(one.moments) for sums, one in pairs)


@dataclass(frozen=True)
class ScoreTask(WritingTask[WrittenScores]):
    """Transform the blocks of a leaf and write each as one chunk."""

    common: ClassVar[str] = "model"
    """Name of the field that all leaves share."""
    source: Source
    """Source of the rows."""
    model: PCAModel | KernelModel
    """Model that transforms them."""
    path: Path
    """Path of the zarr group."""
    diagnostics: bool = False
    """Whether T² and Q of the rows are written, too."""
    groups: GroupsOfRows | None = None
    """Groups of which products of scores are summed; None = no sums."""

    def for_leaf(self, leaf: Leaf) -> ScoreTask:
        """Return the task with no more of the source, and of the sample weights, than `leaf` needs."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        groups = None if self.groups is None else self.groups.slice(start, stop)
        return replace(self, source=self.source.slice(start, stop), groups=groups)

    @property
    def writers(self) -> tuple[ScoreTask, ...]:
        """Return the task itself."""
        return (self,)

    def written(self, state: WrittenScores) -> tuple[WrittenScores, ...]:
        """Return the result of a leaf."""
        return (state,)

    @property
    def no_moments(self) -> GroupMoments | None:
        """Return the sums of no rows; None where none are asked for."""
        model = self.model
        n_features = model.n_features if isinstance(model, KernelModel) else len(model.mean)
        return None if self.groups is None else self._score_groups(self.groups).init(n_features)

    def init(self, leaf: Leaf) -> WrittenScores:
        """Return the sums of no rows; the first block opens the arrays."""
        return WrittenScores(moments=self.no_moments)

    def update(self, state: WrittenScores, block: Block) -> WrittenScores:
        """Transform `block` and write its scores, and T² and Q; add its products of scores to the sums.

        Raises
        ------
        NotFiniteError
            If rows or scores hold NaN or infinity.
        OutputError
            If the directory was removed.
        """
        n_rows = len(block)
        with np.errstate(over="ignore", invalid="ignore"):
            values = self._values(block)
        scores = values[0]
        require_finite_scores(self.model, block.values, scores, block.start)
        if not (self.path / "zarr.json").exists():  # zarr would make the directories again, for nobody
            raise OutputError(
                f"{self.path} is gone: the run that scores were written for has ended, or somebody removed it"
            )
        arrays, moments = state.arrays, state.moments
        if not arrays:
            names = ("scores", *DIAGNOSTICS)[: len(values)]
            arrays = tuple(opened_for_writing(self.path / name) for name in names)
        for array, value in zip(arrays, values, strict=True):
            array[block.start : block.start + n_rows] = value
        if moments is not None and self.groups is not None:
            moments = moments.absorb(self._moments(self.groups, block, values))
        return WrittenScores(arrays, moments)

    def _score_groups(self, groups: GroupsOfRows) -> ScoreGroups:
        return ScoreGroups(self.model, groups.n_samples, groups.n_groups)

    def _moments(self, groups: GroupsOfRows, block: Block, values: list[Array]) -> GroupMoments:
        """Return the sums of the rows of `block`, whose scores, and T² and Q, are `values`."""
        scores, model = values[0], self.model
        if isinstance(model, PCAModel) and model.whiten:
            deviations = np.where(np.isfinite(model.deviations), model.deviations, 0.0)
            scores = scores * deviations
        weighted = block if groups.weights is None else groups.weights.on(block)
        return self._score_groups(groups).moments(weighted, scores, values[2] if len(values) > 2 else None)

    def _values(self, block: Block) -> list[Array]:
        """Return the scores of the rows of `block`, and T² and Q; of rows that all equal one another those of one are copied."""
        out = borrow("scores", (len(block), self.model.n_components), self.model.score_dtype(self.source.dtype))
        others, equal = block.apart()
        runs = block.equal if equal is not None else ()
        parts = [(other, slice(other.start - block.start, other.start - block.start + len(other))) for other in others]
        parts += [(block.slice(first, first + 1), slice(first, last)) for first, last in runs[:1]]
        values = [out]
        if self.diagnostics and isinstance(self.model, PCAModel):
            values += [np.empty(len(block)) for _ in DIAGNOSTICS]
        for part, rows in parts:
            scores = self.model.transform(part.values, out[rows.start : rows.start + len(part)])
            if self.diagnostics and isinstance(self.model, PCAModel):
                for value, one in zip(values[1:], row_diagnostics(self.model, part.values, scores), strict=True):
                    value[rows] = one
        for first, last in runs:
            out[first:last] = out[runs[0][0]]
            for value in values[1:]:
                value[first:last] = value[runs[0][0]]
        return values

    def finish(self, state: WrittenScores) -> WrittenScores:
        """Return the sums alone: scores are in the store."""
        return WrittenScores(moments=state.moments)
