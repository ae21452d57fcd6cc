"""Sizes and modification times of stored data, compared after every pass so that no result mixes two versions."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import xxhash

from streampca.errors import ChangedInputError

Item = tuple[str, int, str]
"""Name of a file or object, its size in bytes, and its modification time (files, in ns) or entity tag (objects)."""

ObjectListing = dict[str, dict[str, Any]]
"""What a client of an object store says of each object, by name."""

_TAGS = (
    "ETag",
    "etag",
    "e_tag",
    "generation",
    "md5Hash",
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
    "created",
)
"""Names that clients of object stores use for the tag or the time of an object, the most reliable first."""
_CHUNK_KEY = re.compile(r"(?:c[./])?\d+(?:[./]\d+)*|c")


_listings: ContextVar[dict[object, ObjectListing | None] | None] = ContextVar("_listings", default=None)


@contextmanager
def one_listing() -> Iterator[None]:
    """Let several questions about the objects below a prefix, asked in this context, be answered by one listing of them."""
    token = _listings.set({})
    try:
        yield
    finally:
        _listings.reset(token)


def listed(place: object, ask: Callable[[], ObjectListing | None]) -> ObjectListing | None:
    """Return the listing of `place` that `ask` requests; within `one_listing`, what it returned before."""
    known = _listings.get()
    if known is None:
        return ask()
    if place not in known:
        known[place] = ask()
    return known[place]


@dataclass(frozen=True)
class InputVersion:
    """Digest, number and size of stored files or objects, obtained without reading them."""

    digest: str
    """Digest of names, sizes and times or tags."""
    n_items: int
    """Files or objects that exist."""
    n_bytes: int
    """Their size."""
    latest: str
    """Name and time of the file that was modified last; an empty text for objects."""

    @classmethod
    def of(cls, items: Iterable[Item]) -> InputVersion:
        """Return the version of these files or objects, in any order: digests of the items are added up."""
        digest, n_items, n_bytes, newest, name = 0, 0, 0, 0, ""
        for key, size, tag in items:
            item = f"{key}\0{size}\0{tag}\n".encode("utf-8", "surrogateescape")
            digest = (digest + xxhash.xxh3_128_intdigest(item)) % 2**128
            n_items, n_bytes = n_items + 1, n_bytes + size
            if tag.isdigit() and int(tag) >= newest:
                newest, name = int(tag), key
        when = datetime.fromtimestamp(newest / 1e9, UTC).isoformat(timespec="seconds") if name else ""
        return cls(f"{digest:032x}", n_items, n_bytes, f"{name} at {when}" if name else "")


class InputWatch:
    """The first version of a source, with which later versions are compared; shared by all views of the source."""

    def __init__(self) -> None:
        self._first: InputVersion | None = None
        self._lock = threading.Lock()

    def require(self, now: InputVersion | None, label: str) -> None:
        """Remember the first version; raise `ChangedInputError` if a later one differs."""
        if now is None:
            return
        with self._lock:
            first = self._first = self._first or now
        if first.digest == now.digest:
            return
        count = (
            f"{first.n_items:,} files or objects of {first.n_bytes:,} bytes when it was first read, "
            f"{now.n_items:,} of {now.n_bytes:,} bytes now"
        )
        latest = f", the last modification is that of {now.latest}" if now.latest else ""
        raise ChangedInputError(
            f"{label} was changed while it was read: {count}{latest}; a result would belong to neither version: run again when "
            "nothing writes to it"
        )


def files(root: str | Path, names: Iterable[str]) -> Iterable[Item]:
    """Yield name, size and modification time of those files below `root` that exist."""
    for name in names:
        try:
            status = os.stat(os.path.join(root, name) if name else root)
        except OSError:
            continue
        yield name, status.st_size, str(status.st_mtime_ns)


def chunk_files(root: str | Path, depth: int, below: str = "") -> Iterator[Item]:
    """Yield name, size and modification time of the chunk files that exist below the directory `root` of a zarr array.

    Directories are listed instead of testing each key: metadata may declare many times more chunks than are stored. At
    most `depth` levels are listed, so that a link to a directory above ends.
    """
    try:
        entries = os.scandir(os.path.join(root, below))
    except OSError:
        return
    with entries:
        for entry in entries:
            name = f"{below}/{entry.name}" if below else entry.name
            if _CHUNK_KEY.fullmatch(name) is None:
                continue
            try:
                if entry.is_dir():
                    if depth > 1:
                        yield from chunk_files(root, depth - 1, name)
                    continue
                status = entry.stat()
            except OSError:
                continue
            yield name, status.st_size, str(status.st_mtime_ns)


def objects(listing: ObjectListing) -> list[Item]:
    """Return name, size and tag of the objects of a detailed listing, sorted."""
    listed = []
    for name, details in sorted(listing.items()):
        tag = next((str(details[key]) for key in _TAGS if details.get(key)), "")
        listed.append((name, int(details.get("size") or 0), tag))
    return listed
