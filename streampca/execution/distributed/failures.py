"""Errors that are raised for leaves which a cluster could not complete."""

from __future__ import annotations

from collections.abc import Sequence

from streampca.errors import BlockFailedError, ClusterError
from streampca.execution.distributed.retries import ATTEMPTS
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import Source

_SHOWN_KEYS = 5


def workers_killed(leaves: Sequence[Leaf], deaths: tuple[int, int], source: Source, axis: str) -> BlockFailedError:
    """Return the error for `leaves`, or a block as a leaf, that ended every worker they were on; names rows and chunks.

    `deaths` are workers that were lost with them, and those among them that had nothing else of this run.
    """
    keys = [key for leaf in leaves for start, stop in leaf.spans for key in source.keys(start, stop)]
    chunks = f", chunk{'s' if len(keys) > 1 else ''} {', '.join(keys[:_SHOWN_KEYS])}" if keys else ""
    more = f" and {len(keys) - _SHOWN_KEYS} more" if len(keys) > _SHOWN_KEYS else ""
    return BlockFailedError(
        f"{source.description}: {_rows(leaves, axis)}{chunks}{more}: {deaths[0]} workers died while they read this, the last "
        f"{deaths[1]} with nothing else in hand; look at the logs of the workers and at their memory: a chunk on which the "
        "decoder dies is damaged and has to be written again"
    )


def retries_exhausted(leaves: Sequence[Leaf], error: BaseException, plan: Plan) -> ClusterError:
    """Return the error for `leaves` whose transient errors did not end, the last of which is `error`."""
    first, last = leaves[0].index, leaves[-1].index
    which = f"leaf {first}" if first == last else f"leaves {first} to {last}"
    return ClusterError(
        f"{which} of {plan.n_leaves} ({_rows(leaves, plan.axis)}) failed {ATTEMPTS} times, at last with {_in_words(error)}; look "
        "at the logs of the workers and at their memory, and run again"
    )


def of_dask(error: BaseException) -> ClusterError:
    """Return the error for what Dask itself raises in place of a result: no worker came, or its software is another."""
    return ClusterError(
        f"Dask gave up a task: {_in_words(error)}; look at the logs and the memory of the workers, start workers and run again"
    )


def with_advice(error: BaseException) -> BaseException:
    """Return `ClusterError` for an error of workers or scheduler that lack software; any other error as it is."""
    message = " ".join(str(error).split())
    if isinstance(error, ImportError) or message.startswith("Error during deserialization of the task graph"):
        return ClusterError(
            f"the cluster cannot run streampca: {message}; install the same versions where the scheduler and the workers are"
        )
    return error


def _in_words(error: BaseException) -> str:
    message = " ".join(str(error).split())
    return type(error).__name__ + (f": {message}" if message else "")


def _rows(leaves: Sequence[Leaf], axis: str) -> str:
    spans = [span for leaf in leaves for span in leaf.spans]
    start, stop = min(span[0] for span in spans), max(span[1] for span in spans)
    return f"{'rows' if axis == 'samples' else 'features'} {start} to {stop - 1}"
