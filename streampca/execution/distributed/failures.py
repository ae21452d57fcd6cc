"""Errors that are raised for leaves which a cluster could not complete."""

from __future__ import annotations

from streampca.errors import BlockFailedError, ClusterError
from streampca.execution.distributed.attempts import LeafAttempts, one_block
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import Source

_SHOWN_KEYS = 5


def worker_killed(attempts: LeafAttempts, block: int | None, plan: Plan, source: Source) -> BlockFailedError:
    """Return the error for a leaf, or one block of it, that ended every worker it was on; names rows and chunks."""
    leaf = plan.leaf(attempts.leaf)
    leaf = leaf if block is None else one_block(leaf, block)
    keys = [key for start, stop in leaf.spans for key in source.keys(start, stop)]
    chunks = f", chunk{'s' if len(keys) > 1 else ''} {', '.join(keys[:_SHOWN_KEYS])}" if keys else ""
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    unit = "" if block is not None else " (no block of it did so by itself)"
    return BlockFailedError(
        f"{source.description}: {_rows(leaf, plan.axis)}{chunks}{more}: the worker died in each of {attempts.losses} attempts, "
        f"{attempts.losses_alone} times with nothing else in hand{unit}; look at the logs of the workers and at their memory: a chunk on "
        "which the decoder dies is damaged and has to be written again"
    )


def retries_exhausted(attempts: LeafAttempts, error: BaseException, plan: Plan) -> ClusterError:
    """Return the error for a leaf whose transient errors did not end, the last of which is `error`."""
    message = " ".join(str(error).split())
    cause = type(error).__name__ + (f": {message}" if message else "")
    return ClusterError(
        f"{_leaf(attempts, plan)} failed {attempts.failures} times, at last with {cause}; look at the logs of the workers and at their "
        "memory, and run again"
    )


def stalled(attempts: LeafAttempts, plan: Plan, median_seconds: float) -> ClusterError:
    """Return the error for a leaf that finishes on no worker."""
    return ClusterError(
        f"{_leaf(attempts, plan)} was begun {attempts.n_tasks} times and is not done, nor is any other: leaves take "
        f"{median_seconds:.1f} s else; look at the logs of the workers and at the store, and run again"
    )


def with_advice(error: BaseException) -> BaseException:
    """Return `ClusterError` for an error of workers or scheduler that lack software; any other error as it is."""
    message = " ".join(str(error).split())
    if isinstance(error, ImportError) or message.startswith("Error during deserialization of the task graph"):
        return ClusterError(
            f"the cluster cannot run streampca: {message}; install the same versions where the scheduler and the workers are"
        )
    return error


def _leaf(attempts: LeafAttempts, plan: Plan) -> str:
    return f"leaf {attempts.leaf} of {plan.n_leaves} ({_rows(plan.leaf(attempts.leaf), plan.axis)})"


def _rows(leaf: Leaf, axis: str) -> str:
    start, stop = min(span[0] for span in leaf.spans), max(span[1] for span in leaf.spans)
    return f"{'rows' if axis == 'samples' else 'features'} {start} to {stop - 1}"
