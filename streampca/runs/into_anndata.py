"""Results of a run that are written into the AnnData that it read."""

from __future__ import annotations

from pathlib import Path

from streampca.anndata.of_runs import require_slots, write_run
from streampca.errors import ConfigError, OutputError
from streampca.models.persistence.models import load_model
from streampca.runs.config import RunConfig
from streampca.sources import Source
from streampca.storage.directories import read_record


def require_free_slots(config: RunConfig, source: Source, *, resume: bool) -> None:
    """Raise an error if the results could not be written into the AnnData of the source, before anything is read."""
    written = config.output.anndata
    if not written:
        return
    if config.model.kind != "pca":
        raise ConfigError(f"output.anndata: expected kind: pca, found {config.model.kind}")
    record = read_record(config.output.directory) if resume else None
    require_slots(source.description, source, str((record or {}).get("run_id", "")), replace=written == "overwrite")


def write_into_anndata(config: RunConfig, source: Source, directory: Path, run_id: str) -> None:
    """Write the results of the finished run in `directory` into the AnnData that it read, if `config` asks for it."""
    path, written = source.description, config.output.anndata
    if not written:
        return
    model, scores = load_model(directory / "model.zarr"), directory / "scores.zarr"
    try:
        write_run(path, model, scores, run_id, replace=written == "overwrite")
    except OutputError as error:
        raise OutputError(
            f"{error}; the run itself is finished, in {directory}: with --resume only this is done"
        ) from error
