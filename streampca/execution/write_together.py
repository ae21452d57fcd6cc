"""Scores of several models from one reading: every block is projected by each model and written to a store of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from streampca.block import Block
from streampca.execution.leaf import Task
from streampca.execution.progress import ProgressCallback
from streampca.execution.write import ScoreTask, write_by_rows
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.removal import residuals_of
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import ReadCount, Source
from streampca.sources.naming import naming_places
from streampca.sources.residuals import ResidualSource

if TYPE_CHECKING:
    from streampca.storage.zarr_interface import ZarrArray

_Arrays = tuple["tuple[ZarrArray, ...] | None", ...]


@dataclass(frozen=True)
class ScoreTasks(Task[_Arrays]):
    """Write the scores of several models from the same blocks; the state are the arrays of each, once they are open."""

    common: ClassVar[str] = "models"
    """Name of the field that all leaves share."""
    source: Source
    """Source of the rows."""
    models: tuple[PCAModel | KernelModel, ...]
    """Models that transform them."""
    paths: tuple[Path, ...]
    """Path of the zarr group of each."""
    residuals: tuple[ResidualSource | None, ...]
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

    def init(self, leaf: Leaf) -> _Arrays:
        """Return nothing for each model: the first block opens the arrays."""
        return (None,) * len(self.models)

    def update(self, state: _Arrays, block: Block) -> _Arrays:
        """Write the scores of `block` by every model; raises what `ScoreTask.update` raises."""
        rows = (block if each is None else each.residuals(block) for each in self.residuals)
        each = zip(self.writers, state, rows, strict=True)
        return tuple(writer.update(arrays, part) for writer, arrays, part in each)


@naming_places
def write_scores_of_models(
    source: Source,
    models: Mapping[Path, PCAModel | KernelModel],
    plan: Plan,
    *,
    progress: ProgressCallback | None = None,
    diagnostics: bool = False,
) -> ReadCount:
    """Read `source` once more and write the scores of every model to a new zarr group, as `write_scores` does for one.

    Parameters
    ----------
    source : Source
        The rows; those of a model that removes something are computed from them.
    models : mapping of Path to model
        The path of the group of each model.
    plan : Plan
        Blocks of rows and leaves.
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
    task = ScoreTasks(source, tuple(models.values()), paths, _residuals(source, list(models.values())), diagnostics)
    with source.reading():
        return write_by_rows(task, task.writers, plan, progress)


def _residuals(source: Source, models: Sequence[PCAModel | KernelModel]) -> tuple[ResidualSource | None, ...]:
    """Return for each model the source without what it removes, None where that is `source` itself."""
    rows = (residuals_of(source, model) for model in models)
    return tuple(each if isinstance(each, ResidualSource) and each is not source else None for each in rows)
