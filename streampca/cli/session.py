"""One call of the command line: options of all commands, and the output of results, progress, notices and log lines."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never, TextIO

import click

from streampca.cli.failures import Failure
from streampca.cli.output import on_one_line, print_error_line, print_json, print_wrapped, write_line
from streampca.errors import OutputError
from streampca.logs import ROOT, SHOWN, logger
from streampca.redaction import redacted
from streampca.version import __version__

if TYPE_CHECKING:
    from tqdm import tqdm

    from streampca.execution.progress import Progress, ProgressCallback


FORMAT_VERSION = 1
"""Version of what ``--json`` prints."""
Line = str | tuple[str, int]
"""A line of text; with a number it is wrapped on a terminal, and goes on under so many spaces."""
_log = logger(__name__)


@dataclass(frozen=True)
class Result:
    """What a command returns; it is printed as one JSON object or as lines of text."""

    document: Mapping[str, object]
    """The JSON object, without ``format_version`` where that is the version of `--json`."""
    lines: Iterator[Line] | Sequence[Line]
    """The text; an iterator is read only if text is printed."""
    require: Callable[[], None] | None = None
    """Raises the error with which the command ends although it has a result."""


class Session:
    """One call of the command line."""

    def __init__(self, arguments: Sequence[str] = ()):
        self.arguments = list(arguments)
        self.command = "streampca"
        """The command that is called, with the name of the program."""
        own = self.arguments[: self.arguments.index("--")] if "--" in self.arguments else self.arguments
        self.as_json = "--json" in own
        self.quiet = False
        self._printed = False
        self._stack = ExitStack()

    def begin(self, command: str, *, as_json: bool, quiet: bool, verbose: int, log_file: Path | None) -> None:
        """Note the options that all commands have, and begin to log."""
        self.command, self.as_json, self.quiet = command, as_json, quiet
        if quiet and verbose:
            raise click.UsageError("--quiet and --verbose contradict each other: give one of them")
        level = logging.CRITICAL if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
        handlers = [terminal_handler(level)]
        if log_file is not None:
            handlers.append(file_handler(log_file, logging.DEBUG if verbose > 1 else logging.INFO))
        self._stack.enter_context(handled(handlers))
        _log.info("%s, version %s", command, __version__)

    def close(self) -> None:
        """Stop logging."""
        self._stack.close()

    def print(self, result: Result) -> None:
        """Print `result`, and raise the error that it ends with."""
        error = None
        try:
            if result.require is not None:
                result.require()
        except Exception as raised:  # noqa: BLE001 raised again below, when the result is printed
            error = raised
        if self.as_json:
            further = {} if error is None else self._failure(error).to_dict()
            print_json({"format_version": FORMAT_VERSION, **result.document, **further})
            self._printed = True
        else:
            for line in result.lines:
                if isinstance(line, str):
                    click.echo(line)
                else:
                    print_wrapped(*line)
        if error is not None:
            raise error

    def fail(self, error: BaseException) -> int:
        """Print `error` on stderr, and with ``--json`` on stdout; return its exit status."""
        failure = self._failure(error)
        _log.error("%s", failure.message, extra=SHOWN, exc_info=error if failure.is_internal else None)
        print_error_line(failure.message)
        if self.as_json and not self._printed:
            print_json({"format_version": FORMAT_VERSION, **failure.to_dict()})
        return failure.exit_status

    def is_internal(self, error: BaseException) -> bool:
        """Tell whether `error` is a defect of the program."""
        return self._failure(error).is_internal

    def _failure(self, error: BaseException) -> Failure:
        return Failure.of(error, self.arguments, self.command)

    @contextmanager
    def progress(self) -> Iterator[ProgressCallback | None]:
        """Give a callback that shows progress on stderr, or None; close it at the end."""
        if self.quiet:
            yield None
            return

        bar = ProgressBar()
        try:
            yield bar
        finally:
            bar.close()

    def notice(self, sentence: str) -> None:
        """Print a sentence on stderr."""
        print_error_line(on_one_line(sentence), label="")


def session() -> Session:
    """Return the session of the command that is carried out."""
    return click.get_current_context().ensure_object(Session)


_BEGINNING = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
_warnings = logger(f"{ROOT}.warnings")


class _Lines(logging.Formatter):
    """One line for each record, control characters escaped, URLs redacted; tracebacks follow, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of `record`."""
        worker = f" [{record.worker}]" if hasattr(record, "worker") else ""  # where Dask forwards it from
        message = on_one_line(record.getMessage())
        line = f"{self.formatTime(record)} {record.levelname:<7} {record.name}{worker}: {message}"
        if record.exc_info:
            line += "".join(f"\n    {each}" for each in self.formatException(record.exc_info).splitlines())
        return redacted(line)


class _FileLines(_Lines):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TerminalLines(_Lines):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return time.strftime("%H:%M:%S", time.localtime(record.created))


class _Terminal(logging.Handler):
    """Writes lines to stderr, without those that the command prints itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of `record` above the progress bar."""
        if getattr(record, "shown_by_command", False):
            return
        try:
            write_line(self.format(record))
        except Exception:  # noqa: BLE001 as all handlers do
            self.handleError(record)


class _File(logging.FileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Stop writing to a file that cannot be written, such as one on a full disk: the run goes on."""
        logging.getLogger(ROOT).removeHandler(self)
        write_line(f"streampca: the log file {self.baseFilename} can no longer be written: {sys.exc_info()[1]}")


