"""The doors of streampca that tests use beside its public names, the accumulator protocol and the command.

A wall inside the package may move without a test that is behind one of these doors being changed: what moved is named here,
once. `tests/unit/test_layers.py` counts the inner names that tests import elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from streampca.accumulators.base import settled
from streampca.accumulators.gram import Gram
from streampca.accumulators.on_device import on_device
from streampca.block import Block, as_block
from streampca.cli import cli, main
from streampca.errors import PlanError
from streampca.estimators.exporting import export
from streampca.execution.checkpoint.progress_log import CheckpointDirectory, ProgressLog, RunIdentity, recording
from streampca.execution.distributed import cluster
from streampca.execution.distributed.active_client import active_client
from streampca.execution.readings import run_fit
from streampca.planning.scores import plan_scores
from streampca.planning.work import Resources
from streampca.runs import deploy
from streampca.runs.config import parse_config
from streampca.runs.deploy import cluster_of
from streampca.runs.fingerprint import write_fingerprint
from streampca.runs.inspection import inspect_path
from streampca.runs.report import figures
from streampca.runs.verify import verify_run
from streampca.solvers.approximate import ApproximateSolver
from streampca.solvers.capabilities import CONFLICTS
from streampca.solvers.choosing import CONTINUABLE, SOLVERS
from streampca.solvers.fit import Parameters, plan_fit, readings_of_fit
from streampca.solvers.kernel.base import KernelParameters
from streampca.solvers.result import examining as accumulators_of_quality
from streampca.sources import ReadCount, Source, normalization, open_source, remote
from streampca.sources.fetching import read_ahead
from streampca.sources.files.bed import BedFile
from streampca.sources.formats import FORMATS, TAKEN, ReadOptions
from streampca.sources.grid import Grid
from streampca.sources.like import RowRange
from streampca.sources.normalization import NORMALIZE as NORMALIZE_KEYS
from streampca.sources.normalization import ElementwiseCounts, Normalization
from streampca.sources.steps import Elementwise, Step, SteppedSource
from streampca.sources.table import with_features
from streampca.sources.zarr.codecs import ChainOfZarr
from streampca.sources.zarr.digests import default_place
from streampca.storage.directories import AtomicDirectory
from streampca.storage.lock import Lock, lock_of
from streampca.storage.signals import StopSignalError, deliver, raise_pending_signal, uninterrupted
from streampca.system.device import Device, device_of
from streampca.system.phases import Phase, phases_of_thread
from streampca.system.process import _package_versions, one_blas_thread, peak_bytes, process_bytes

__all__ = [
    "CONFLICTS",
    "CONTINUABLE",
    "FORMATS",
    "NORMALIZE_KEYS",
    "NOT_DRAWN",
    "SOLVERS",
    "TAKEN",
    "AtomicDirectory",
    "BedFile",
    "Block",
    "CheckpointDirectory",
    "Elementwise",
    "Gram",
    "Grid",
    "Lock",
    "Normalization",
    "Parameters",
    "Phase",
    "ReadCount",
    "ReadOptions",
    "Resources",
    "RowRange",
    "Source",
    "Step",
    "SteppedSource",
    "StopSignalError",
    "Unread",
    "all_checkpoints",
    "as_block",
    "blocks_of",
    "card",
    "charts_drawn",
    "charts_left_out",
    "checkpoints_in",
    "cli",
    "cluster_of",
    "decode_by_zarr",
    "default_place",
    "deliver",
    "drawing_takes",
    "examining",
    "export",
    "fit",
    "fit_source",
    "fitted_attributes",
    "fold",
    "folded",
    "impatient",
    "impatient_clusters",
    "inspect_path",
    "lock_of",
    "main",
    "no_checkpoints",
    "normalize_keys",
    "on_device",
    "one_blas_thread",
    "open_source",
    "parse_config",
    "peak_bytes",
    "phases_of_thread",
    "plan",
    "plan_fit",
    "plan_scores",
    "process_bytes",
    "process_of",
    "raise_pending_signal",
    "requests_of",
    "run_command",
    "sent_apart",
    "sketches_of_samples",
    "uninterrupted",
    "verify_run",
    "versions_read_again",
    "with_features",
    "write_fingerprint",
]

MIB = 2**20


def fitted_attributes(estimator: object) -> dict[str, Any]:
    """Return the arrays, numbers and texts among the fitted attributes by name, without those that are computed when asked for."""
    names = [name for name in dir(estimator) if name.endswith("_") and not name.startswith("_")]
    names = [name for name in names if name not in ("component_rules_", "eigenvectors_") or name in vars(estimator)]
    values = {name: getattr(estimator, name, None) for name in names}
    return {
        key: value for key, value in values.items() if isinstance(value, np.ndarray | np.generic | float | int | str)
    }


def blocks_of(n_rows: int) -> Any:
    """Return a context in which plans have blocks of `n_rows` rows, or features where the table is read by features.

    The setting is an environment variable, so that it holds in the processes that a test starts, too.
    """
    return patch.dict(os.environ, {"STREAMPCA_BLOCK_ROWS": str(n_rows)})


def all_checkpoints() -> Any:
    """Return a context in which every checkpoint that is due is written, whatever the time that it takes."""
    return patch.dict(os.environ, {"STREAMPCA_CHECKPOINT_SHARE": "1"})


def no_checkpoints() -> Any:
    """Return a context in which only signals have checkpoints written, however slow the machine."""
    return patch.dict(os.environ, {"STREAMPCA_CHECKPOINT_SHARE": "0"})


@contextmanager
def checkpoints_in(place: Path) -> Iterator[None]:
    """Have fits write their checkpoints to a directory, and go on from the newest that is there."""
    directory = CheckpointDirectory(place)
    found = directory.newest()[0] if place.exists() else None
    with recording(ProgressLog(directory, RunIdentity("0" * 16, {}), found)):
        yield


@contextmanager
def quiet_after(seconds: float) -> Iterator[None]:
    """Have a reading say what it waits for once no block has finished for so long."""
    with patch("streampca.execution.drive._QUIET_SECONDS", seconds):
        yield


@contextmanager
def sketches_of_samples() -> Iterator[None]:
    """Plan sketches as if those of features did not fit."""
    with patch.object(ApproximateSolver, "plan", side_effect=PlanError("a sketch of features does not fit")):
        yield


@contextmanager
def parser_failing_once() -> Iterator[None]:
    """Have the first header of a NetCDF 3 file end as Python's parser does now and then in several threads."""
    from scipy.io import netcdf_file

    calls: list[Any] = []

    def opened(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            arguments[0].read(100)
            raise SystemError("AST constructor recursion depth mismatch")
        return netcdf_file(*arguments, **options)

    with patch("scipy.io.netcdf_file", opened):
        yield


@contextmanager
def requests_of(n_bytes: int, whole: int | None = None) -> Iterator[None]:
    """Request stored chunks of more than `whole` bytes (`n_bytes`, if None) in ranges of `n_bytes`, for as long as this holds."""
    with (
        patch.object(read_ahead, "RANGE_BYTES", n_bytes),
        patch.object(read_ahead, "WHOLE_BYTES", n_bytes if whole is None else whole),
    ):
        yield


def impatient(requests: int = 12, seconds: float = 120.0) -> Any:
    """Return a context in which a request is sent at most `requests` times, after a few hundredths of a second each, for `seconds`."""
    policy = remote.RetryPolicy(requests=requests, first_seconds=0.01, longest_seconds=0.02, key_seconds=seconds)
    return patch.object(remote, "PATIENCE", policy)


@contextmanager
def impatient_clusters(start: float = 5.0, attempts: int = 3, close: float = 2.0) -> Iterator[None]:
    """Look after `start` seconds whether workers come, start them `attempts` times, and wait `close` seconds for their end."""
    with (
        patch.object(deploy, "_START_SECONDS", start),
        patch.object(deploy, "_CLOSE_SECONDS", close),
        patch.object(deploy, "_ATTEMPTS", attempts),
    ):
        yield


@contextmanager
def normalize_keys(keys: Sequence[Any], **functions: Callable[..., Any]) -> Iterator[None]:
    """Have `normalize` take these `keys`, for as long as this holds; `functions` map the values of new steps, by their names."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(normalization, "NORMALIZE", tuple(keys)))
        for name, function in functions.items():
            body = {"of_values": lambda self, values, out, function=function: function(values, out=out)}
            stack.enter_context(patch.object(normalization, name, type(name, (ElementwiseCounts,), body), create=True))
        yield


NOT_DRAWN = '<svg class="not-drawn" id='
"""How a chart begins that is prepared and not drawn."""
_DRAW = figures.svg_of


def charts_left_out() -> Any:
    """Return a context in which charts of pages are prepared and not drawn, which takes most of the time of a page."""
    return patch.object(figures, "svg_of", lambda figure, name: f'{NOT_DRAWN}"{name}"></svg>')


def charts_drawn() -> Any:
    """Return a context in which charts of pages are drawn, as the package does; tests leave that out elsewhere."""
    return patch.object(figures, "svg_of", _DRAW)


@contextmanager
def drawing_takes(n_bytes: int) -> Iterator[list[str]]:
    """Have drawing the page of a run take `n_bytes` of memory; yield a list that gets the names of charts that are drawn."""
    names: list[str] = []
    draw = figures.svg_of

    def noted(figure: Any, name: str) -> str:
        names.append(name)
        return draw(figure, name)

    with patch.object(figures, "svg_of", noted), patch("streampca.runs.strategy.peak_bytes", lambda: n_bytes):
        yield names


def versions_read_again() -> Any:
    """Return a context in which the versions of packages are those that their metadata state now."""
    return patch("streampca.system.process._package_versions", _package_versions.__wrapped__)


def sent_apart() -> Any:
    """Return a context in which what leaves have in common is sent to workers by itself, however small it is."""
    return patch.object(cluster, "_SMALL_BYTES", 0)


def decode_by_zarr(source: Any) -> None:
    """Have the chunks of an array decoded by zarr, whatever their codecs."""
    reader = source.direct
    codecs = None if reader.shards is None else source.array.metadata.codecs[0].codecs
    chain = ChainOfZarr.of(source.array, codecs, reader.inner.grid, source.fill)
    given = reader.array, reader.layout, reader.place, reader.label, reader.digests, reader.fill, reader.stored
    source.direct = type(reader)(*given, chain)


@contextmanager
def process_of(n_bytes: int) -> Iterator[None]:
    """Plan as if the process took `n_bytes` bytes, whatever tests have left in memory."""
    with (
        patch("streampca.solvers.fit.process_bytes", lambda: n_bytes),
        patch("streampca.planning.scores.process_bytes", lambda: n_bytes),
    ):
        yield


def fold(accumulator: Any, rows: Any, blocks: Sequence[int] | int = 0, weights: Any = None) -> Any:
    """Return the state of `accumulator` after `rows` ``(n, d)`` in blocks: of these lengths, of one length, or one (0)."""
    n = rows.shape[0]
    lengths = [blocks or n] * -(-n // (blocks or n or 1)) if isinstance(blocks, int) else list(blocks)
    found, start = [], 0
    for length in lengths:
        stop = min(start + length, n)
        found.append(Block(rows[start:stop], start, None if weights is None else weights[start:stop]))
        start = stop
    return folded(accumulator, found, rows.shape[1])


def folded(accumulator: Any, blocks: Iterable[Block], n_features: int) -> Any:
    """Return the state of `accumulator` after `blocks`."""
    state = accumulator.init(n_features)
    for block in blocks:
        state = accumulator.update(state, block)
    return settled(state)


class Unread(Source):
    """A table of any shape that must not be read."""

    description = "unread"
    fingerprint = "unread"

    def __init__(self, shape: tuple[int, int], dtype: str = "float32", chunk_rows: int = 1000):
        self.shape, self.dtype = shape, np.dtype(dtype)
        self.grid = Grid(chunk_rows, chunk_bytes=chunk_rows * shape[1] * self.dtype.itemsize)

    def read(self, start: int, stop: int, out: Any = None) -> Any:
        raise AssertionError("read before the plan was accepted")


def plan(
    data: Any,
    *,
    allowed: int | None = None,
    threads: int = 2,
    beside: int = 150 * MIB,
    k: Any = None,
    **parameters: Any,
) -> Any:
    """Return the plan of a fit of `data`; in `allowed` bytes, of which the process takes `beside` at first, if given.

    `data` is what `open_source` takes, or a `Source`, such as `Unread`; `parameters` are those of a fit, with a named `solver`
    if `allowed` is given, or with `kernel` those of a fit of a kernel.
    """
    if "kernel" in parameters:
        return plan_fit(open_source(data), KernelParameters(n_components=k, **parameters))
    checked = Parameters(k, **parameters)
    source = open_source(data)
    if allowed is None:
        return plan_fit(source, replace(checked, threads=threads))
    return SOLVERS[checked.solver](source, checked).plan(Resources(allowed, beside, threads))


def fit_source(source: Any, parameters: Any, plan: Any, *, progress: Any = None, **options: Any) -> Any:
    """Carry out the plan of a fit of a source, as `fit` does."""
    return run_fit(readings_of_fit(source, parameters, plan, **options), active_client(source), progress)


def fit(data: Any, plan: Any = None, *, k: Any = None, options: Any = None, **parameters: Any) -> Any:
    """Carry out a plan; return what the fit found, with ``.model``, ``.state`` and ``.reads``."""
    source, kernel = open_source(data), "kernel" in parameters
    checked: Any = KernelParameters(n_components=k, **parameters) if kernel else Parameters(k, **parameters)
    plan = plan or plan_fit(source, checked)
    return fit_source(source, checked, plan, **(options or {}))


def examining(data: Any, missing: str = "mean") -> dict[str, Any]:
    """Return the accumulators of data quality for the rows of `data`, with all statistics, by the names of their classes."""
    source = open_source(data)
    return {type(each).__name__: each for each in accumulators_of_quality(source, missing)}


def run_command(*arguments: object) -> int:
    """Run ``streampca`` with `arguments` in this process; return its exit status. Output goes where the process writes."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    raise AssertionError("the command did not exit")


def limit_room(monkeypatch: Any, *, free_disk: int | None = None, process: int | None = None) -> None:
    """Have the disk say that `free_disk` bytes are free, and the planning of scores and rows that the process takes `process` bytes."""
    if free_disk is not None:
        usage = type("Usage", (), {"free": free_disk})
        monkeypatch.setattr("streampca.storage.directories.shutil.disk_usage", lambda path: usage)
    if process is not None:
        monkeypatch.setattr("streampca.planning.scores.process_bytes", lambda: process)


@contextmanager
def card(name: str, *, wide: bool = True, free_bytes: int | None = None, threads: int = 2) -> Iterator[Device]:
    """Have the device `name` stand in for a card: of slow float64, of so much free memory, beside a machine of so many cores."""
    device = device_of(name)
    changed = {"wide": wide, "on_card": free_bytes is not None}
    with ExitStack() as stack:
        for attribute, value in changed.items():
            stack.enter_context(patch.object(device, attribute, value))
        if free_bytes is not None:
            stack.enter_context(patch.object(Device, "description", "a card"))
            stack.enter_context(patch.object(Device, "free_bytes", lambda self: free_bytes))
            stack.enter_context(patch("streampca.solvers.fit.n_cores", lambda: threads))
        yield device
