"""Whether two answers of a store are parts of one content of an object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

_STRONG_SECONDS = 60.0
"""Age from which the time of modification, in whole seconds, identifies a content (RFC 9110, section 8.8.2.2; RFC 7232, 2.2.2)."""


@dataclass(frozen=True)
class ObjectVersion:
    """What the headers of an answer say of the content of an object; None for what is not known."""

    tag: str | None = None
    """Entity tag, if it is strong: another content has another."""
    modified: str | None = None
    """Time of modification, if it is old enough that another content has another."""
    n_bytes: int | None = None
    """Size in bytes."""

    @classmethod
    def of(cls, headers: Mapping[str, str], n_bytes: int) -> ObjectVersion:
        """Return the version in `headers`, whose names are in lower case, of an object of `n_bytes`."""
        tag = headers.get("etag")
        modified = headers.get("last-modified")
        if modified is not None and _age(modified, headers.get("date", "")) < _STRONG_SECONDS:
            modified = None
        return cls(None if tag is None or tag.startswith("W/") else tag, modified, n_bytes)

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


def _age(modified: str, date: str) -> float:
    """Return the seconds from a time of modification to the time of the answer, 0 if one of them is not known."""
    try:
        return (parsedate_to_datetime(date) - parsedate_to_datetime(modified)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0
