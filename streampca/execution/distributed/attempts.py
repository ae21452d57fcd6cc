"""Attempts at a leaf: the tasks that run it, and whether it caused the loss of workers."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from streampca.execution.distributed.retries import ATTEMPTS
from streampca.planning.shape import Leaf
from streampca.system.distributed_interface import DaskFuture

_PATIENCE = 3  # times as many attempts where workers are lost for other reasons, too


@dataclass(eq=False)
class RunningTask:
    """A task that was submitted to a worker."""

    key: str
    """Key of the task."""
    leaf: int
    """Index of the leaf."""
    block: int | None
    """Number of the only block that it reads, None for all."""
    worker: str
    """Address of the worker."""
    began: float
    """When it was submitted, by `time.monotonic`."""
    future: DaskFuture
    """Dask's future of the result."""
    fetching: Future[object] | None = None
    """Fetches the result; None before the task is done."""

    def release(self) -> None:
        """Release the result on the worker and stop fetching it."""
        self.future.release()
        if self.fetching is not None:
            self.fetching.cancel()


@dataclass(eq=False)
class LeafAttempts:
    """Attempts at one leaf that is not done."""

    leaf: int
    """Index of the leaf."""
    losses: int = 0
    """Workers lost while they had the leaf."""
    losses_alone: int = 0
    """Those of them that had no other task."""
    failures: int = 0
    """Transient errors and lost results."""
    moves: int = 0
    """How often the leaf was submitted to another worker because no leaf finished any more."""
    block: int | None = None
    """Number of the block that is tried alone, None for the whole leaf."""
    blocks_passed: bool = False
    """Whether every block succeeded alone."""
    not_before: float = 0.0
    """When the next attempt may begin."""
    avoid: set[str] = field(default_factory=set)
    """Addresses of workers on which it failed."""
    keys: set[str] = field(default_factory=set)
    """Keys of running tasks."""
    n_tasks: int = 0
    """Number of tasks so far."""

    def record_loss(self, *, alone: bool, all_losses: int) -> bool:
        """Count a lost worker, the `all_losses`-th of this pass; return whether the leaf, or the block tried alone, is the cause.

        A leaf is the cause if it was `ATTEMPTS` times on a worker that was lost, all but the first time alone on it. Where
        workers were lost without it as well, three times as many losses are needed. The last attempt runs block by block,
        so that the error can name one.
        """
        self.losses += 1
        self.losses_alone += alone
        needed = ATTEMPTS if self.losses == all_losses else _PATIENCE * ATTEMPTS
        tried_by_blocks = self.block is not None or self.blocks_passed
        if self.losses >= needed and self.losses_alone >= ATTEMPTS - 1 and tried_by_blocks:
            return True
        by_blocks = self.losses >= needed - 1 and self.losses_alone >= ATTEMPTS - 2 and not self.blocks_passed
        self.block = 0 if by_blocks else None
        return False

    def block_succeeded(self, n_blocks: int) -> None:
        """Continue with the next block alone, after the last one with the whole leaf."""
        if self.block is not None:
            self.blocks_passed = self.block + 1 == n_blocks
            self.block = None if self.blocks_passed else self.block + 1


def one_block(leaf: Leaf, number: int) -> Leaf:
    """Return a leaf of one block of `leaf`."""
    return replace(leaf, edges=leaf.spans[number], shuffled=None)
