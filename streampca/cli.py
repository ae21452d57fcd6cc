"""The command: results on stdout, progress and errors on stderr, one line for each error, and an exit status."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import click

from streampca.errors import ConfigError, StreamPCAError
from streampca.redaction import redacted
from streampca.storage.signals import StopSignalError, deliver, forget
from streampca.version import __version__

_SET = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY.SUB=VALUE",
    help="Change a key of the configuration; may be given again.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
_QUIET = click.option("--quiet", is_flag=True, help="No progress.")


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
    from streampca.runs.run import run as carry_out

    with _progress(quiet) as progress:
        finished = carry_out(config, overrides=overrides, resume=resume, fresh=fresh, progress=progress, notice=_notice)
    if as_json:
        _print_json(finished.manifest)
        return
    manifest, directory = finished.manifest, finished.directory
    from streampca.formatting import as_text
    from streampca.runs.summary import accuracy, carried

    result, memory, said = manifest["result"], manifest["memory"], manifest["certificate"]
    rows, features = manifest["source"]["shape"]
    carry = f"components of {rows:,} x {features:,} carry {carried(said)} of the variance"
    _print_wrapped(f"{_plain(manifest['name'])}: {result['n_components']} {carry}", 2)
    sure = accuracy(said, manifest["approximation"])
    if sure is not None:
        _print_wrapped(f"approximate: {sure}", 2)
    reads = f"{manifest['passes']} pass{'es' if manifest['passes'] > 1 else ''} for the fit" + (
        ", 1 for the scores" if manifest["reads"]["scores"] else ""
    )
    _print_wrapped(
        f"read {as_text(manifest['reads']['fit']['bytes'])} ({reads}) in {manifest['seconds']['total']:.1f} s; peak memory "
        f"{as_text(memory['peak_bytes'])}, projected {as_text(memory['projected_bytes'])}, allowed {as_text(memory['allowed_bytes'])}",
        2,
    )
    for label in ("warning", "note"):
        for sentence in manifest.get(f"{label}s", ()):
            _print_wrapped(f"{label}: {_plain(sentence)}", len(label) + 2)
    click.echo(
        f"results in {directory}"
        + (f"; report: {directory / 'report.html'}" if (directory / "report.html").exists() else "")
    )


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
    from streampca.runs.config import load_config
    from streampca.runs.run import parameters_of, plan_of, source_of

    loaded = load_config(config, overrides)
    planned = plan_of(loaded, source_of(loaded), parameters_of(loaded), probe=probe)
    if as_json:
        _print_json(planned.to_dict())
    else:
        for line in str(planned).splitlines():
            _print_wrapped(line, 13)


@cli.command()
@click.argument("config", type=click.Path(path_type=Path))
@_SET
@_JSON
def check(config: Path, overrides: tuple[str, ...], as_json: bool) -> None:
    """Validate CONFIG without opening the data."""
    from streampca.runs.config import load_config

    loaded = load_config(config, overrides)
    if as_json:
        _print_json({"valid": True, "name": loaded.name})
    else:
        click.echo(
            f"{config} is valid: {loaded.name}, {loaded.model.kind} of {loaded.source.path_as_written}, results to {loaded.output.directory}"
        )


@cli.command()
@click.argument("path", type=str)
@click.option("--array", help="Name of the array within a group.")
@_JSON
def inspect(path: str, array: str | None, as_json: bool) -> None:
    """Say what PATH is: array, group, model, scores or run."""
    from streampca.runs.inspection import inspect_path

    found = inspect_path(path, array)
    if as_json:
        _print_json(found)
        return
    width = max(len(key) for key in found)
    for key, value in found.items():
        if key == "arrays":
            for entry in value:
                _print_wrapped(f"{key:<{width}}  {_plain(_array_in_words(entry))}", width + 2)
            continue
        told = value.get("statement", value) if key == "certificate" and isinstance(value, dict) else value
        text, limit = (told, 1000) if isinstance(told, str) else (json.dumps(told), 300)
        shown = text if len(text) <= limit else text[:limit] + "…"
        _print_wrapped(f"{key:<{width}}  {_plain(shown)}", width + 2)


def _array_in_words(entry: dict[str, Any]) -> str:
    shape, chunks = (" x ".join(f"{n:,}" for n in entry[key]) or "a single value" for key in ("shape", "chunks"))
    return f"{entry['name']}: {shape}, {entry['dtype']}, chunks {chunks}"


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("source", type=str)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--array", help="Name of the array within a group.")
@click.option(
    "--orientation", type=click.Choice(["samples_first", "features_first"]), default="samples_first", show_default=True
)
@click.option("--memory", help='Ceiling for the process, such as "2GiB".')
@click.option("--follow-symlinks", is_flag=True, help="Files of SOURCE may be links to places outside of it.")
@click.option(
    "--decode",
    type=click.Choice(["auto", "raw"]),
    default="auto",
    show_default=True,
    help="Whether packed values (CF conventions) are refused, or read as they are stored.",
)
@click.option("--overwrite", is_flag=True, help="Replace scores that are there already.")
@_QUIET
@_JSON
def transform(
    model: Path,
    source: str,
    out: Path,
    array: str | None,
    orientation: str,
    memory: str | None,
    follow_symlinks: bool,
    decode: str,
    overwrite: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Stream the scores of SOURCE to the zarr group OUT.

    MODEL is a model or a run.
    """
    from streampca.estimators import load
    from streampca.sources import open_source

    estimator = load(model)
    opened = open_source(source, array=array, orientation=orientation, follow_symlinks=follow_symlinks, decode=decode)
    with _progress(quiet) as progress:
        estimator.set_params(progress=progress, memory=memory)
        estimator.transform_to(opened, out, overwrite=overwrite)
    shape = [opened.shape[0], estimator.n_components_]
    if as_json:
        _print_json({"path": str(out), "array": "scores", "shape": shape})
    else:
        click.echo(f"{out}: array scores, {shape[0]:,} x {shape[1]:,}")


