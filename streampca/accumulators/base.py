"""The base class of accumulators, with their laws and all members that other packages use.

Up to rounding, `merge` is associative and commutative, `init` is its identity, and accumulating the same rows in any
chunks gives the same state. ``tests/property/test_laws.py`` tests these laws; add a new accumulator to its table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast

import numpy as np

from streampca.block import Block
from streampca.errors import MergeError
from streampca.storage.state_file import Elsewhere
from streampca.typing import Array, FloatArray, override

State = TypeVar("State")
Result = TypeVar("Result", covariant=True)


class StateAboutOrigin:
    """Base class of states that store each mean as a number near it plus a small difference."""

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


class Accumulator(ABC, Generic[State, Result]):
    """Base class of frozen configurations without data; all data is in the state, a frozen dataclass of arrays and integers.

    Up to rounding, `merge` is associative and commutative, the state of `init` is its identity, and the division of the rows
    into blocks does not change the result. `update` and `absorb` may reuse the memory of their first argument: use only
    the state that they return. A subclass defines `init`, `update`, `absorb`, `state_bytes` and `scratch_bytes`, and
    overrides other methods if their defaults do not hold.

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

    reuses_states: ClassVar[bool] = False
    """Whether `init_within` allocates no memory."""
    n_threads: int = 0
    """Number of threads that share one update; 0 if an update always runs in one thread."""
    ddof: int = 0
    """Number that `divisor` subtracts from the weight."""
    shares_states: ClassVar[bool] = False
    """Whether equal accumulators give the same states for the same rows, so that fits in one pass share a state."""

    @property
    def rows_device(self) -> str:
        """Return the name of the device whose arrays `update` accepts in addition to numpy arrays; empty for none."""
        return ""

    @abstractmethod
    def init(self, n_features: int) -> State:
        """Return the empty state for rows of `n_features` features: the identity of `merge`."""

    def init_within(self, n_features: int, state: State) -> State:
        """Return the empty state, in the memory of `state` if the accumulator can reuse it; `state` must not be used afterwards."""
        return self.init(n_features)

    @abstractmethod
    def update(self, state: State, block: Block | Array) -> State:
        """Return `state` with the rows of `block` added; may reuse the memory of `state`, never that of `block`.

        Parameters
        ----------
        state : State
            A state that `init`, `update`, `absorb` or `merge` returned.
        block : array or streampca.block.Block, shape (n_rows, n_features)
            The rows. A `Block` holds their position in the source and their weights. Rows of an array have weight 1 and
            count as the first rows of the source, which matters to accumulators that draw or group rows by index.

        Raises
        ------
        NotFiniteError
            If the rows hold NaN or infinity, unless the accumulator allows missing values.
        """

    @abstractmethod
    def absorb(self, state: State, other: State) -> State:
        """Return the merged state of `state` and `other`; may reuse the memory of `state`, and leaves `other` unchanged.

        Raises
        ------
        MergeError
            If the states were made with different parameters.
        """

    def merge(self, states: Sequence[State]) -> State:
        """Return the state of the rows of all `states` (at least one), merged from left to right, without changing them.

        Raises
        ------
        MergeError
            If the states were made with different parameters.
        """
        first: Any = states[0]
        return reduce(self.absorb, states, self.init(first.n_features))

    def subtract(self, state: State, other: State, precision: float = 1e-14) -> tuple[State, float]:
        """Remove the rows of `other` from `state`, in its memory: the inverse of `absorb`.

        `precision` is the size of rounding errors relative to the variances of `state`. The second returned value is the factor
        by which the relative error grows.

        Raises
        ------
        MergeError
            If the accumulator cannot subtract, or if `other` has rows that `state` does not have.
        """
        raise MergeError(f"states of {type(self).__name__} cannot be subtracted: fit the rows that remain")

    def finalize(self, state: State) -> Result:
        """Return the result for the rows accumulated in `state`; by default `state` itself, whose fields are the result."""
        return cast("Result", state)

    def divisor(self, state: State) -> float:
        """Return the divisor of variances, by default W − ddof."""
        counted: Any = state
        return float(counted.weight - self.ddof)

    def with_counts(self, state: State, of: Any) -> State:
        """Return `state` with the number of rows and the weights of the state `of`, if it has these fields."""
        counted: Any = state
        names = {one.name for one in fields(counted)} & {"n_samples", "weight", "weight_squares"}
        return cast("State", replace(counted, **{name: getattr(of, name) for name in names}))

    def shares(self, n_features: int) -> int:
        """Return the maximum number of threads that share an update."""
        return 1

    def with_threads(self, n_threads: int) -> Self:
        """Return the accumulator with `n_threads` threads for one update; the bits do not change."""
        own: Any = self
        return cast("Self", replace(own, n_threads=n_threads)) if self.n_threads else self

    def for_reading(self) -> Hashable | None:
        """Return the accumulator without the fields that only `finalize` uses: equal ones give the same states for the same rows.

        None if accumulators are not compared.
        """
        return self if self.shares_states else None

    @abstractmethod
    def state_bytes(self, n_features: int) -> int:
        """Return the size of a state in bytes."""

    @abstractmethod
    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of an update with blocks of `n_rows` rows in one thread.

        `itemsize` is the size of the floating type of the rows.
        """

    def finalize_bytes(self, n_features: int) -> int:
        """Return the memory in bytes of `finalize`, without the state."""
        return 0

    def stored_form(self, state: State) -> tuple[AnyAccumulator, Any, int]:
        """Return the accumulator and the state for stored models, in the memory of `state`, and the number of rows left out."""
        return self, state, 0


AnyAccumulator: TypeAlias = Accumulator[Any, Any]
"""An accumulator with any type of state, which only the accumulator reads."""


class Forwarding(Accumulator[Any, Any]):
    """Base class of accumulators that update the states of another accumulator, and forward all other calls to it."""

    accumulator: AnyAccumulator

    @override
    def init(self, n_features: int) -> Any:
        return self.accumulator.init(n_features)

    @override
    def merge(self, states: Sequence[Any]) -> Any:
        return self.accumulator.merge(states)

    @override
    def absorb(self, state: Any, other: Any) -> Any:
        return self.accumulator.absorb(state, other)

    @override
    def finalize(self, state: Any) -> Any:
        return self.accumulator.finalize(state)

    @override
    def state_bytes(self, n_features: int) -> int:
        return self.accumulator.state_bytes(n_features)

    @override
    def finalize_bytes(self, n_features: int) -> int:
        return self.accumulator.finalize_bytes(n_features)


_HERE = (np.ndarray, int, float, str, type(None))


def settled(state: Any) -> Any:
    """Return `state` with everything held elsewhere (`Elsewhere`) moved to the memory of this process; unchanged if nothing is."""
    if isinstance(state, Elsewhere):
        return np.asarray(state)
    if isinstance(state, tuple):
        parts = tuple(map(settled, state))
        return parts if any(a is not b for a, b in zip(parts, state, strict=True)) else state
    if is_dataclass(state) and not isinstance(state, type):
        inner = {name: value for name, value in vars(state).items() if not isinstance(value, _HERE)}
        changed = {name: new for name, value in inner.items() if (new := settled(value)) is not value}
        return replace(state, **changed) if changed else state
    return state


def require_same_layout(state: Any, other: Any, entries: tuple[int, int], same: str = "features and tile_size") -> None:
    """Raise `MergeError` unless two states have the same number of features and of stored `entries`."""
    if state.n_features != other.n_features or entries[0] != entries[1]:
        raise MergeError(
            f"states of {state.n_features} and {other.n_features} features, stored in {entries[0]} and {entries[1]} "
            f"entries, cannot be merged: expected the same {same}"
        )
