"""Results of a finished run written into the AnnData that it read."""

from __future__ import annotations

from pathlib import Path

from streampca.anndata.results import Keys, Results, stored_scores
from streampca.anndata.writing import require_features_of_var, require_free, slots_at
from streampca.errors import ConfigError
from streampca.models.pca import PCAModel
from streampca.sources import Source
from streampca.sources.cells.description import is_cells
from streampca.sources.cells.several import StackedCells

_CURE = "set output.anndata: overwrite to replace it"


def require_slots(path: str, source: Source, run_id: str, *, replace: bool) -> None:
    """Raise an error if results of a run could not be written into the AnnData at `path`, before anything is read.

    Raises
    ------
    ConfigError
        If the source is not AnnData.
    OutputError
        If there are results of another run already, unless `replace`.
    """
    if not is_cells(source):
        raise ConfigError(
            f"output.anndata: {source.description} is no AnnData: expected an AnnData store, or output.anndata: false"
        )
    if isinstance(getattr(source, "source", None), StackedCells):
        raise ConfigError(
            "output.anndata: source.path names several AnnData, and results are written into one: set it to false"
        )
    layer = source.describe().get("layer")
    require_features_of_var(layer if isinstance(layer, str) else None)
    with slots_at(path, run_id) as slots:
        keys = Keys()
        require_free([] if replace or slots.run_id(keys) == run_id else slots.taken(keys), path, _CURE)


def write_run(path: str, model: PCAModel, scores: Path, run_id: str, *, replace: bool) -> None:
    """Write the results of the run `run_id` into the AnnData at `path`, unless they are there already."""
    keys = Keys()
    with slots_at(path, run_id) as slots:
        if slots.run_id(keys) == run_id:
            return
        require_free([] if replace else slots.taken(keys), path, _CURE)
        slots.directory()
        slots.write(Results.of(model, keys, run_id), stored_scores(scores), replace=replace)
