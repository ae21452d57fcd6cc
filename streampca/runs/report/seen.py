"""What figures show, in words for readers who do not see them: the numbers that one would read off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import streampca.formatting as words
from streampca.typing import FloatArray, IntArray

_ORDINALS = ("first", "second", "third")


def shares_of_components(ratios: FloatArray) -> str:
    """Return what the first components carry each: "The first component carries 41 %, the second 18 %"."""
    told = [f"the {ordinal} {words.share(float(ratio))}" for ordinal, ratio in zip(_ORDINALS, ratios, strict=False)]
    if not told:
        return ""
    told[0] = f"The first component carries {words.share(float(ratios[0]))} of the variance"
    return f"{_listed(told)}."


def sums_of_components(ratios: FloatArray) -> str:
    """Return what the first two, five and ten components carry together, as far as there are more."""
    sums = np.cumsum(ratios)
    told = [f"the first {n} carry {words.share(float(sums[n - 1]))}" for n in (2, 5, 10) if n < len(sums)]
    return f"{_listed(told).capitalize()}." if told else ""


def spread_of_points(values: FloatArray, axes: Sequence[int]) -> str:
    """Return from where to where points reach on each axis, and where the middle half of them lies.

    `values` has shape ``(n_samples, n_axes)``, and `axes` are the numbers of the axes from 1.
    """
    if not len(values):
        return ""
    told = []
    for column, axis in zip(values.T, axes, strict=True):
        low, first, third, high = (words.figure(number, 2) for number in np.quantile(column, (0.0, 0.25, 0.75, 1.0)))
        told.append(f"on axis {axis:,} they reach from {low} to {high}, the middle half from {first} to {third}")
    return f"{'; '.join(told).replace('on', 'On', 1)}."


def centres_of_classes(values: FloatArray, numbers: IntArray, names: Sequence[str]) -> str:
    """Return the mean of the points of each class; `values` has shape ``(n_samples, 2)``."""
    told = []
    for number, name in enumerate(names):
        members = values[numbers == number]
        if len(members):
            x, y = (words.figure(mean, 2) for mean in members.mean(axis=0))
            told.append(f"{name} at {x} and {y}")
    return f"Centres of classes: {', '.join(told)}." if told else ""


def directions_of_arrows(arrows: FloatArray, names: Sequence[str], most: int = 4) -> str:
    """Return where the longest arrows point; `arrows` has shape ``(n_features, 2)``."""
    told = []
    for place in np.argsort(-np.hypot(arrows[:, 0], arrows[:, 1]), kind="stable")[:most]:
        x, y = arrows[place]
        sides = ["right" if x > 0 else "left"] if abs(x) >= abs(y) / 2 else []
        sides += ["up" if y > 0 else "down"] if abs(y) >= abs(x) / 2 else []
        told.append(f"{names[place]} {' and '.join(sides)}")
    return f"The longest arrows point: {_listed(told, ', ')}." if told else ""


def _listed(parts: Sequence[str], last: str = " and ") -> str:
    """Return parts of a sentence with commas."""
    return last.join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)
