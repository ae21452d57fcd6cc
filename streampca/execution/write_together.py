"""Scores of several models from one reading: every block is projected by each model and written to a store of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from streampca.accumulators.wrappers import columns_of_block
from streampca.block import Block
from streampca.execution.progress import ProgressCallback
from streampca.execution.score_task import Arrays, ScoreTask, WritingTask
from streampca.execution.write import write_by_rows
from streampca.models.pca import Model
from streampca.models.rows import residuals_step
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.sources.naming import naming_places
from streampca.sources.residuals import RowResiduals
from streampca.sources.subsets import part_of
from streampca.typing import IntArray

_Written = tuple[Arrays, ...]


@dataclass(frozen=True)
class ScoreTasks(WritingTask[_Written]):
    """Write the scores of several models from the same blocks; the state has one entry for each."""

    common: ClassVar[str] = "models"
    """Name of the field that all leaves share."""
    source: Source
    """Source of the rows."""
    models: tuple[Model, ...]
    """Models that transform them."""
    paths: tuple[Path, ...]
    """Path of the zarr group of each."""
    columns: tuple[IntArray | None, ...]
    """For each model which features it has; None for all."""
    residuals: tuple[RowResiduals | None, ...]
    """For each model what takes from the rows what it removes; None where it removes nothing."""
    diagnostics: bool = False
    """Whether T² and Q of the rows are written, too."""

    @property
    def writers(self) -> tuple[ScoreTask, ...]:
        """Return the task of each model alone, for rows without what it removes."""
        models = zip(self.models, self.paths, strict=True)
        return tuple(ScoreTask(self.source, model, path, self.diagnostics) for model, path in models)

    def for_leaf(self, leaf: Leaf) -> ScoreTasks:
        """Return the task with no more of the source than `leaf` needs."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        residuals = tuple(None if each is None else each.slice(start, stop) for each in self.residuals)
        return replace(self, source=self.source.slice(start, stop), residuals=residuals)

    def init(self, leaf: Leaf) -> _Written:
        """Return nothing for each model; the first block opens the arrays."""
        return tuple(writer.init(leaf) for writer in self.writers)

    def update(self, state: _Written, block: Block) -> _Written:
        """Write the scores of `block` by every model; raises what `ScoreTask.update` raises."""
        each = zip(self.writers, state, self.columns, self.residuals, strict=True)
        return tuple(
            writer.update(one, self._rows(block, columns, residuals)) for writer, one, columns, residuals in each
        )

    def _rows(self, block: Block, columns: IntArray | None, residuals: RowResiduals | None) -> Block:
        """Return the rows of `block` that a model transforms."""
        if columns is not None:
            block = columns_of_block(block, columns, column_major=self.source.column_major)
        return block if residuals is None else residuals.of_block(block, column_major=self.source.column_major)

    def finish(self, state: _Written) -> _Written:
        """Return nothing for each model: scores are in the store."""
        return tuple(writer.finish(one) for writer, one in zip(self.writers, state, strict=True))


@naming_places
def write_scores_of_models(
    source: Source,
    models: Mapping[Path, Model],
    plan: Plan,
    *,
    tables: Mapping[Path, Source] | None = None,
    progress: ProgressCallback | None = None,
    diagnostics: bool = False,
) -> ReadCount:
    """Read `source` once more and write the scores of every model to a new zarr group, as `write_scores` does for one.

    Return what reading cost.

    Parameters
    ----------
    source : Source
        The rows; those of a model that removes something are computed from them.
    models : mapping of Path to model
        The path of the group of each model.
    plan : Plan
        Blocks of rows and leaves.
    tables : mapping of Path to Source, optional
        For models that have some of the features, these features of `source` (`streampca.sources.subsets`).
    progress : callable, optional
        Called with a `Progress` as blocks finish.
    diagnostics : bool
        Whether T² and Q of the rows are written, too; all models are linear then.

    Raises
    ------
    NoSpaceError, DataError
        As `write_scores`.
    """
    paths = tuple(path.absolute() for path in models)  # workers may have another working directory
    own = [source if tables is None else tables.get(path, source) for path in models]
    chosen = [part_of(each)[1] for each in own]
    columns = tuple(None if each is None else each.columns for each in chosen)
    residuals = tuple(residuals_step(each, model) for each, model in zip(own, models.values(), strict=True))
    task = ScoreTasks(source, tuple(models.values()), paths, columns, residuals, diagnostics)
    with source.reading():
        return write_by_rows(task, plan, progress)
