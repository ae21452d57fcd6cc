"""The commands of the command line; each imports what it runs, so that ``--help`` answers at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import click

from streampca.cli.descriptions import IN_WORDS, source_in_words
from streampca.cli.output import notice, on_one_line, print_json, print_wrapped, progress_bar
from streampca.errors import ConfigError
from streampca.version import __version__

if TYPE_CHECKING:
    from streampca.planning.many import ManyPlan
    from streampca.planning.plan import Plan
    from streampca.sources.options import SourceKeywords

_SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY.SUB=VALUE",
    help="Change a key of the configuration; may be given again.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_QUIET = click.option("--quiet", is_flag=True, help="No progress.")


def _names(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """Return the names in a text with commas."""
    return None if value is None else [name.strip() for name in value.split(",")]


_OF_SOURCE = (
    click.option("--array", help="Name of the array within a group."),
    click.option("--variables", metavar="NAME,…", callback=_names, help="Names of several arrays, read side by side."),
    click.option("--samples", metavar="NAME,…", callback=_names, help="Dimensions whose places are the rows."),
    click.option("--features", metavar="NAME,…", callback=_names, help="Dimensions whose places are the columns."),
    click.option("--columns", metavar="NAME,…", callback=_names, help="Columns of Parquet files that are read."),
    click.option("--id-column", help="Column of Parquet files that names the rows."),
    click.option("--mask", help="Features that are used: observed, survey, an .npy file or the name of an array."),
    click.option("--orientation", type=click.Choice(["samples_first", "features_first"]), help="Axes of a 2-D array."),
    click.option("--layer", help="Layer of AnnData that is read in place of X."),
    click.option("--mask-var", help="Column of truth values in var of AnnData: features that are used."),
    click.option("--decode", type=click.Choice(["auto", "raw"]), help="Decode packed values (CF), or read them raw."),
)


def _source_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how a store is read as a table, each None by default."""
    return reduce(lambda inner, option: option(inner), reversed(_OF_SOURCE), command)


