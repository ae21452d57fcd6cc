"""The samples of a run on its axes: scores, and rows rebuilt from more and more components, a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streampca.runs.report.run_files import (
    VALUES_OF_SAMPLES,
    RunFiles,
    StoredArray,
    blocks,
)
from streampca.typing import Array, FloatArray, IntArray

RECONSTRUCTION_BYTES = 8 << 20
"""Rows and their reconstructions together take about this much memory at most."""


@dataclass(frozen=True)
class Scores:
    """Where the samples lie on some of the axes."""

    axes: tuple[int, ...]
    """Numbers of the axes, from 0: the first and the second."""
    values: FloatArray
    """Scores on `axes` as the model gives them, shape ``(n_samples, n_axes)``."""
    left: FloatArray
    """Squared length of what the first two axes leave of each sample, shape ``(n_samples,)``."""
    position: IntArray
    """Number of each sample among the samples that were kept, shape ``(n_samples,)``."""


def score(run: RunFiles, samples: StoredArray) -> Scores:
    """Return the scores of `samples` on the first two axes."""
    axes = axes_of(run.n_components)
    basis = run.components[list(axes)]

    def project(rows: Array) -> tuple[FloatArray, FloatArray]:
        deviations = run.standardised(rows)
        values = deviations @ basis.T
        return values, np.einsum("ij,ij->i", deviations, deviations) - np.einsum("ij,ij->i", values, values)

    scores = scores_by(project, samples, axes)
    return scores if run.divisors is None else replace(scores, values=scores.values / run.divisors[list(axes)])


def axes_of(n_components: int) -> tuple[int, ...]:
    """Return the numbers of the first two axes, from 0, or of the only one."""
    return tuple(range(min(2, n_components)))


def scores_by(
    project: Callable[[Array], tuple[FloatArray, FloatArray]], samples: StoredArray, axes: tuple[int, ...]
) -> Scores:
    """Return the scores of `samples`, of some where there are many; `project` returns those of rows and what they leave."""
    m, d = samples.shape[0], samples.shape[1]
    limit = max(16, VALUES_OF_SAMPLES // d)
    chosen = np.arange(m) if m <= limit else np.unique(np.linspace(0, m - 1, limit).astype(np.int64))
    values, left, done = np.zeros((len(chosen), len(axes))), np.zeros(len(chosen)), 0
    for positions, rows in gather(samples, chosen):
        here = slice(done, done + len(positions))
        values[here], left[here] = project(rows)
        done = here.stop
    values[~np.isfinite(values)] = 0.0
    return Scores(axes, values, left, chosen)


def gather(samples: StoredArray, positions: IntArray) -> Iterator[tuple[IntArray, NDArray[np.generic]]]:
    """Yield the rows at ascending `positions` in pieces, each piece read once and only where it holds one of them."""
    m, d = samples.shape[0], samples.shape[1]
    if len(positions) == m:
        for start, rows in blocks(samples):
            yield np.arange(start, start + len(rows)), rows
        return
    step = max(1, (2 << 20) // (8 * d))
    for group in np.split(positions, np.flatnonzero(np.diff(positions // step)) + 1):
        if len(group):
            first = int(group[0])
            piece = np.asarray(samples[first : int(group[-1]) + 1])
            yield group, piece[group - first]


def n_reconstructed(n_features: int, wanted: int) -> int:
    """Return how many rows can be rebuilt at a time within `RECONSTRUCTION_BYTES`, at least one."""
    return max(1, min(wanted, RECONSTRUCTION_BYTES // (2 * 8 * n_features)))


def easy_to_hard(scores: Scores, wanted: int) -> IntArray:
    """Return the numbers of `wanted` samples, from one that two axes nearly rebuild to one that they hardly do."""
    order = np.argsort(scores.left, kind="stable")
    shares = np.linspace(0.5, 0.985, wanted) if wanted > 1 else np.array([0.5])
    return order[np.unique(np.round(shares * (len(order) - 1)).astype(np.int64))].astype(np.int64)


def rising_counts(k: int, most: int = 7) -> list[int]:
    """Return 1, 2, 5, 10, 20, 50 … below `k`, then `k`: at most `most` of them, the first and the last kept."""
    ladder = [step * 10**power for power in range(7) for step in (1, 2, 5) if step * 10**power < k] + [k]
    if len(ladder) <= most:
        return ladder
    picks = np.unique(np.round(np.linspace(0, len(ladder) - 1, most)).astype(int))
    return [ladder[int(pick)] for pick in picks]


def rebuild(
    run: RunFiles, deviations: FloatArray, counts: Sequence[int]
) -> Iterator[tuple[int, FloatArray, FloatArray]]:
    """Yield, for each number in ascending `counts`, `deviations` rebuilt from so many components, and the error left.

    The error is ``‖x − x̂‖ / ‖x − mean‖`` for each row, as the model sees it (after scaling). The rebuilt rows are
    one array that grows in place: take what you need of it before the next step.
    """
    rebuilt, done = np.zeros_like(deviations), 0
    length = np.sqrt(np.einsum("ij,ij->i", deviations, deviations))
    for count in counts:
        axes = run.components[done:count]
        rebuilt += (deviations @ axes.T) @ axes
        done = count
        yield count, rebuilt, _error(deviations, rebuilt, length)


def _error(deviations: FloatArray, rebuilt: FloatArray, length: FloatArray) -> FloatArray:
    gaps = (row - back for row, back in zip(deviations, rebuilt, strict=True))
    left = np.sqrt(np.array([gap @ gap for gap in gaps]))
    error: FloatArray = np.divide(left, length, out=np.zeros_like(left), where=length > 0)
    return error
