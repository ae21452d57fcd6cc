"""Settings that no user needs to fit a model, from environment variables: rows of a block, and the share of checkpoints."""

from __future__ import annotations

import os


def block_rows() -> int | None:
    """Return the rows of every block, ``STREAMPCA_BLOCK_ROWS``; None, the default, leaves them to the plan."""
    rows = os.environ.get("STREAMPCA_BLOCK_ROWS")
    return None if rows is None else int(rows)


def checkpoint_share() -> float:
    """Return the share of a run's time that writing checkpoints may take, ``STREAMPCA_CHECKPOINT_SHARE``.

    A checkpoint that is due is postponed until it takes no more; from 1 on, none is postponed.
    """
    return float(os.environ.get("STREAMPCA_CHECKPOINT_SHARE", "0.02"))
