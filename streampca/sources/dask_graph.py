"""The optimised graph of a Dask array: the tasks that each block of rows needs, and their memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from streampca.typing import IntArray

if TYPE_CHECKING:
    import dask.array as da
    from dask._task_spec import GraphNode
    from dask.typing import Key

_MOST_VISITED = 5_000_000
"""Largest number of tasks that are counted; later blocks are taken to need the mean of the earlier ones."""
_MOST_SIMULATED = 200_000
"""Largest number of tasks of the blocks whose memory is simulated."""
_ALLOCATOR = 1.5
"""Bytes that the C library holds in the arenas of threads per byte in use, when arrays of the size of chunks are allocated and freed (measured)."""
_MOVING = ("getitem", "concatenate", "transpose", "reshape", "rechunk", "broadcast_to", "stack", "squeeze", "expand")
"""Prefixes or parts of the keys of tasks that make no temporary arrays."""


@dataclass(frozen=True)
class GraphCost:
    """Tasks and memory for computing the blocks of rows of an array one after the other."""

    reads: IntArray
    """Source tasks that each block of rows needs, ``(n_blocks,)``."""
    n_sources: int
    """Source tasks in all, each counted once."""
    peak_bytes: int
    """Estimated peak memory in bytes while a block is computed, the block included."""

    @property
    def repeats(self) -> float:
        """Return how many times a source task is carried out in one pass, on average."""
        return float(self.reads.sum()) / self.n_sources if self.n_sources else 1.0


class BlockGraph:
    """Tasks of a Dask array after optimisation, from which blocks are computed in the calling thread."""

    def __init__(self, tasks: dict[Key, GraphNode]):
        self.tasks = tasks

    @classmethod
    def of(cls, array: da.Array) -> BlockGraph | None:
        """Return the optimised graph; None if parts of it are held by a cluster (`persist`)."""
        from dask._task_spec import convert_legacy_graph
        from dask.array.optimization import optimize
        from dask.core import flatten

        keys = list(flatten(array.__dask_keys__()))  # type: ignore[no-untyped-call]
        tasks = dict(convert_legacy_graph(dict(optimize(array.__dask_graph__(), keys))))  # type: ignore[no-untyped-call]
        if any(needed not in tasks for task in tasks.values() for needed in task.dependencies):
            return None
        return cls(tasks)

    def needed(self, keys: Iterable[Key]) -> dict[Key, GraphNode]:
        """Return the tasks that `keys` need, themselves included."""
        tasks: dict[Key, GraphNode] = {}
        waiting = list(keys)
        while waiting:
            key = waiting.pop()
            if key not in tasks:
                tasks[key] = self.tasks[key]
                waiting.extend(self.tasks[key].dependencies)
        return tasks

    def data(self) -> Iterator[object]:
        """Yield the values that the graph holds, such as the arrays that its tasks read."""
        for task in self.tasks.values():
            if type(task).__name__ == "DataNode":
                yield getattr(task, "value", None)

    def compute(self, keys: list[Key]) -> list[Any]:
        """Compute the values of `keys` in the order of `steps`; values that are not needed any more are freed at once."""
        values: dict[Key, Any] = {}
        for key, task, freed in steps(self.needed(keys), keys):
            values[key] = task(values)
            for name in freed:
                del values[name]
        return [values[key] for key in keys]

    def cost(self, bands: list[list[Key]], band_bytes: list[int]) -> GraphCost:
        """Return the cost of the blocks of rows whose keys and sizes are `bands` and `band_bytes`."""
        reads = np.zeros(len(bands), dtype=np.int64)
        sources: set[Key] = set()
        visited = counted = 0
        for index, keys in enumerate(bands):
            tasks = self.needed(keys)
            sources_needed = {key for key, task in tasks.items() if _is_source(task, self.tasks)}
            reads[index], visited, counted = len(sources_needed), visited + len(tasks), index + 1
            sources |= sources_needed
            if visited > _MOST_VISITED:
                break
        reads[counted:] = round(reads[:counted].mean()) if counted else 0
        # Blocks that were not looked at have as many sources of their own as those that were.
        n_sources = round(len(sources) * len(bands) / max(1, counted)) if counted < len(bands) else len(sources)
        sizes = BlockSizes(self.tasks, max(band_bytes, default=0))
        return GraphCost(reads, n_sources, round(_ALLOCATOR * self._peak(bands, band_bytes, reads, sizes)))

    def _peak(self, bands: list[list[Key]], band_bytes: list[int], reads: IntArray, sizes: BlockSizes) -> int:
        """Return the peak memory in bytes over the blocks that need or hold most, and over others as time allows."""
        last = len(bands) - 1
        chosen = [int(np.argmax(reads)), int(np.argmax(band_bytes)), 0, last // 2, last] if bands else []
        peak = simulated = 0
        for index in dict.fromkeys([*chosen, *range(0, len(bands), max(1, len(bands) // 64))]):
            tasks = self.needed(bands[index])
            final = dict.fromkeys(bands[index], band_bytes[index] // max(1, len(bands[index])))
            peak = max(peak, sizes.peak_of(tasks, final))
            simulated += len(tasks)
            if simulated > _MOST_SIMULATED:
                break
        return peak


def steps(tasks: Mapping[Key, GraphNode], keys_wanted: Iterable[Key]) -> Iterator[tuple[Key, GraphNode, list[Key]]]:
    """Yield key and task in the order of execution, and the keys whose values are not needed afterwards."""
    from dask.order import order

    priorities, results = order(dict(tasks)), set(keys_wanted)
    users: dict[Key, int] = dict.fromkeys(tasks, 0)
    for task in tasks.values():
        for needed in task.dependencies:
            users[needed] += 1
    for key in sorted(tasks, key=priorities.__getitem__):
        freed = []
        for needed in tasks[key].dependencies:
            users[needed] -= 1
            if not users[needed] and needed not in results:
                freed.append(needed)
        yield key, tasks[key], freed


class BlockSizes:
    """Estimates of the sizes of the values in a graph, which does not hold them.

    Slices give the size of source values, and blocks of the result are known. A reduction is as large as the largest
    value it joins and, of a single value, is shorter along its axes; what takes a list of values (concatenation) is as large as
    all of them; anything else is as large as its largest input. Items take as many bytes as in the source or in the result,
    whichever is more.
    """

    def __init__(self, graph: Mapping[Key, GraphNode], band_bytes: int):
        self._graph, self._band_bytes = graph, band_bytes

    def peak_of(self, tasks: Mapping[Key, GraphNode], final: dict[Key, int]) -> int:
        """Return the peak memory in bytes while `tasks` are executed; `final` are the sizes of the result."""
        held: dict[Key, int] = {}
        total = peak = 0
        for key, task, freed in steps(tasks, final):
            inputs = [held[name] for name in task.dependencies]
            size, scratch = self._of(key, task, inputs)
            held[key] = final.get(key, size)
            total += held[key]
            peak = max(peak, total + scratch)
            total -= sum(held[name] for name in freed)
        return peak + (sum(final.values()) if len(final) > 1 else 0)  # blocks of a band are joined

    def _of(self, key: Key, task: GraphNode, inputs: list[int]) -> tuple[int, int]:
        """Return the size in bytes of the value of a task, and of the temporary memory beside its inputs and value."""
        if _is_data(task) or not hasattr(task, "func"):
            return (max(inputs) if inputs else 0), 0
        name = str(key[0] if isinstance(key, tuple) else key)
        reduced = _axes_of(task)
        if _is_source(task, self._graph):
            shape, itemsize = _read_shape(task, self._graph)
            read = self._band_bytes if shape is None else math.prod(shape) * itemsize
            value = read if reduced is None else _shorter(read, shape, reduced)
            return value, 2 * read if shape is not None else read
        largest, everything = max(inputs, default=0), sum(inputs)
        if reduced is not None:
            value = largest if len(inputs) > 1 else largest // 2
            return value, (16 if "moment" in name or "var" in name or "std" in name else 1) * largest
        value = everything if _takes_a_list(task) else largest
        return value, 0 if any(word in name for word in _MOVING) else value


def _is_data(task: GraphNode) -> bool:
    """Return whether a node of the graph holds a value or is an alias of another node, and runs nothing."""
    return type(task).__name__ in ("DataNode", "Alias")


def _is_source(task: GraphNode, graph: Mapping[Key, GraphNode]) -> bool:
    """Return whether a task reads or makes data: it depends on no other task."""
    return not _is_data(task) and all(type(graph[name]).__name__ == "DataNode" for name in task.dependencies)


def _arguments(value: object, depth: int = 0) -> Iterator[object]:
    """Yield all values in the arguments of a task, including the tasks that were fused into it."""
    yield value
    if depth > 8:
        return
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    elif hasattr(value, "args") and hasattr(value, "func"):
        inner = (*value.args, getattr(value.func, "keywords", None) or {}, getattr(value, "kwargs", None) or {})
    elif type(value).__name__ == "DataNode":
        inner = (getattr(value, "value", None),)
    for argument in inner:
        yield from _arguments(argument, depth + 1)


def _read_shape(task: GraphNode, graph: Mapping[Key, GraphNode]) -> tuple[tuple[int, ...] | None, int]:
    """Return the shape of the slice that a source task reads from a stored array, None if it holds none, and the size of an item."""
    shape: tuple[int, ...] | None = None
    itemsize = 1
    values = [getattr(graph[name], "value", None) for name in task.dependencies]
    for argument in [*_arguments(task), *values]:
        lengths = _lengths(argument)
        if lengths is not None and (shape is None or math.prod(lengths) > math.prod(shape)):
            shape = lengths
        dtype = getattr(argument, "dtype", None)
        if isinstance(dtype, np.dtype):
            itemsize = max(itemsize, dtype.itemsize)
    return shape, itemsize


def _lengths(argument: object) -> tuple[int, ...] | None:
    """Return the lengths of a tuple of slices with both ends given, None for anything else."""
    if not isinstance(argument, tuple) or not argument or not all(isinstance(piece, slice) for piece in argument):
        return None
    ends = [(piece.start, piece.stop) for piece in argument]
    if not all(isinstance(end, int | np.integer) for pair in ends for end in pair):
        return None
    return tuple(max(0, int(stop) - int(start)) for start, stop in ends)


def _axes_of(task: GraphNode) -> tuple[int, ...] | None:
    """Return the axes along which a task reduces its input, None if it is no reduction."""
    for argument in _arguments(task):
        if isinstance(argument, dict) and "axis" in argument and "keepdims" in argument:
            axis = getattr(argument["axis"], "value", argument["axis"])
            return tuple(axis) if isinstance(axis, list | tuple) else (axis,) if isinstance(axis, int) else ()
    return None


def _shorter(n_bytes: int, shape: tuple[int, ...] | None, axes: tuple[int, ...]) -> int:
    """Return the size of the result of a reduction along `axes`, in float64 with a count for each value."""
    if shape is None or not all(axis < len(shape) for axis in axes):
        return n_bytes // 2
    n_items = math.prod(n for axis, n in enumerate(shape) if axis not in axes)
    return min(2 * n_bytes, 16 * n_items)


def _takes_a_list(task: GraphNode) -> bool:
    return any(
        type(argument).__name__ == "List" or isinstance(argument, list) for argument in getattr(task, "args", ())
    )