def terminal_handler(level: int) -> logging.Handler:
    """Return the handler for stderr."""
    handler = _Terminal(level)
    handler.setFormatter(_TerminalLines())
    return handler


def file_handler(path: Path, level: int) -> logging.Handler:
    """Return the handler that appends to the log file `path`.

    Raises
    ------
    OutputError
        If the file cannot be opened, or holds something else than a log.
    """
    try:
        if path.exists() and not path.is_file():
            raise OutputError(f"--log-file {path} is not a file: expected the name of a new file or of an earlier log")
        if path.exists() and not _is_log(path):
            raise OutputError(f"--log-file {path} is not a log of streampca: expected a new file or an earlier log")
        handler = _File(path, encoding="utf-8", errors="backslashreplace")
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(f"--log-file {path} cannot be written: {error.strerror}") from error
    handler.setLevel(level)
    handler.setFormatter(_FileLines())
    return handler


def _is_log(path: Path) -> bool:
    """Tell whether a file is empty or begins as a log does."""
    with path.open("rb") as file:
        beginning = file.read(64)
    return not beginning or _BEGINNING.match(beginning) is not None


@contextmanager
def handled(handlers: Sequence[logging.Handler]) -> Iterator[None]:
    """Send the records of the package, and Python warnings, to `handlers` for as long as the block lasts."""
    package = logging.getLogger(ROOT)
    level, show = package.level, warnings.showwarning

    def shown(message: Any, category: type[Warning], *place: Any, **more: Any) -> None:
        show(message, category, *place, **more)
        _warnings.warning("%s: %s", category.__name__, message, extra={"shown_by_command": True})

    package.setLevel(min(handler.level for handler in handlers))
    for handler in handlers:
        package.addHandler(handler)
    warnings.showwarning = shown
    try:
        yield
    finally:
        warnings.showwarning = show
        package.setLevel(level)
        for handler in handlers:
            package.removeHandler(handler)
            handler.close()


_LINE_SECONDS = 10.0
_LABELS = {
    "pilot": "reading a sample",
    "fit": "reading",
    "scores": "writing scores",
    "reconstruction": "writing rows",
    "components": "reading for components",
    "fingerprint": "reading as stored",
    "verify": "reading again",
}


def label_of(phase: str) -> str:
    """Return a phase in words; further readings of a fit, ``"pass 2"`` and on, are told by their number."""
    return f"reading, {phase}" if phase.startswith("pass ") else _LABELS.get(phase, phase)


class ProgressBar:
    """A `progress` callback; close it when all is done."""

    def __init__(self, stream: TextIO | None = None):
        from tqdm import tqdm

        self._make = tqdm
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._bar: tqdm[Never] | None = None
        self._phase = ""
        self._lock, self._last_line = threading.Lock(), time.monotonic()

    def __call__(self, progress: Progress) -> None:
        """Show `progress`."""
        with self._lock:
            if self._terminal:
                self._show_bar(progress)
            elif progress.rows >= progress.n_samples or time.monotonic() - self._last_line >= _LINE_SECONDS:
                self._show_line(progress)

    def _show_bar(self, progress: Progress) -> None:
        bar = self._bar
        if bar is None or self._phase != progress.phase:
            self._end_bar()
            self._phase = progress.phase
            label = label_of(progress.phase)
            bar = self._bar = self._make(
                desc=label,
                unit="iB",
                unit_scale=True,
                unit_divisor=1024,
                file=self._stream,
                dynamic_ncols=True,
                initial=progress.bytes_before,
            )
        bar.total = progress.bytes * progress.n_samples / max(1, progress.rows)
        bar.set_postfix_str(progress.waiting_for or f"on {progress.runs_on}", refresh=False)
        bar.update(progress.bytes - bar.n)
        if progress.waiting_for:
            bar.refresh()

    def _show_line(self, progress: Progress) -> None:
        self._last_line = time.monotonic()
        share = progress.rows / progress.n_samples
        rate = f"{progress.bytes_per_second / 2**20:,.0f} MiB/s, about {progress.seconds_left:,.0f} s left"
        print(
            f"{label_of(progress.phase)}: {progress.rows:,} of {progress.n_samples:,} {progress.unit} ({share:.0%}), "
            f"on {progress.runs_on}, {progress.waiting_for or rate}",
            file=self._stream,
            flush=True,
        )

    def _end_bar(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def close(self) -> None:
        """Leave the last bar as it stands."""
        with self._lock:
            self._end_bar()
