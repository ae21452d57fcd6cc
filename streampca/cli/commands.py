"""The program and its commands for runs; each command imports its own code, so that ``--help`` answers at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from streampca.cli.completion import complete_key
from streampca.cli.framework import Command, Group
from streampca.cli.output import on_one_line
from streampca.cli.session import Line, Result, session
from streampca.errors import ConfigError
from streampca.version import __version__

if TYPE_CHECKING:
    from streampca.runs.update import Update

_SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY.SUB=VALUE",
    shell_complete=complete_key,
    help="Change a key of the configuration; may be repeated.",
)
_DEVICE = click.option(
    "--device",
    metavar="NAME",
    help="Device that multiplies rows, in place of resources.device: cpu, or cuda or cuda:1 for a graphics card.",
)
_CONFIG = click.argument("config", type=click.Path(path_type=Path))
_RUN = click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="streampca")
def cli() -> None:
    """Principal components of data bigger than memory.

    `streampca COMMAND --help` describes a command. Results go to stdout, progress, log lines and errors to stderr.
    """


@cli.command(
    cls=Command,
    section="Runs",
    examples=(
        "streampca run configs/quickstart.yaml",
        "streampca run job.yaml --set model.n_components=20 --set resources.memory=2GiB",
        "streampca run job.yaml --quiet --json --log-file job.log",
    ),
    statuses=(3, 4, 5, 6, 7),
)
@_CONFIG
@_SET
@_DEVICE
@click.option(
    "--resume",
    is_flag=True,
    help="Resume a stopped run. A finished run is kept; it is an error if neither exists.",
)
@click.option("--fresh", is_flag=True, help="Start over even if a stopped run could be resumed.")
def run(config: Path, overrides: tuple[str, ...], device: str | None, resume: bool, fresh: bool) -> Result:
    """Execute the run of a configuration file.

    CONFIG is a YAML file. The directory of the run receives the model, the scores, a manifest and a report. A stopped
    run resumes where it stopped.
    """
    if resume and fresh:
        raise ConfigError("--resume and --fresh contradict each other: give one of them")
    from streampca.cli.finished import lines_of
    from streampca.runs.run import run as carry_out

    notice, overrides = session().notice, _with_device(overrides, device)
    with session().progress() as progress:
        finished = carry_out(config, overrides=overrides, resume=resume, fresh=fresh, progress=progress, notice=notice)
    return Result(finished.manifest, lines_of(finished))


@cli.command(
    cls=Command,
    section="Runs",
    examples=("streampca plan configs/quickstart.yaml", "streampca plan job.yaml --set model.solver=sketch"),
    statuses=(5, 7),
)
@_CONFIG
@_SET
@_DEVICE
@click.option("--probe", is_flag=True, hidden=True)
def plan(config: Path, overrides: tuple[str, ...], device: str | None, probe: bool) -> Result:
    """Print what a run would do, reading metadata only.

    The plan of CONFIG has passes, bytes to read, peak memory, flops and time, also for the other solvers.
    """
    from streampca.planning.plan import warn_of_probe
    from streampca.runs.config.models import load_any_config
    from streampca.runs.run import plan_run

    if probe:
        warn_of_probe()
    planned = plan_run(load_any_config(config, _with_device(overrides, device)))
    return Result(planned.to_dict(), [(line, 13) for line in str(planned).splitlines()])


def _with_device(overrides: tuple[str, ...], device: str | None) -> tuple[str, ...]:
    """Return the changes of the configuration with that of its device."""
    return overrides if device is None else (*overrides, f"resources.device={device}")


@cli.command(
    cls=Command, section="Runs", examples=("streampca check job.yaml --set model.solver=sketch",), statuses=(6,)
)
@_CONFIG
@_SET
def check(config: Path, overrides: tuple[str, ...]) -> Result:
    """Validate a configuration file without opening the data.

    The status is 2 if CONFIG has a key or value that is not allowed (the message names it), or parameters or outputs
    that exclude each other for any data. It is 6 if the output cannot be written. Use plan for checks that depend on
    the data.
    """
    from streampca.runs.config.models import ModelsConfig, load_any_config
    from streampca.runs.from_config import require_possible
    from streampca.storage.directories import require_writable

    loaded = load_any_config(config, overrides)
    common = loaded.common if isinstance(loaded, ModelsConfig) else loaded
    require_possible(loaded)
    require_writable(common.output.directory)
    kinds = f"models {', '.join(loaded.models)}" if isinstance(loaded, ModelsConfig) else common.model.kind
    place = f"{kinds} of {common.source.path_as_written}, results to {common.output.directory}"
    return Result({"valid": True, "name": common.name}, [f"{config} is valid: {common.name}, {place}"])


@cli.command(cls=Command, section="Runs", examples=("streampca schema --out streampca.schema.json",), statuses=(6,))
@click.option("--out", type=click.Path(path_type=Path), help="Write to this file instead of stdout.")
def schema(out: Path | None) -> Result:
    """Print the JSON Schema of configuration files.

    An editor uses it to complete keys, show their meaning and mark errors.
    """
    from streampca.runs.config.models import json_schema
    from streampca.storage.files import write_atomically

    document = json_schema()
    text = json.dumps(document, indent=2)
    if out is not None:
        write_atomically(out, [text.encode() + b"\n"])
    return Result({"path": None if out is None else str(out), "schema": document}, [text if out is None else str(out)])


@cli.command(cls=Command, section="Runs", examples=("streampca verify runs/digits",), statuses=(5, 7))
@_RUN
@_SET
def verify(run_directory: Path, overrides: tuple[str, ...]) -> Result:
    """Read the data of a run once more and measure its numbers again.

    The numbers are mean, variances, residual, orthonormality and scores.

    If the fingerprint of a store is at its default place, every chunk is compared with it as well. Start the command
    in the directory that RUN was started in, or give --set source.path=…. The status is 5 if anything differs.
    """
    from streampca.runs.run import verify_runs

    with session().progress() as progress:
        results = verify_runs(run_directory, overrides=overrides, progress=progress)

    def lines() -> Iterator[Line]:
        for result in results:
            rows, indent = result.table()
            yield from ((on_one_line(row), indent) for row in rows)
            yield result.summary

    def require() -> None:
        for result in results:
            result.require()

    first, *others = (each.to_dict() for each in results)
    return Result({"runs": [first, *others]} if others else dict(first), lines(), require)


@cli.command(cls=Command, section="Runs", examples=("streampca report runs/digits --row 17",), statuses=(5, 6))
@_RUN
@click.option(
    "--row",
    "rows",
    type=int,
    multiple=True,
    metavar="N",
    help="Add this row of the source, counted from 0, to the figure of reconstructed rows; may be repeated.",
)
def report(run_directory: Path, rows: tuple[int, ...]) -> Result:
    """Rewrite the HTML page of a run.

    The page is report.html in the directory RUN. A run of several models has one page per model, and one that links
    them.
    """
    from streampca.runs.run import write_reports

    pages = [str(page) for page in write_reports(run_directory, rows)]
    return Result({"pages": pages}, pages)


@cli.command(cls=Command, section="Runs", examples=("streampca update runs/embeddings",), statuses=(3, 4, 5, 6, 7))
@_RUN
@_SET
def update(run_directory: Path, overrides: tuple[str, ...]) -> Result:
    """Add rows that are new since a run, reading only these.

    RUN must come from files of rows or zarr arrays, with output.state: true. It becomes the run of all rows. If it
    has scores, they are written again from all rows. The status is 5 if a file or chunk that was read before is
    missing or has changed. A stopped update resumes where it stopped if it has the same memory and threads as before;
    otherwise the interrupted pass may start again. Without new rows the run stays unchanged, and --set output.scores,
    output.reconstruction and output.report have no effect.
    """
    from streampca.runs.update import update as carry_out

    with session().progress() as progress:
        result = carry_out(run_directory, overrides=overrides, progress=progress, notice=session().notice)
    return Result(
        {
            "path": str(run_directory),
            "n_samples": result.run.manifest["source"]["shape"][0],
            "n_samples_added": result.n_rows,
            "files": result.files,
        },
        [_updated(run_directory, result)],
    )


def _updated(directory: Path, result: Update) -> Line:
    """Return in words which rows were added to the run in `directory`."""
    from streampca.formatting import as_text

    rows, read = result.run.manifest["source"]["shape"][0], result.run.manifest["reads"]
    if not result.n_rows:
        return f"{directory} is up to date: it has all {rows:,} rows of the source"
    scores = "; all rows were read once more for the scores" if read["scores"] else ""
    of_files = f" of {len(result.files):,} files" if result.files else ""
    text = f"{result.n_rows:,} new rows{of_files} added, {rows:,} in all"
    return f"{directory}: {text}; read {as_text(read['fit']['bytes'])} for the fit{scores}", 2
