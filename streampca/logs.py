"""Loggers of the package: one for each module, below ``streampca``, with URLs redacted in every record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from streampca.redaction import redacted

ROOT: Final = "streampca"
"""Name of the logger above all others of the package."""
SHOWN: Final = {"shown_by_command": True}
"""`extra` of records whose sentence a command prints itself: results of a run, and notices."""


def _redact(record: logging.LogRecord) -> bool:
    """Redact the message of `record`, with its arguments filled in, and let it pass."""
    record.msg, record.args = redacted(record.getMessage()), ()
    return True


def logger(name: str) -> logging.Logger:
    """Return the logger of the module `name`, whose records have neither passwords nor queries of URLs."""
    own = logging.getLogger(name)
    own.addFilter(_redact)  # a filter that is there already is not added again
    return own


logger(ROOT).addHandler(logging.NullHandler())
_log = logger(__name__)
Notice = Callable[[str], None]
"""Called with a sentence for the user."""


def logged(notice: Notice | None) -> Notice:
    """Return a function that logs a sentence and calls `notice` with it."""

    def tell(sentence: str) -> None:
        _log.info("%s", sentence, extra=SHOWN)
        if notice is not None:
            notice(sentence)

    return tell


def log_findings(name: str, warnings: Iterable[str], notes: Iterable[str]) -> None:
    """Log what a run says of its result; commands print it with the result."""
    for sentence in warnings:
        _log.warning("%s: %s", name, sentence, extra=SHOWN)
    for sentence in notes:
        _log.info("%s: %s", name, sentence, extra=SHOWN)