_STATUSES = """\b
Exit status:
  0    done
  2    configuration or usage
  3    cluster lost
  4    no space
  5    input missing, damaged or not finite
  6    output locked or not ours to touch
  7    plan exceeds memory
  130  stopped by SIGINT, 143 by SIGTERM"""


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}, epilog=_STATUSES)
@click.version_option(__version__, prog_name="streampca")
def cli() -> None:
    """Principal components of data bigger than memory."""


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@_SET
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped; an error if there is none.")
@click.option("--fresh", is_flag=True, help="Start over even if a stopped run could go on.")
@_QUIET
@_JSON
def run(config: Path, overrides: tuple[str, ...], resume: bool, fresh: bool, quiet: bool, as_json: bool) -> None:
    """Carry out the configuration file CONFIG.

    A run that was stopped goes on from where it was stopped.
    """
    if resume and fresh:
        raise ConfigError("--resume and --fresh contradict each other: give one of them")
    from streampca.cli.finished import print_groups, print_run, readings_of_models
    from streampca.runs.groups import RunOfGroups
    from streampca.runs.many import RunOfModels
    from streampca.runs.many import run as carry_out

    with progress_bar(quiet) as progress:
        finished = carry_out(config, overrides=overrides, resume=resume, fresh=fresh, progress=progress, notice=notice)
    if as_json:
        print_json(finished.manifest)
        return
    if isinstance(finished, RunOfGroups):
        print_groups(finished.directory, finished.manifest)
        return
    if isinstance(finished, RunOfModels):
        for each in finished.runs.values():
            print_run(each.directory, each.manifest)
        click.echo(f"results in {finished.directory}, {readings_of_models(finished.manifest)}")
        return
    print_run(finished.directory, finished.manifest)


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@_SET
@click.option(
    "--probe", is_flag=True, help="Read and fold a few blocks, about a second for each solver, to tell the time."
)
@_JSON
def plan(config: Path, overrides: tuple[str, ...], probe: bool, as_json: bool) -> None:
    """Print what CONFIG would do, reading metadata only.

    Passes, bytes, memory, flops and time, also of the other solvers.
    """
    from streampca.runs.classes import classes_of_samples
    from streampca.runs.config.models import ModelsConfig, load_any_config
    from streampca.runs.from_config import fit_of, source_of
    from streampca.runs.group_labels import group_by_of
    from streampca.runs.groups import plan_of_groups
    from streampca.runs.many import plan_of_models

    loaded = load_any_config(config, overrides)
    common = loaded.common if isinstance(loaded, ModelsConfig) else loaded
    planned: Plan | ManyPlan
    if group_by_of(common) is not None:
        planned = plan_of_groups(common)
    else:
        source = source_of(common)
        classes_of_samples(common, source)  # raises what the run would
        if isinstance(loaded, ModelsConfig):
            planned = plan_of_models(loaded, source)
        else:
            planned = fit_of(loaded).plan(loaded, source, probe=probe)
    if as_json:
        print_json(planned.to_dict())
    else:
        for line in str(planned).splitlines():
            print_wrapped(line, 13)


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@_SET
@_JSON
def check(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Validate CONFIG without opening the data."""
    from streampca.runs.config.models import ModelsConfig, load_any_config

    loaded = load_any_config(config, overrides)
    common = loaded.common if isinstance(loaded, ModelsConfig) else loaded
    if as_json:
        print_json({"valid": True, "name": common.name})
    else:
        kinds = f"models {', '.join(loaded.models)}" if isinstance(loaded, ModelsConfig) else common.model.kind
        click.echo(
            f"{config} is valid: {common.name}, {kinds} of {common.source.path_as_written}, results to {common.output.directory}"
        )


@cli.command()
@click.option("--out", type=click.Path(path_type=Path), help="Write to this file instead of stdout.")
def schema(out: Path | None) -> None:
    """Print the JSON Schema of configuration files.

    With it an editor completes keys, shows what they mean and marks errors.
    """
    from streampca.runs.config.schema import json_schema
    from streampca.storage.files import write_atomically

    if out is None:
        print_json(json_schema())
        return
    write_atomically(out, [json.dumps(json_schema(), indent=2).encode() + b"\n"])
    click.echo(str(out))


@cli.command()
@click.argument("path", type=str)
@_source_options
@_JSON
def inspect(path: str, as_json: bool, **options: Unpack[SourceKeywords]) -> None:
    """Say what PATH is: array, group, model, scores or run.

    For a store also its dimensions, and which source reads it as a table; with options, the table that they make of it.
    """
    from streampca.runs.inspection import inspect_path

    description = inspect_path(path, **options)
    if as_json:
        print_json(description)
        return
    width = max(len(key) for key in description)
    for key, value in description.items():
        if key in IN_WORDS and isinstance(value, list | tuple):
            for entry in value:
                print_wrapped(f"{key:<{width}}  {on_one_line(IN_WORDS[key](entry))}", width + 2)
            continue
        if key == "proposal" and isinstance(value, dict):
            value = f"source: {source_in_words(value)}"
        if key == "certificate" and isinstance(value, dict):
            value = value.get("statement", value)
        text, limit = (value, 1000) if isinstance(value, str) else (json.dumps(value), 300)
        print_wrapped(f"{key:<{width}}  {on_one_line(text if len(text) <= limit else text[:limit] + '…')}", width + 2)


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", type=str)
@click.argument("out", type=click.Path(path_type=Path))
@_source_options
@click.option("--memory", help='Ceiling for the process, such as "2GiB".')
@click.option("--follow-symlinks", is_flag=True, help="Files of SOURCE may be links to places outside of it.")
@click.option("--overwrite", is_flag=True, help="Replace scores that are there already.")
@click.option("--diagnostics", is_flag=True, help="Write T² and Q of the rows beside their scores.")
@_QUIET
@_JSON
def transform(
    model: Path,
    source: str,
    out: Path,
    memory: str | None,
    overwrite: bool,
    diagnostics: bool,
    quiet: bool,
    as_json: bool,
    **options: Unpack[SourceKeywords],
) -> None:
    """Stream the scores of SOURCE to the zarr group OUT.

    MODEL is a model or a run. SOURCE is read as the data of the fit were, with its variables, dimensions and mask, where no
    option says otherwise.
    """
    from streampca.estimators.loading import load
    from streampca.sources.like import open_like
    from streampca.sources.options import given_keywords

    estimator = load(model)
    opened = open_like(source, estimator.labels_, estimator._model.source, given_keywords(options))
    with progress_bar(quiet) as progress:
        estimator.set_params(progress=progress, memory=memory)
        estimator.transform_to(opened, out, overwrite=overwrite, diagnostics=diagnostics)
    shape = [opened.shape[0], estimator.n_components_]
    if as_json:
        print_json({"path": str(out), "array": "scores", "shape": shape})
    else:
        click.echo(f"{out}: array scores, {shape[0]:,} x {shape[1]:,}")


@cli.command()
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
@click.argument("url", type=str)
@_JSON
def publish(directory: Path, url: str, as_json: bool) -> None:
    """Copy RUN, finished, or a model, to URL in an object store.

    There it is whole or not there, and never replaced. Credentials are those of the environment; a run with output.publish takes output.storage_options. What broke off is gone on
    with by the same command.
    """
    from streampca.formatting import as_text
    from streampca.runs.publish import publish as carry_out

    copy = carry_out(directory, url)
    if as_json:
        print_json(asdict(copy))
        return
    present = f", {copy.n_objects - copy.n_written:,} of them were there" if copy.n_written < copy.n_objects else ""
    click.echo(f"{copy.url}: run {copy.run_id}, {copy.n_objects:,} objects, {as_text(copy.n_bytes)}{present}")


@cli.command()
@click.argument("url", type=str)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--overwrite", is_flag=True, help="Replace a result that is there already.")
def fetch(url: str, directory: Path, overwrite: bool) -> None:
    """Copy a published run or model from URL to DIRECTORY.

    Credentials are those of the environment.
    """
    from streampca.runs.publish import fetch as carry_out

    click.echo(str(carry_out(url, directory, overwrite=overwrite)))


@cli.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Where the merged model goes.")
@click.option("--overwrite", is_flag=True, help="Replace a model that is there already.")
@_JSON
def merge(models: tuple[Path, ...], out: Path, overwrite: bool, as_json: bool) -> None:
    """Merge MODEL… into one.

    They are models or runs of disjoint rows, saved with their state; the merged model is saved with its state too.
    """
    from streampca.estimators.merging import merge_saved
    from streampca.storage.directories import require_replaceable

    require_replaceable(out, "model", overwrite=overwrite)
    total = merge_saved(models)
    total.save(out, overwrite=overwrite, state=True)
    k, d = total.components_.shape
    if as_json:
        print_json({"path": str(out), "models": len(models), "n_samples": total.n_samples_seen_, "components": [k, d]})
    else:
        click.echo(f"{out}: {k} components of {total.n_samples_seen_:,} x {d:,} from {len(models)} models")


@cli.command()
@click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))
@_SET
@_QUIET
@_JSON
def verify(run_directory: Path, overrides: tuple[str, ...], quiet: bool, as_json: bool) -> None:
    """Read the data of RUN once more and measure its numbers again.

    These are mean, variances, residual, orthonormality and scores.

    Where the fingerprint of a store is at its default place, every chunk is compared with it too. Call it from the directory that
    the run was made from, or give --set source.path=…; the status is 5 if anything differs.
    """
    from streampca.runs.many import verify_runs

    with progress_bar(quiet) as progress:
        results = verify_runs(run_directory, overrides=overrides, progress=progress)
    if as_json:
        first, *others = (each.to_dict() for each in results)
        print_json({"runs": [first, *others]} if others else dict(first))
    for result in () if as_json else results:
        lines, indent = result.table()
        for line in lines:
            print_wrapped(on_one_line(line), indent)
        click.echo(result.summary)
    for result in results:
        result.require()


@cli.command()
@click.argument("source", type=str)
@click.option("--array", help="Name of the array within a group.")
@click.option("--variables", metavar="NAME,…", callback=_names, help="Names of several arrays, each with a file.")
@click.option("--out", type=click.Path(path_type=Path), help="The file; by default SOURCE.fingerprint.json.")
@click.option(
    "--missing-chunks",
    type=click.Choice(["error", "fill"]),
    default="error",
    show_default=True,
    help="Whether chunks may be missing; the fingerprint says which are.",
)
@click.option("--overwrite", is_flag=True, help="Replace a fingerprint that is there already.")
@_QUIET
@_JSON
def fingerprint(
    source: str,
    array: str | None,
    variables: list[str] | None,
    out: Path | None,
    missing_chunks: str,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Write a digest of every stored chunk of the array SOURCE.

    The digests (xxh3-128) are compared by source.verify and streampca verify.

    SOURCE is a path or URL, or a configuration (.yaml), whose source is taken with its storage_options. Without --out the
    file stands beside a local store, and in the working directory for a URL. Several arrays have a file each.
    """
    from streampca.formatting import as_text
    from streampca.runs.fingerprint import arrays_of, write_fingerprint

    if array is not None and variables is not None:
        raise ConfigError("--array and --variables both name what is read: give one of them")
    arrays = arrays_of(source, variables or ([array] if array else []), missing_chunks)
    if out is not None and len(arrays) > 1:
        raise ConfigError(f"--out is one file, and {source} is {len(arrays)} arrays: leave it out")
    with progress_bar(quiet) as progress:
        made = [write_fingerprint(each, out, overwrite=overwrite, progress=progress) for each in arrays]
    if as_json:
        print_json(made[0].to_dict() if len(made) == 1 else {"fingerprints": [each.to_dict() for each in made]})
        return
    for each in made:
        missing = f", {each.n_missing:,} missing" if each.n_missing else ""
        size = as_text(each.stored_bytes)
        click.echo(f"{each.place}: {each.n_chunks:,} chunks{missing}, {size} stored, xxh3-128 {each.whole}")
