"""Inventories of other projects' documentation, written from a list, so that Sphinx resolves their names without a network."""

from __future__ import annotations

import zlib
from pathlib import Path


def write_inventories(listing: Path, directory: Path) -> dict[str, tuple[str, Path]]:
    """Write an inventory for each project of `listing`.

    Parameters
    ----------
    listing : Path
        Sections that begin with ``[name] URL``; below, one name a line: role, name, page relative to the URL (``$`` for
        the name) and, for labels, the title of what they stand before.
    directory : Path
        Where the inventories go.

    Returns
    -------
    dict of str to (str, Path)
        URL and inventory of every project.
    """
    entries: dict[str, list[str]] = {}
    urls: dict[str, str] = {}
    name = ""
    for line in listing.read_text().splitlines():
        if line.startswith("["):
            name, urls[name] = line[1:].split("] ")
            entries[name] = []
        elif line and not line.startswith("#"):
            role, what, page, *title = line.split(maxsplit=3)
            entries[name].append(f"{what} {role} 1 {page} {title[0] if title else '-'}\n")
    directory.mkdir(parents=True, exist_ok=True)
    found = {}
    for name, lines in entries.items():
        header = f"# Sphinx inventory version 2\n# Project: {name}\n# Version: \n# The remainder of this file is compressed using zlib.\n"
        path = directory / f"{name}.inv"
        content = header.encode() + zlib.compress("".join(lines).encode())
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)
        found[name] = (urls[name], path)
    return found
