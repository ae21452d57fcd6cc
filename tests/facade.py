"""The doors of streampca that tests use beside its public names: blocks of a chosen size, checkpoints that are all written.

The settings are environment variables, so that they hold in the processes that a test starts, too.
"""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch


def blocks_of(n_rows: int) -> Any:
    """Return a context in which plans have blocks of `n_rows` rows, or features where the table is read by features."""
    return patch.dict(os.environ, {"STREAMPCA_BLOCK_ROWS": str(n_rows)})


def all_checkpoints() -> Any:
    """Return a context in which every checkpoint that is due is written, whatever the time that it takes."""
    return patch.dict(os.environ, {"STREAMPCA_CHECKPOINT_SHARE": "1"})
