"""Where log lines of a command go: stderr, above the progress bar, and a file."""

from __future__ import annotations

import logging
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from streampca.cli.output import on_one_line, write_line
from streampca.errors import OutputError
from streampca.logs import ROOT, logger
from streampca.redaction import redacted

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
        write_line(f"streampca: the log file {self.baseFilename} cannot be written any more: {sys.exc_info()[1]}")


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
            raise OutputError(
                f"--log-file {path} holds something else than a log of streampca: expected a new file or an earlier log"
            )
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