@cli.command()
@click.argument("run_directory", metavar="RUN", type=click.Path(path_type=Path))
def report(run_directory: Path) -> None:
    """Write the HTML page of RUN again."""
    from streampca.runs.report import write_report
    from streampca.runs.run import read_manifest

    read_manifest(run_directory)
    click.echo(str(write_report(run_directory)))


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

    found = carry_out(directory, url)
    if as_json:
        _print_json(asdict(found))
        return
    there = f", {found.n_objects - found.n_written:,} of them were there" if found.n_written < found.n_objects else ""
    click.echo(f"{found.url}: run {found.run_id}, {found.n_objects:,} objects, {as_text(found.n_bytes)}{there}")


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
        _print_json({"path": str(out), "models": len(models), "n_samples": total.n_samples_seen_, "components": [k, d]})
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
    from streampca.runs.verify import verify_run

    with _progress(quiet) as progress:
        found = verify_run(run_directory, overrides=overrides, progress=progress)
    if as_json:
        _print_json(found.to_dict())
    else:
        lines, indent = found.table()
        for line in lines:
            _print_wrapped(_plain(line), indent)
        click.echo(found.summary)
    found.require()


@cli.command()
@click.argument("source", type=str)
@click.option("--array", help="Name of the array within a group.")
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
    source: str, array: str | None, out: Path | None, missing_chunks: str, overwrite: bool, quiet: bool, as_json: bool
) -> None:
    """Write a digest of every stored chunk of the array SOURCE.

    The digests (xxh3-128) are compared by source.verify and streampca verify.

    SOURCE is a path or URL, or a configuration (.yaml), whose source is taken with its storage_options. Without --out the
    file stands beside a local store, and in the working directory for a URL.
    """
    from streampca.runs.fingerprint import write_fingerprint

    with _progress(quiet) as progress:
        opened = _opened(source, array, missing_chunks)
        made = write_fingerprint(opened, out, overwrite=overwrite, progress=progress)
    if as_json:
        _print_json(made.to_dict())
        return
    from streampca.formatting import as_text

    missing = f", {made.n_missing:,} missing" if made.n_missing else ""
    click.echo(
        f"{made.place}: {made.n_chunks:,} chunks{missing}, {as_text(made.stored_bytes)} stored, xxh3-128 {made.whole}"
    )


