"""What is said of leaves that a cluster could not do."""

from __future__ import annotations

from streampca.errors import BlockFailedError, ClusterError
from streampca.execution.distributed.trials import LeafAttempts, one_block
from streampca.planning.leaves import Leaf
from streampca.planning.plan import Plan
from streampca.sources.base import Source

_SHOWN_KEYS = 5


def blamed(trial: LeafAttempts, block: int | None, plan: Plan, source: Source) -> BlockFailedError:
    """Return the error that names the rows, all of a leaf or those of one block, that ended their workers."""
    leaf = plan.leaf(trial.leaf)
    leaf = leaf if block is None else one_block(leaf, block)
    keys = [key for start, stop in leaf.spans for key in source.keys(start, stop)]
    chunks = f", chunk{'s' if len(keys) > 1 else ''} {', '.join(keys[:_SHOWN_KEYS])}" if keys else ""
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    unit = "" if block is not None else " (no block of it did so by itself)"
    return BlockFailedError(
        f"{source.description}: {_rows(leaf, plan.axis)}{chunks}{more}: the worker died in each of {trial.losses} attempts, "
        f"{trial.alone} times with nothing else in hand{unit}; look at the logs of the workers and at their memory: a chunk on "
        "which the decoder dies is damaged and has to be written again"
    )


def given_up(trial: LeafAttempts, error: BaseException, plan: Plan) -> ClusterError:
    """Return what is raised for errors that did not pass."""
    said = " ".join(str(error).split())
    what = type(error).__name__ + (f": {said}" if said else "")
    return ClusterError(
        f"{_leaf(trial, plan)} failed {trial.failures} times, at last with {what}; look at the logs of the workers and at their "
        "memory, and run again"
    )


def hanging(trial: LeafAttempts, plan: Plan, median_seconds: float) -> ClusterError:
    """Return what is raised for a leaf that is not done wherever it is begun."""
    return ClusterError(
        f"{_leaf(trial, plan)} was begun {trial.n_tasks} times and is not done, nor is any other: leaves take "
        f"{median_seconds:.1f} s else; look at the logs of the workers and at the store, and run again"
    )


def named(error: BaseException) -> BaseException:
    """Return an error of ours for one that says that workers or scheduler lack what they need; any other as it is."""
    said = " ".join(str(error).split())
    if isinstance(error, ImportError) or said.startswith("Error during deserialization of the task graph"):
        return ClusterError(
            f"the cluster cannot run streampca: {said}; install the same versions where the scheduler and the workers are"
        )
    return error


def _leaf(trial: LeafAttempts, plan: Plan) -> str:
    return f"leaf {trial.leaf} of {plan.n_leaves} ({_rows(plan.leaf(trial.leaf), plan.axis)})"


def _rows(leaf: Leaf, axis: str) -> str:
    start, stop = min(span[0] for span in leaf.spans), max(span[1] for span in leaf.spans)
    return f"{'rows' if axis == 'samples' else 'features'} {start} to {stop - 1}"
