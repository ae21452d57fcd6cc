"""Symbolic links inside a local store are followed as long as they stay inside it."""

from __future__ import annotations

import os
from pathlib import Path

from streampca.errors import OutsideStoreError


def require_inside(root: Path, key: str) -> None:
    """Raise `OutsideStoreError` if the file of `key` below `root` lies elsewhere, by a symbolic link.

    (`root` itself may be a link. A process that may write to the store can still change it between this check and the read.)
    """
    path = os.fspath(root)
    for part in key.split("/"):
        path = f"{path}/{part}"
        if os.path.islink(path):
            break
    else:
        return
    target, real = os.path.realpath(root / key), os.path.realpath(root)
    if not target.startswith(os.path.join(real, "")):
        raise OutsideStoreError(
            f"{root}: {key} lies outside of the store, at {target}, by a symbolic link: if that is meant, "
            "set source.follow_symlinks: true, or open_source(…, follow_symlinks=True)"
        )
