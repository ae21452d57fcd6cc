"""The retry policy: the number of attempts, the pauses between them, and which errors are transient."""

from __future__ import annotations

import errno
import random
import time

from streampca.errors import DataError, StreamPCAError
from streampca.logs import logger
from streampca.sources.base import ReadCount, Source
from streampca.typing import Array

ATTEMPTS = 4
"""Number of attempts at a leaf, or at reading a block."""
_FIRST_SECONDS, _LONGEST_SECONDS = 0.2, 20.0
_PERMANENT = frozenset(
    getattr(errno, name)
    for name in [
        "ENOENT",
        "EACCES",
        "EPERM",
        "EISDIR",
        "ENOTDIR",
        "EINVAL",
        "ENAMETOOLONG",
        "ELOOP",
        "ENOSPC",
        "EDQUOT",
        "EFBIG",
        "EROFS",
    ]
    if hasattr(errno, name)
)
_log = logger(__name__)
_jitter = random.SystemRandom()  # its draws decide when, never what


def pause_after(n_failed: int) -> float:
    """Return the seconds to wait after `n_failed` failures: 0.2 s, doubled with each failure up to 20 s, plus up to half at random."""
    longest = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** (min(n_failed, 16) - 1))
    return min(_LONGEST_SECONDS, longest * _jitter.uniform(1.0, 1.5))


def may_pass(error: BaseException) -> bool:
    """Tell whether `error` is a transient error of the system or of a connection.

    Errors of this package are not: they are raised after retries.
    """
    return isinstance(error, OSError) and not isinstance(error, StreamPCAError) and error.errno not in _PERMANENT


def read_with_retries(source: Source, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
    """Return what ``source.read`` returns, retried after transient errors of the system.

    Raises
    ------
    DataError
        If the error is not transient, or every attempt failed.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return source.read(start, stop, out)
        except StreamPCAError:
            raise
        except OSError as error:
            if attempt == ATTEMPTS or not may_pass(error):
                message = " ".join(str(error).split()) or type(error).__name__
                tried = f" in {attempt} attempts" if attempt > 1 else ""
                raise DataError(
                    f"{source.description}: rows {start} to {stop - 1} could not be read{tried}: {message}; see that the store can be "
                    "reached and read, and run again"
                ) from error
            pause = pause_after(attempt)
            _log.info(
                "rows %d to %d could not be read, attempt %d of %d: %s; again in %.1f s",
                start,
                stop - 1,
                attempt,
                ATTEMPTS,
                error,
                pause,
            )
        time.sleep(pause)
