"""The accumulator protocol, its laws, and the merge that all accumulators with `absorb` share.

Up to rounding, `merge` is associative and commutative, `init` is its identity, and accumulating the same rows in any
chunks gives the same state. ``tests/property/test_laws.py`` tests these laws; a new accumulator joins by one entry in
its table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from streampca.block import Block
from streampca.errors import MergeError
from streampca.typing import Array, FloatArray

State = TypeVar("State")
Result = TypeVar("Result", covariant=True)


class AccumulatedState(Protocol):
    """A state that records the length of the rows behind it."""

    @property
    def n_features(self) -> int:
        """Return the argument of `init` that made the state: the length of a row of its blocks."""
        ...


class StateAboutOrigin:
    """Base class of states that store means as a number near each mean and a small difference from it."""

    origin: FloatArray
    offset: FloatArray

    @property
    def n_features(self) -> int:
        """Return the length of a row."""
        return len(self.origin)

    @property
    def mean(self) -> FloatArray:
        """Return the mean of each feature of the accumulated rows, shape ``(n_features,)``."""
        return self.origin + self.offset


SizedState = TypeVar("SizedState", bound=AccumulatedState)


class Accumulator(Protocol[State, Result]):
    """Protocol of a frozen configuration without data; all data is in the state, a frozen dataclass of arrays and integers.

    Up to rounding, `merge` is associative and commutative, the state of `init` is its identity, and the division of the rows
    into blocks does not change the result. `update` and `absorb` may reuse the memory of their first argument: use only
    the state that they return.

    Examples
    --------
    The covariance matrix of 1,000 rows, from the states of four blocks:

    >>> import numpy as np
    >>> import streampca as sp
    >>> rows = np.random.default_rng(0).normal(size=(1000, 3))
    >>> covariance = sp.accumulators.Covariance()
    >>> states = [covariance.update(covariance.init(3), block) for block in np.split(rows, 4)]
    >>> matrix = covariance.finalize(covariance.merge(states)).dense()
    >>> bool(np.allclose(matrix, np.cov(rows, rowvar=False)))
    True
    """

    def init(self, n_features: int) -> State:
        """Return the state of no rows, for rows of `n_features` features."""
        ...

    def update(self, state: State, block: Block | Array) -> State:
        """Return `state` with the rows of `block` added; may reuse the memory of `state`, never that of `block`.

        Parameters
        ----------
        state : State
            A state that `init`, `update`, `absorb` or `merge` returned.
        block : array or streampca.block.Block, shape (n_rows, n_features)
            The rows. A `Block` has their position in the source and their weights; rows of an array have weight 1 and are
            the first rows of the source, which matters to accumulators that draw or group rows by index.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity, unless the accumulator allows missing values.
        """
        ...

    def merge(self, states: Sequence[State]) -> State:
        """Return the state of all rows behind `states`, at least one; does not change any of them.

        Raises
        ------
        MergeError
            If the states were made with different parameters.
        """
        ...

    def absorb(self, state: State, other: State) -> State:
        """Return `state` merged with `other`; may reuse the memory of `state`, and leaves `other` unchanged."""
        ...

    def finalize(self, state: State) -> Result:
        """Return the result for the rows behind `state`."""
        ...

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        ...

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update with blocks of `n_rows` rows in one thread."""
        ...


AnyAccumulator: TypeAlias = Accumulator[Any, Any]
"""An accumulator of any states, which only it reads."""


class Forwarding:
    """Base class of accumulators that update the states of another one; it forwards all else."""

    accumulator: AnyAccumulator

    def init(self, n_features: int) -> Any:
        """Return the state of no rows."""
        return self.accumulator.init(n_features)

    def merge(self, states: Sequence[Any]) -> Any:
        """Merge states."""
        return self.accumulator.merge(states)

    def absorb(self, state: Any, other: Any) -> Any:
        """Absorb a state."""
        return self.accumulator.absorb(state, other)

    def finalize(self, state: Any) -> Any:
        """Return the result."""
        return self.accumulator.finalize(state)

    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""
        return self.accumulator.state_bytes(n_features)


class SequentialMerge(Generic[SizedState]):
    """Base class that defines `merge` as repeated `absorb`, from left to right, into a new empty state."""

    def init(self, n_features: int) -> SizedState:
        """Return the state of no rows."""
        raise NotImplementedError

    def absorb(self, state: SizedState, other: SizedState) -> SizedState:
        """Return `state` merged with `other`; may reuse the memory of `state`."""
        raise NotImplementedError

    def merge(self, states: Sequence[SizedState]) -> SizedState:
        """Return the state of all rows behind `states`, merged from left to right; does not change any of them."""
        total = self.init(states[0].n_features)
        for state in states:
            total = self.absorb(total, state)
        return total

    def finalize_bytes(self, n_features: int) -> int:
        """Return the memory in bytes of `finalize`, without the state."""
        return 0


def require_same_layout(
    state: AccumulatedState, other: AccumulatedState, entries: tuple[int, int], same: str = "features and tile_size"
) -> None:
    """Raise `MergeError` unless two states have the same number of features and of stored `entries`."""
    if state.n_features != other.n_features or entries[0] != entries[1]:
        raise MergeError(
            f"states of {state.n_features} and {other.n_features} features, stored in {entries[0]} and {entries[1]} "
            f"entries, cannot be merged: expected the same {same}"
        )
