"""Whether two answers of a store are parts of one content of an object."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime

_STRONG_SECONDS = 60.0
"""Age from which the time of modification, in whole seconds, identifies a content (RFC 9110, section 8.8.2.2; RFC 7232, 2.2.2)."""


@dataclass(frozen=True)
class ObjectVersion:
    """What an answer says of the content of an object; None for what is not known."""

    tag: str | None = None
    """Entity tag, if it is strong: another content has another."""
    modified: float | None = None
    """Time of modification in seconds, if it is old enough that another content has another."""
    n_bytes: int | None = None
    """Size in bytes."""

    @classmethod
    def of(cls, tag: str | None, modified: datetime, n_bytes: int) -> ObjectVersion:
        """Return the version of an object of `n_bytes`; a time of 1970 is that of a server that tells none."""
        seconds = modified.timestamp()
        is_strong = 0 < seconds <= time.time() - _STRONG_SECONDS
        return cls(None if tag is None or tag.startswith("W/") else tag, seconds if is_strong else None, n_bytes)

    def differs(self, other: ObjectVersion) -> bool:
        """Return whether the two are of different contents, as far as is known.

        Servers of one address may give their copies of one file different tags: those of nginx and Apache come from times or
        inodes. Copies of the same size and time of modification are taken for one.
        """
        if None not in (self.n_bytes, other.n_bytes) and self.n_bytes != other.n_bytes:
            return True
        if self.tag is None or other.tag is None or self.tag == other.tag:
            return False
        return self.modified is None or self.modified != other.modified
