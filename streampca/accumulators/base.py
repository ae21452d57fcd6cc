"""What every accumulator does, and the laws it keeps.

Up to rounding: `merge` is associative and commutative, `init` is its identity, and folding any chunking of the same
rows gives the same state. ``tests/property/test_laws.py`` tests them; a new accumulator joins by a row of its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from streampca.block import Block

State = TypeVar("State")
Result = TypeVar("Result", covariant=True)


class Accumulator(Protocol[State, Result]):
    """A frozen configuration without data; all data is in the state, a frozen dataclass of arrays and integers."""

    def init(self, n_features: int) -> State:
        """Return the state of no rows."""
        ...

    def update(self, state: State, block: Block | NDArray[Any]) -> State:
        """Return the state with the rows of `block` added; may reuse the memory of `state`, never that of `block`."""
        ...

    def merge(self, states: Sequence[State]) -> State:
        """Return the state of all rows behind `states`, none of which is changed."""
        ...

    def absorb(self, state: State, other: State) -> State:
        """Return `state` merged with `other`; may reuse the memory of `state`."""
        ...

    def finalize(self, state: State) -> Result:
        """Return what the rows behind `state` amount to."""
        ...

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        ...

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes that updating with blocks of `n_rows` rows takes in one thread."""
        ...
