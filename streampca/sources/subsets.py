"""Tables of some features of another table, in the order of that one."""

from __future__ import annotations

import numpy as np

from streampca.sources.base import Source
from streampca.sources.steps import ChosenFeatures, SteppedSource
from streampca.typing import BoolArray, IntArray


def with_features(source: Source, used: BoolArray, alike: Source | None = None) -> SteppedSource:
    """Return the table of the features of `source` that are `used`, ``(n_features,)``; dense.

    Tables of some features of one table are read together with it. `alike` is the same table opened by itself, which the result is
    described as.
    """
    return SteppedSource(source, [ChosenFeatures(used)], alike=alike, part_of=source)


def part_of(source: Source) -> tuple[Source, ChosenFeatures | None]:
    """Return the table that is read for `source`, and which of its features `source` has; None where it is the table itself."""
    if isinstance(source, SteppedSource) and source.part_of is not None:
        chosen = source.steps[-1]
        if isinstance(chosen, ChosenFeatures):
            return source.part_of, chosen
    return source, None


def view_of(whole: Source, own: Source) -> Source:
    """Return a source with the rows of `own` that reads those of `whole`; `own` itself where it has others than some of them."""
    places = _places_in(whole, own)
    alike = own.shape[0] == whole.shape[0] and own.dtype == whole.dtype and not whole.sparse
    if not alike or places is None or (np.diff(places) <= 0).any() or len(places) != own.shape[1]:
        return own
    used = np.zeros(whole.shape[1], dtype=bool)
    used[places] = True
    return with_features(whole, used, own)


def _places_in(whole: Source, own: Source) -> IntArray | None:
    """Return where the features of `own` are among those of `whole`, by names or variables; None if not all are there."""
    if whole.feature_names is not None and own.feature_names is not None:
        by_name = {name: place for place, name in enumerate(whole.feature_names)}
        found = [by_name.get(name, -1) for name in own.feature_names]
        return None if min(found) < 0 or len(by_name) < len(whole.feature_names) else np.array(found)
    if whole.labels is None or own.labels is None:
        return None
    starts, start = {}, 0
    for variable in whole.labels.variables:
        starts[variable.name, variable.shape] = start
        start += variable.size
    if any((variable.name, variable.shape) not in starts for variable in own.labels.variables):
        return None
    stored = np.concatenate([starts[v.name, v.shape] + np.arange(v.size) for v in own.labels.variables])
    places = np.full(start, -1)
    places[whole.labels.indices()] = np.arange(whole.shape[1])
    found_places: IntArray = places[stored[own.labels.indices()]]
    return None if (found_places < 0).any() else found_places
