"""Folding blocks into the state of an accumulator: the loop that defines the result, and the task that runs one leaf of it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeVar

from streampca.accumulators.base import Accumulator
from streampca.block import Block, RowWeights
from streampca.execution.leaf import LeafRecord, LeafResult, Task
from streampca.planning.plan import Plan
from streampca.planning.shape import Leaf
from streampca.sources.base import Source

_State = TypeVar("_State")


def fold(accumulator: Accumulator[_State, object], blocks: Iterable[Block], n_features: int) -> _State:
    """Return the state of all rows of `blocks`."""
    state = accumulator.init(n_features)
    for block in blocks:
        state = accumulator.update(state, block)
    return state


@dataclass(frozen=True)
class FoldTask(Task[_State]):
    """Fold the blocks of a leaf into a state of an accumulator."""

    common: ClassVar[str] = "accumulator"
    source: Source
    accumulator: Accumulator[_State, object]
    """What blocks are folded with."""
    weights: RowWeights | None = None
    """Sample weights; None = all 1."""
    record: LeafRecord | None = None
    retired: list[_State] = field(default_factory=list, compare=False)
    """States that are merged, whose memory later leaves of this process reuse: new memory costs a fault for each page."""

    def for_leaf(self, leaf: Leaf) -> FoldTask[_State]:
        """Return the task with only the rows and sample weights of `leaf`."""
        start, stop = leaf.edges[0], leaf.edges[-1]
        weights = None if self.weights is None else self.weights.slice(start, stop)
        return replace(self, source=self.source.slice(start, stop), weights=weights, record=None, retired=[])

    def init(self, leaf: Leaf) -> _State:
        """Return the state of no rows."""
        n_features = self.source.shape[1]
        try:
            state = self.retired.pop()
        except IndexError:
            return self.accumulator.init(n_features)
        return self.accumulator.init_within(n_features, state)

    def update(self, state: _State, block: Block) -> _State:
        """Return `state` with the weighted rows of `block` added."""
        return self.accumulator.update(state, block if self.weights is None else self.weights.on(block))

    def retire(self, state: _State) -> None:
        """Keep the memory of `state` for a later leaf, if the accumulator can reuse it."""
        if self.accumulator.reuses_states:
            self.retired.append(state)

    def release(self) -> None:
        """Release the memory that is kept."""
        self.retired.clear()

    def leaves_per_result(self, plan: Plan) -> int:
        """Return the number of leaves per branch of the tree reduction."""
        return plan.leaves_per_branch

    def absorb(self, state: _State, following: _State) -> _State:
        """Return `state` merged with the state of the rows after it; may reuse its memory."""
        return self.accumulator.absorb(state, following)


def merge_neighbours(
    results: Generator[LeafResult[_State]], task: Task[_State], n_leaves: int
) -> Generator[LeafResult[_State]]:
    """Yield `results` merged from left to right in groups of `n_leaves`; the last group may be smaller."""
    merged: LeafResult[_State] | None = None
    size = 0
    try:
        for result in results:
            if merged is None:
                merged = result
            else:
                merged = LeafResult(task.absorb(merged.state, result.state), merged.count + result.count)
            size += 1
            del result
            if size == n_leaves:
                yield merged
                merged, size = None, 0
        if merged is not None:
            yield merged
    finally:
        results.close()