def _opened(source: str, array: str | None, missing_chunks: str) -> Any:
    """Open a path, a URL, or the source of a configuration, to digest its chunks as they are stored."""
    from streampca.sources import open_source

    if not source.endswith((".yaml", ".yml")):
        return open_source(source, array=array, missing_chunks=missing_chunks, decode="raw")
    from streampca.runs.config import load_config
    from streampca.runs.run import source_of

    changes = ["source.verify=null", "source.decode=raw", f"source.missing_chunks={missing_chunks}"]
    return source_of(load_config(source, [*changes, *([f"source.array={array}"] if array else [])]))


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """Give a progress callback, or None; close it at the end."""
    if quiet:
        yield None
        return
    from streampca.runs.progress import ProgressBar

    bar = ProgressBar()
    try:
        yield bar
    finally:
        bar.close()


def _print_json(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, indent=2, default=str))


def _print_wrapped(text: str, indent: int) -> None:
    """Print a line, wrapped under `indent` spaces on a terminal; elsewhere it stays one line."""
    if sys.stdout.isatty():
        width = max(40, min(shutil.get_terminal_size().columns, 120))
        text = textwrap.fill(
            text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        )
    click.echo(text)


def _plain(text: str) -> str:
    """Return `text` on one line, with control characters escaped: names come from files of others."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    deliver(StopSignalError(number))


def _notice(sentence: str) -> None:
    click.echo(f"streampca: {_plain(sentence)}", err=True)


def _kept(error: BaseException) -> str | None:
    """Return what an error says of a checkpoint from which the run can go on."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith("progress is kept")), None)


def _stopped(stop: StopSignalError, arguments: list[str] | None) -> str:
    name, kept = signal.Signals(stop.number).name, _kept(stop)
    if kept is None:
        return f"stopped by {name}: nothing was changed; start the same command again to run from the beginning"
    given = [argument for argument in (sys.argv[1:] if arguments is None else arguments) if argument != "--fresh"]
    command = shlex.join(["streampca", *given, *([] if "--resume" in given else ["--resume"])])
    return f"stopped by {name}: {kept}; start the same command again to go on: {command}"


def _fail(message: str, status: int) -> int:
    click.echo(f"streampca: error: {_plain(redacted(' '.join(message.split())))}", err=True)
    return status


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status; signals are handled as before when it is over."""
    with _signals_stop_the_run():
        status = _status(arguments)
    sys.exit(status)


@contextmanager
def _signals_stop_the_run() -> Iterator[None]:
    """Let SIGINT and SIGTERM stop the run for as long as the block lasts; only the main thread can have it so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        forget()


def _status(arguments: list[str] | None) -> int:
    try:
        cli.main(arguments, prog_name="streampca", standalone_mode=False)
    except StopSignalError as stop:
        return _fail(_stopped(stop, arguments), 128 + stop.number)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx is not None else error.format_message(), err=True)
        return 2
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "streampca"
        return _fail(f"{error.format_message().rstrip('.')}; see {command} --help", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), 2)
    except (click.Abort, BrokenPipeError):
        return 1
    except StreamPCAError as error:
        kept = _kept(error)
        return _fail(f"{error}; {kept}: the same command goes on from there" if kept else str(error), error.exit_status)
    except MemoryError as error:
        return _fail(f"the system gave no more memory ({error}): allow less with resources.memory, or free some", 7)
    except Exception as error:
        if os.environ.get("STREAMPCA_DEBUG"):
            raise
        return _fail(
            f"internal error ({type(error).__name__}: {error}); set STREAMPCA_DEBUG=1 to see where, and please report it",
            1,
        )
    return 0
