"""The command line: results on stdout, progress and errors on stderr, one line for each error, and an exit status."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from streampca.cli import export as _export  # noqa: F401 (adds a command)
from streampca.cli import report as _report  # noqa: F401 (adds a command)
from streampca.cli import update as _update  # noqa: F401 (adds a command)
from streampca.cli.commands import cli
from streampca.cli.output import on_one_line
from streampca.errors import StreamPCAError
from streampca.redaction import redacted
from streampca.storage.signals import StopSignalError, deliver, forget


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    deliver(StopSignalError(number))


def _checkpoint_note(error: BaseException) -> str | None:
    """Return what an error says of a checkpoint from which the run can go on."""
    return next((text for text in getattr(error, "__notes__", ()) if text.startswith("progress is kept")), None)


def _stopped(stop: StopSignalError, arguments: list[str] | None) -> str:
    name, note = signal.Signals(stop.number).name, _checkpoint_note(stop)
    if note is None:
        return f"stopped by {name}: nothing was changed; start the same command again to run from the beginning"
    given = [argument for argument in (sys.argv[1:] if arguments is None else arguments) if argument != "--fresh"]
    resume = ["--resume"] if given[:1] == ["run"] and "--resume" not in given else []
    command = shlex.join(["streampca", *given, *resume])
    return f"stopped by {name}: {note}; start the same command again to go on: {command}"


def _fail(message: str, status: int) -> int:
    click.echo(f"streampca: error: {on_one_line(redacted(' '.join(message.split())))}", err=True)
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
        note = _checkpoint_note(error)
        return _fail(f"{error}; {note}: the same command goes on from there" if note else str(error), error.exit_status)
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
