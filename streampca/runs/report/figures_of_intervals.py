"""Charts of what an approximate answer is known to be: eigenvalues in their intervals, and bounds of the errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streampca.runs.report.figures import ACCENT, GRID, INK, MUTED, SECOND, component_axis, decades, dots, inline, plain
from streampca.runs.report.words import power_of_ten
from streampca.typing import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST = 1e-16
"""Bounds below this are drawn here."""
_BARS = 60
"""So many components at most have a bar each."""


def intervals(
    values: FloatArray,
    lower: FloatArray,
    upper: FloatArray,
    groups: Sequence[tuple[int, int]],
    sampling: FloatArray | None = None,
) -> str:
    """Return the eigenvalues with the intervals that they lie in, hatched where components are not told apart.

    Parameters
    ----------
    values, lower, upper
        Eigenvalues and the ends of their intervals, shape ``(n_components,)``; NaN where there is none.
    groups
        First and last component, from 0, of each group that is not told apart.
    sampling
        Intervals of the eigenvalues of the population, shape ``(n_components, 2)``, drawn as error bars; None for none.
    """
    k = len(values)
    shown, top = np.clip(values, 0.0, None), np.fmax(values, upper)
    top = top if sampling is None else np.fmax(top, sampling[:, 1])
    positive = shown[shown > 1e-18 * float(shown.max(initial=0.0))]  # zero up to rounding would stretch the scale
    logarithmic = len(positive) > 1 and float(positive.max()) > 100 * float(positive.min())

    def draw(axes: Axes) -> None:
        number = np.arange(1, k + 1)
        axes.grid(axis="y")
        _hatch(axes, groups)
        bottom = 0.0
        if logarithmic:
            bottom = float(positive.min()) / 2
            axes.set_yscale("log")
            decades(axes)
        low = np.clip(np.where(np.isfinite(lower), lower, shown), bottom, None)
        if k <= _BARS:
            width = max(1.4, min(5.0, 90 / k))
            axes.vlines(
                number, low, np.where(np.isfinite(upper), upper, shown), color=ACCENT, alpha=0.4, linewidth=width
            )
        else:
            axes.fill_between(
                number, low, np.where(np.isfinite(upper), upper, shown), color=ACCENT, alpha=0.3, linewidth=0
            )
        drawn = np.where(shown > bottom, shown, np.nan) if logarithmic else shown
        if sampling is not None:
            away = np.clip(np.stack([drawn - sampling[:, 0], sampling[:, 1] - drawn]), 0.0, None)
            axes.errorbar(
                number, drawn, away, fmt="none", ecolor=INK, elinewidth=0.9, capsize=max(1.0, min(3.0, 60 / k))
            )
        axes.plot(number, drawn, color=ACCENT, linewidth=0 if k <= _BARS else 1.4, **dots(k))
        highest = float(np.nanmax(top)) if k else 0.0
        if logarithmic:
            axes.set_ylim(bottom / 1.3, highest * 1.5)
        else:
            axes.set_ylim(0, 1.08 * highest if highest > 0 else 1.0)
            plain(axes.yaxis)
        component_axis(axes, k)
        axes.set_ylabel("variance (eigenvalue)")

    return inline("intervals", draw)


def errors(
    relative: FloatArray, sines: FloatArray, groups: Sequence[tuple[int, int]], tolerance: float | None = None
) -> str:
    """Return bounds of the relative errors of the eigenvalues, and of the sines of the angles of the components.

    Parameters
    ----------
    relative, sines
        Bounds, shape ``(n_components,)``; NaN where there is none.
    groups
        As for `intervals`.
    tolerance
        Relative error that was asked for.
    """
    k = len(relative)

    def draw(axes: Axes) -> None:
        number = np.arange(1, k + 1)
        axes.set_yscale("log")
        decades(axes)
        axes.grid(axis="y")
        _hatch(axes, groups)
        if tolerance:
            axes.axhline(tolerance, color=INK, linewidth=1, dashes=(3, 2.5))
        for bound, colour, marker in ((sines, SECOND, "s"), (relative, ACCENT, "o")):
            drawn = np.where(np.isfinite(bound), np.maximum(bound, _LEAST), np.nan)
            if np.isfinite(drawn).any():
                axes.plot(number, drawn, color=colour, linewidth=1.1, **dots(k, marker))
        known = np.concatenate([relative[np.isfinite(relative)], sines[np.isfinite(sines)]])
        known = np.maximum(known, _LEAST)
        low = min([float(known.min()) if len(known) else 0.01, tolerance or 1.0])
        axes.set_ylim(10.0 ** np.floor(np.log10(low) - 0.1), 1.5)
        axes.yaxis.set_major_formatter(lambda value, _: _share(value))
        component_axis(axes, k)
        axes.set_ylabel("off by at most")

    return inline("errors", draw)


def _hatch(axes: Axes, groups: Sequence[tuple[int, int]]) -> None:
    for first, last in groups:
        axes.axvspan(
            first + 0.5,
            last + 1.5,
            facecolor="none",
            edgecolor=MUTED,
            alpha=0.35,
            hatch="////",
            linewidth=0,
            zorder=0.4,
        )
        axes.axvspan(first + 0.5, last + 1.5, facecolor="none", edgecolor=GRID, linewidth=0.8, zorder=0.5)


def _share(value: float) -> str:
    """Return a power of ten as a percentage where that is short."""
    if value <= 0:
        return ""
    exponent = round(np.log10(value))
    return f"{100 * 10.0**exponent:.{max(0, -2 - exponent)}f} %" if exponent >= -6 else power_of_ten(exponent)
