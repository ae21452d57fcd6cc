"""The command line: results on stdout, progress and errors on stderr, one line for each error, and an exit status."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import click

from streampca.cli import models as _models  # noqa: F401 (adds commands)
from streampca.cli.commands import cli
from streampca.cli.session import Session
from streampca.storage.signals import StopSignalError, deliver, forget


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    deliver(StopSignalError(number))


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
    session = Session(sys.argv[1:] if arguments is None else arguments)
    try:
        cli.main(arguments, prog_name="streampca", standalone_mode=False, obj=session)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx is not None else error.format_message(), err=True)
        return 2
    except (click.Abort, BrokenPipeError):
        return 1
    except (Exception, StopSignalError) as error:
        if os.environ.get("STREAMPCA_DEBUG") and session.is_internal(error):
            raise
        return session.fail(error)
    finally:
        session.close()
    return 0
