"""Sentences for the user while a run is carried out; the log has them, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streampca.logs import SHOWN, logger

Notice = Callable[[str], None]
"""Called with a sentence."""
_log = logger(__name__)


def logged(notice: Notice | None) -> Notice:
    """Return a function that logs a sentence and calls `notice` with it."""

    def tell(sentence: str) -> None:
        _log.info("%s", sentence, extra=SHOWN)
        if notice is not None:
            notice(sentence)

    return tell


def log_findings(name: str, warnings: Iterable[str], notes: Iterable[str] = ()) -> None:
    """Log what a run says of its result; commands print it with the result."""
    for sentence in warnings:
        _log.warning("%s: %s", name, sentence, extra=SHOWN)
    for sentence in notes:
        _log.info("%s: %s", name, sentence, extra=SHOWN)
