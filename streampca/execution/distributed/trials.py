"""What has befallen a leaf on a cluster that is not done yet, and when it is to blame for the workers that were lost with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from streampca.execution.distributed.retries import ATTEMPTS
from streampca.planning.leaves import Leaf

_PATIENCE = 3  # times as many attempts where workers are lost for other reasons, too


@dataclass(eq=False)
class LeafAttempts:
    """The attempts at one leaf."""

    leaf: int
    """Position of the leaf."""
    losses: int = 0
    """Workers that were lost while they had it."""
    alone: int = 0
    """Those of them that had nothing else."""
    failures: int = 0
    """Errors that may pass, and results that were lost."""
    moved: int = 0
    """How often it was begun once more because nothing was finished any more."""
    block: int | None = None
    """Block that is tried by itself, None where it is the whole leaf."""
    cleared: bool = False
    """Whether every block was survived by itself."""
    not_before: float = 0.0
    """When the next attempt may begin."""
    avoid: set[str] = field(default_factory=set)
    """Workers it failed on."""
    keys: set[str] = field(default_factory=set)
    """Tasks under way."""
    n_tasks: int = 0
    """Tasks so far."""

    def lost(self, *, alone: bool, all_losses: int) -> bool:
        """Count a lost worker, the `all_losses`-th of this reading; return whether the leaf, or the block tried, is to blame.

        A leaf is to blame that was `ATTEMPTS` times on a worker that was lost, all but the first time with nothing beside
        it. Where workers were lost without it as well, three times as many are needed. The last attempt is made block by
        block, so that it can be said which of them it is.
        """
        self.losses += 1
        self.alone += alone
        needed = ATTEMPTS if self.losses == all_losses else _PATIENCE * ATTEMPTS
        tried_by_blocks = self.block is not None or self.cleared
        if self.losses >= needed and self.alone >= ATTEMPTS - 1 and tried_by_blocks:
            return True
        by_blocks = self.losses >= needed - 1 and self.alone >= ATTEMPTS - 2 and not self.cleared
        self.block = 0 if by_blocks else None
        return False

    def survived(self, n_blocks: int) -> None:
        """Go on from the block that was tried by itself to the next one, behind the last to the whole leaf."""
        if self.block is not None:
            self.cleared = self.block + 1 == n_blocks
            self.block = None if self.cleared else self.block + 1


def one_block(leaf: Leaf, number: int) -> Leaf:
    """Return a leaf of one block of `leaf`."""
    return replace(leaf, edges=leaf.spans[number], shuffled=None)
