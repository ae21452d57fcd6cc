"""How many leaves a reading is cut into, and how many of them are merged before the rest: by the data alone, as the bits are."""

from __future__ import annotations

from dataclasses import dataclass

_FIRST_LEAVES, _FIRST_LEAF_ROWS = 16, 8192
_LEAF_ROWS, _LEAF_BYTES = 32768, 64 * 2**20
_MOST_LEAVES, _LEAST_MOST = 65536, 64
_MOST_STATES = 2**38  # bytes of states that one reading brings to the driver: minutes of its network
_MOST_MERGED = 2**42  # bytes of states that workers merge among each other: minutes of the networks of a hundred
_LARGE_STATE_BYTES = 64 * 2**20
_BRANCHES, _BRANCHED_FROM = 64, 256


@dataclass(frozen=True)
class Leaf:
    """A run of consecutive blocks that one task reads and folds."""

    index: int
    """Position in the order of merging."""
    edges: tuple[int, ...]
    """First row of each block, and the row behind the last; only the outermost two where blocks are not neighbours."""
    shuffled: tuple[tuple[int, int], ...] | None = None
    """First row and row behind the last of each block in the order of reading, where they are not neighbours."""

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Return first row and row behind the last of each block, in the order of reading."""
        return tuple(zip(self.edges[:-1], self.edges[1:], strict=True)) if self.shuffled is None else self.shuffled

    @property
    def n_rows(self) -> int:
        """Return the number of rows."""
        return sum(stop - start for start, stop in self.spans)


def count_leaves(n: int, n_blocks: int, row_bytes: int, state_bytes: int = 0) -> int:
    """Return a number of leaves that depends on the data alone.

    About sixteen as soon as each has 8,192 rows, and more, in sixteens, once each has 32,768 rows and 64 MiB: adding a
    leaf's matrix to the total then takes less than one part in a hundred of making it. Never more than `most_leaves`.
    """
    many = min(n // _LEAF_ROWS, n * row_bytes // _LEAF_BYTES)
    if many >= 2 * _FIRST_LEAVES:
        return int(min(many // _FIRST_LEAVES * _FIRST_LEAVES, n_blocks, most_leaves(state_bytes)))
    most = max(1, min(n // _FIRST_LEAF_ROWS, n_blocks))
    if most < _FIRST_LEAVES:
        return most
    return min(
        range(_FIRST_LEAVES // 2, min(most, _FIRST_LEAVES * 3 // 2) + 1),
        key=lambda n_leaves: (_unevenness(n_blocks, n_leaves), abs(n_leaves - _FIRST_LEAVES)),
    )


def _unevenness(n_blocks: int, n_leaves: int) -> float:
    """Return how much longer 2, 4 and 8 threads take with that many leaves than if they shared the blocks evenly."""
    total = 0.0
    for threads in (2, 4, 8):
        busy = [0] * threads
        for i in range(n_leaves):
            busy[busy.index(min(busy))] += n_blocks * (i + 1) // n_leaves - n_blocks * i // n_leaves
        total += max(busy) * threads / n_blocks
    return round(total, 6)


def most_leaves(state_bytes: int) -> int:
    """Return how many leaves there are at most: 65,536, and no more, above 64, than have 256 GiB of states, of branches 4 TiB.

    Driver, scheduler and network get through that in minutes; what would be more is folded into one state where it is read.
    """
    merged = _MOST_MERGED // max(1, state_bytes)
    if state_bytes >= _LARGE_STATE_BYTES and merged >= _BRANCHED_FROM:
        return min(_MOST_LEAVES, merged)
    return min(_MOST_LEAVES, max(_LEAST_MOST, _MOST_STATES // max(1, state_bytes)))


def leaves_per_branch(n_leaves: int, state_bytes: int) -> int:
    """Return how many neighbouring leaves are merged into a branch, and branches into the whole; 1 where leaves are so themselves.

    Branches are merged where the leaves are, on the workers of a cluster, so that large states come to the driver 64 times and
    not ten thousand times.
    """
    if state_bytes < _LARGE_STATE_BYTES or n_leaves < _BRANCHED_FROM:
        return 1
    return -(-n_leaves // _BRANCHES)


def states_at_once(window: int, n_leaves: int, per_branch: int) -> int:
    """Return how many states a process holds: the whole, those of leaves under way or waiting, a branch, and one that comes to it."""
    return 1 + min(window, n_leaves) + (2 if per_branch > 1 else 0)
