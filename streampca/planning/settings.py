"""Settings that no user needs to fit a model, from environment variables: rows of a block, and the share of checkpoints."""

from __future__ import annotations

import os

from streampca.errors import ParameterError


def block_rows() -> int | None:
    """Return the rows of every block, ``STREAMPCA_BLOCK_ROWS``; None, the default, leaves them to the plan."""
    rows = os.environ.get("STREAMPCA_BLOCK_ROWS")
    if rows is None:
        return None
    if not rows.isdecimal() or int(rows) == 0:
        raise ParameterError(
            f"STREAMPCA_BLOCK_ROWS={rows!r}: expected the number of rows of a block, at least 1; unset it for the default"
        )
    return int(rows)


def checkpoint_share() -> float:
    """Return the share of a run's time that writing checkpoints may take, ``STREAMPCA_CHECKPOINT_SHARE``.

    A checkpoint that is due is postponed until it takes no more; from 1 on, none is postponed.
    """
    return float(os.environ.get("STREAMPCA_CHECKPOINT_SHARE", "0.02"))
