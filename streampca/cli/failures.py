"""Errors of commands: message, exit status and remedy, as one line of text or as JSON."""

from __future__ import annotations

import errno
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import click

from streampca.cli.output import on_one_line
from streampca.errors import StreamPCAError
from streampca.redaction import redacted
from streampca.storage.signals import StopSignalError

STATUSES = {
    0: "done",
    1: "internal error, or stdout was closed",
    2: "configuration or usage",
    3: "cluster lost",
    4: "no space",
    5: "input missing, damaged or not finite",
    6: "output locked, or not written by streampca",
    7: "plan exceeds memory",
    130: "stopped by SIGINT, 143 by SIGTERM",
}
"""Meaning of the exit statuses."""
_HINTS = {
    2: "correct what the message names; `{command} --help` describes the options, `streampca schema` the keys of a configuration",
    3: "check the logs and the memory of the workers, then start the same command again",
    4: "free some space, or write to another file system, then start the same command again",
    5: "`streampca inspect PATH` shows what is there",
    6: "give another place, or allow replacing what is there: --overwrite, or output.overwrite: true",
    7: "allow more memory (resources.memory, --memory) or ask for less, as `streampca plan CONFIG` shows",
}


@dataclass(frozen=True)
class Failure:
    """An error as it is shown."""

    kind: str
    """Name of the class of the error."""
    message: str
    """What is wrong, on one line."""
    exit_status: int
    """Status with which the command ends."""
    hint: str | None
    """What to do; None where the message says it all."""
    is_internal: bool = False
    """Whether it is a defect of the program."""

    def to_dict(self) -> dict[str, object]:
        """Return the failure as plain data for JSON."""
        keys = ("kind", "message", "exit_status", "hint")
        return {"error": {key: getattr(self, key) for key in keys}}

    @classmethod
    def of(cls, error: BaseException, arguments: Sequence[str], command: str) -> Failure:
        """Return what `error` says of a call of `command` with these arguments."""
        kind, message, status, hint = _described(error, arguments, command)
        message = on_one_line(redacted(" ".join(message.split())))
        return cls(kind, message, status, hint, is_internal=status == 1)


def _described(error: BaseException, arguments: Sequence[str], command: str) -> tuple[str, str, int, str | None]:
    """Return kind, message, exit status and hint of `error`."""
    kind = type(error).__name__
    if isinstance(error, StopSignalError):
        return "Stopped", *_stopped(error, arguments)
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx is not None else command
        hint = f"{command} --help"
        return "UsageError", f"{_of_usage(error)}; see {hint}", 2, f"see `{hint}`"
    if isinstance(error, click.ClickException):
        return "UsageError", error.format_message(), 2, _HINTS[2].format(command=command)
    if isinstance(error, StreamPCAError):
        note, hint = checkpoint_note(error), _HINTS.get(error.exit_status, "").format(command=command)
        if note is None:
            return kind, str(error), error.exit_status, hint or None
        again = "the same command continues from there"
        return kind, f"{error}; {note}: {again}", error.exit_status, f"{hint}; {again}" if hint else again
    if isinstance(error, MemoryError):
        message = f"out of memory ({error}): lower resources.memory, or free some memory"
        return kind, message, 7, "lower resources.memory, or free some memory"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return kind, f"{str(error.filename)[:60]}… is too long a name for the file system", 2, "give a shorter path"
    debug = "set STREAMPCA_DEBUG=1 to see where, and please report it"
    return "InternalError", f"internal error ({kind}: {error}); {debug}", 1, debug


def _of_usage(error: click.UsageError) -> str:
    """Return the message of a wrong call, with the nearest names in the words that messages about configurations have."""
    names = sorted(getattr(error, "possibilities", None) or ())
    return (
        f"{error.message.rstrip('.')}: did you mean {' or '.join(names)}?"
        if names
        else error.format_message().rstrip(".")
    )


def checkpoint_note(error: BaseException) -> str | None:
    """Return what an error says of a checkpoint from which the run can go on."""
    return next((text for text in getattr(error, "__notes__", ()) if text.startswith("progress is kept")), None)


def _stopped(stop: StopSignalError, arguments: Sequence[str]) -> tuple[str, int, str]:
    """Return message, exit status and hint of a command that a signal stopped."""
    name, note = signal.Signals(stop.number).name, checkpoint_note(stop)
    if note is None:
        again = "start the same command again to run from the beginning"
        return f"stopped by {name}: nothing was changed; {again}", 128 + stop.number, again
    given = [argument for argument in arguments if argument != "--fresh"]
    resume = ["--resume"] if given[:1] == ["run"] and "--resume" not in given else []
    again = f"start the same command again to continue: {shlex.join(['streampca', *given, *resume])}"
    return f"stopped by {name}: {note}; {again}", 128 + stop.number, redacted(again)
