"""Commands for fitted models: scores, merging, export to formats of other programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from streampca.cli.commands import cli
from streampca.cli.completion import complete_source
from streampca.cli.framework import Command
from streampca.cli.session import Result, session
from streampca.cli.stores import source_options

_MEMORY = click.option("--memory", metavar="SIZE", help='Ceiling for the process, such as "2GiB".')
_DEVICE = click.option(
    "--device",
    metavar="NAME",
    default="cpu",
    help="Device that multiplies rows: cpu, or cuda or cuda:1 for a graphics card.",
)


@cli.command(
    cls=Command,
    section="Models",
    examples=("streampca transform runs/digits builtin:digits digit-scores.zarr",),
    statuses=(4, 5, 6, 7),
)
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", type=str, shell_complete=complete_source)
@click.argument("out", type=click.Path(path_type=Path))
@source_options
@_MEMORY
@_DEVICE
@click.option("--follow-symlinks", is_flag=True, hidden=True)
@click.option("--overwrite", is_flag=True, help="Replace existing scores.")
@click.option("--diagnostics", is_flag=True, help="Also write T² and Q of the rows.")
def transform(
    model: Path,
    source: str,
    out: Path,
    memory: str | None,
    device: str,
    overwrite: bool,
    diagnostics: bool,
    **options: Any,
) -> Result:
    """Stream the scores of a store to a zarr group.

    MODEL is a model or a run. SOURCE is read like the data of the fit, with the same variables, dimensions and mask
    unless options change them. OUT is the new group; its array is called scores.
    """
    from streampca.estimators.loading import load
    from streampca.sources.like import open_like

    estimator = load(model)
    if device != "cpu":
        estimator.set_params(device=device)
    opened = open_like(
        source,
        estimator.labels_,
        estimator._model.source,
        {name: value for name, value in options.items() if value is not None},
    )
    with session().progress() as progress:
        estimator.set_params(progress=progress, memory=memory)
        estimator.transform_to(opened, out, overwrite=overwrite, diagnostics=diagnostics)
    shape = [opened.shape[0], estimator._model.n_components]
    return Result(
        {"path": str(out), "array": "scores", "shape": shape}, [f"{out}: array scores, {shape[0]:,} x {shape[1]:,}"]
    )


@cli.command(
    cls=Command,
    section="Models",
    examples=("streampca merge january.zarr february.zarr --out winter.zarr",),
    statuses=(4, 5, 6),
)
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Path of the merged model.")
@click.option("--overwrite", is_flag=True, help="Replace an existing model.")
def merge(models: tuple[Path, ...], out: Path, overwrite: bool) -> Result:
    """Merge models of different rows into one.

    Each MODEL is a model or a run, saved with its state; no two may share rows. The merged model is saved with its
    state too.
    """
    from streampca.estimators.loading import merge_saved
    from streampca.storage.directories import require_replaceable

    require_replaceable(out, "model", overwrite=overwrite)
    total = merge_saved(models)
    total.save(out, overwrite=overwrite, state=True)
    k, d = total.components_.shape
    return Result(
        {"path": str(out), "models": len(models), "n_samples": total.n_samples_seen_, "components": [k, d]},
        [f"{out}: {k} components of {total.n_samples_seen_:,} x {d:,} from {len(models)} models"],
    )


@cli.command(
    cls=Command,
    section="Models",
    examples=("streampca export runs/digits digits.onnx", "streampca export runs/digits loadings.csv"),
    statuses=(4, 5, 6, 7),
)
@click.argument("model", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace an existing file of this format.")
@_MEMORY
def export(model: Path, out: Path, overwrite: bool, memory: str | None) -> Result:
    """Write a model in the format of another program.

    RUN is a run or a model. The suffix of OUT selects the format: .onnx, .faiss, .npz, .nc, or .csv for a table of
    the loadings. Models that the format cannot express are refused. The printed line states the error of scores in
    float32.
    """
    from streampca.estimators.exporting import export as carry_out
    from streampca.estimators.loading import load

    estimator = load(model).set_params(memory=memory)
    exported = carry_out(estimator, out, overwrite=overwrite)
    document = asdict(exported)
    document["score_error"] = document.pop("error")  # `error` is that of a command that failed
    return Result(document, [str(exported)])
