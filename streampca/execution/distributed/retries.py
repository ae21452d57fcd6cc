"""How often something is tried again, after how long, and which errors may go away by themselves."""

from __future__ import annotations

import errno
import random
import time
from typing import Any

from numpy.typing import NDArray

from streampca.errors import DataError, StreamPCAError
from streampca.sources.base import ReadCount, Source

ATTEMPTS = 4
"""How often a leaf, or the reading of a block, is tried in all."""
_FIRST_SECONDS, _LONGEST_SECONDS = 0.2, 20.0
_LASTING = frozenset(
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
_chance = random.SystemRandom()  # its draws decide when, never what


def pause_after(n_failed: int) -> float:
    """Return the seconds to wait after so many failures: 0.2 and twice as many each time, up to 20, and half as many again by chance."""
    longest = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** (min(n_failed, 16) - 1))
    return min(_LONGEST_SECONDS, longest * _chance.uniform(1.0, 1.5))


def may_pass(error: BaseException) -> bool:
    """Tell whether `error` is one of the system or a connection that the next attempt may not meet.

    Errors of our own are definite: whoever raised them has tried what could be tried.
    """
    return isinstance(error, OSError) and not isinstance(error, StreamPCAError) and error.errno not in _LASTING


def read_patiently(
    source: Source, start: int, stop: int, out: NDArray[Any] | None = None
) -> tuple[NDArray[Any], ReadCount]:
    """Return what ``source.read`` returns, tried again where an error of the system may pass.

    Raises
    ------
    DataError
        If it did not pass, or cannot.
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
                said = " ".join(str(error).split()) or type(error).__name__
                tried = f" in {attempt} attempts" if attempt > 1 else ""
                raise DataError(
                    f"{source.description}: rows {start} to {stop - 1} could not be read{tried}: {said}; see that the store can be "
                    "reached and read, and run again"
                ) from error
        time.sleep(pause_after(attempt))
