"""What a run has stored against what its model gives: scores, T² and Q of all rows, copies of rows, and figures of its documents."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import cast

import numpy as np
import zarr
from typing_extensions import override

from streampca.accumulators.base import Accumulator
from streampca.block import Block, as_block
from streampca.models.diagnostics import centred_rows, row_diagnostics, scratch_bytes
from streampca.models.kernel import KernelModel
from streampca.models.pca import Model, PCAModel
from streampca.runs.config import RunConfig
from streampca.runs.diagnostics import read_rows, unusual_rows_of
from streampca.runs.manifest import read_json
from streampca.runs.verify.checks import Check, compared, shown
from streampca.runs.verify.eigenpairs import panel_rows
from streampca.solvers.choosing import SOLVERS
from streampca.sources import Source
from streampca.sources.zarr.strictness import strict
from streampca.storage.directories import DIAGNOSTICS
from streampca.storage.figures import changed_figures
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array, FloatArray, Json

_ROUNDING = 1e-10
"""Allowed difference of T² and Q, which both sides compute from the stored scores in float64."""
_ABSENT = object()


@dataclass(frozen=True)
class RowsState:
    """What was found in the rows seen so far."""

    n_samples: int
    """Rows."""
    n_landmarks: int
    """Landmarks of kernel PCA that equal the rows they were taken from."""
    squares: FloatArray
    """Sums of the squares of the scores that the model gives, ``(k,)``; of kernel PCA alone."""
    longest: float
    """Length of the longest row after centring, scaling and weighting; of kernel PCA the largest modulus of a score."""
    scores: FloatArray
    """Largest differences of stored scores from those that the model gives, ``(k,)``."""
    diagnostics: FloatArray
    """Largest differences of stored T, relative to 1 + T, and of stored √Q, relative to the row, given the stored scores; ``(2,)``."""


@dataclass(frozen=True)
class StoredRows(Accumulator[RowsState, RowsState]):
    """Accumulator that compares stored scores, T² and Q with those that the model gives for the rows."""

    model: Model
    """The model; its components are in memory."""
    stored: dict[str, ZarrArray]
    """Arrays by name: ``scores``, ``(n_samples, k)``, ``t2`` and ``q``, ``(n_samples,)``, where the run has them."""

    @override
    def init(self, n_features: int) -> RowsState:
        k = self.model.n_components
        return RowsState(0, 0, np.zeros(k), 0.0, np.zeros(k), np.zeros(2))

    def update(self, state: RowsState, block: Block | Array) -> RowsState:
        """Return `state` with the rows of `block` added; `NotFiniteError` if rows of kernel PCA are not finite."""
        block = as_block(block)
        self.model.require_finite(block.values, block.start)
        rows = slice(block.start, block.start + len(block))
        stored = {name: np.asarray(array[rows]) for name, array in self.stored.items()}
        step = panel_rows(block.values.shape[1])
        for start in range(0, len(block), step):
            panel = {name: values[start : start + step] for name, values in stored.items()}
            state = self.absorb(state, self._of_panel(block.slice(start, start + step), panel))
        return state

    def _of_panel(self, block: Block, stored: dict[str, Array]) -> RowsState:
        """Return the state of a panel of rows."""
        pca = self.model.linear
        with np.errstate(over="ignore", invalid="ignore"):  # rows of weight 0 may hold anything
            scores = self.model.encode(block.values).astype(np.float64)
            if pca is None:
                squares, lengths = np.square(scores).sum(axis=0), np.abs(scores).max(axis=1)
            else:
                rows = centred_rows(pca, block.dense().values, slice(0, block.values.shape[1]))[0]
                squares, lengths = np.zeros(scores.shape[1]), np.sqrt(np.einsum("ij,ij->i", rows, rows))
        differences, of_diagnostics = _largest(stored.get("scores", scores), scores), np.zeros(2)
        if pca is not None and {"scores", *DIAGNOSTICS} <= stored.keys():
            expected = row_diagnostics(pca, block.values, stored["scores"])
            with np.errstate(invalid="ignore"):
                (t, q), roots = map(np.sqrt, expected), [np.sqrt(stored[name]) for name in DIAGNOSTICS]
            of_diagnostics = np.array([_largest(roots[0], t, 1 + t), _largest(roots[1], q, lengths)])
        longest = float(lengths[np.isfinite(lengths)].max(initial=0.0))
        return RowsState(len(block), self.model.count_landmarks(block), squares, longest, differences, of_diagnostics)

    @override
    def absorb(self, state: RowsState, other: RowsState) -> RowsState:
        return RowsState(
            state.n_samples + other.n_samples,
            state.n_landmarks + other.n_landmarks,
            state.squares + other.squares,
            max(state.longest, other.longest),
            np.maximum(state.scores, other.scores),
            np.maximum(state.diagnostics, other.diagnostics),
        )

    @override
    def merge(self, states: Sequence[RowsState]) -> RowsState:
        return reduce(self.absorb, states)

    @override
    def state_bytes(self, n_features: int) -> int:
        return 8 * (2 * self.model.n_components + 5)

    def scratch_bytes(self, n_features: int, n_rows: int, itemsize: int) -> int:
        """Return the scratch memory in bytes of a panel of rows, beside what a transform takes."""
        rows, k = min(n_rows, panel_rows(n_features)), self.model.n_components
        pca = self.model.linear
        own = 0 if pca is None else scratch_bytes(pca, rows) + 24 * rows * n_features
        return 40 * rows * k + own


def _largest(stored: Array, expected: Array, lengths: FloatArray | float = 1.0) -> FloatArray:
    """Return the largest differences along rows, divided by `lengths`; NaN is to be NaN, as for rows that were left out."""
    apart = np.abs(stored.astype(np.float64) - expected)
    apart[np.isnan(stored) & np.isnan(expected)] = 0.0
    relative = np.divide(apart, lengths, out=np.where(apart > 0, np.inf, 0.0), where=np.asarray(lengths) > 0)
    largest: FloatArray = np.nan_to_num(relative, nan=np.inf, posinf=np.inf).max(axis=0, initial=0.0)
    return largest


def stored_arrays(
    directory: Path, config: RunConfig, model: Model, source: Source
) -> tuple[dict[str, ZarrArray], list[Check]]:
    """Return the stored scores, T² and Q of a run by name, and checks of those that were not asked for, are gone or of another shape."""
    arrays, checks, n = {}, [], source.shape[0]
    shapes: dict[str, tuple[int, ...]] = {"scores": (n, model.n_components)} if config.output.scores else {}
    shapes |= dict.fromkeys(DIAGNOSTICS if config.output.diagnostics else (), (n,))
    if not config.output.scores:
        checks.append(Check("scores", note="none were written"))
    for name, shape in shapes.items():
        path = directory / "scores.zarr" / name
        if not path.is_dir():
            checks.append(Check(name, holds=False, note="scores.zarr does not have it"))
            continue
        array = strict(zarr.open_array(path, mode="r"))
        if tuple(array.shape) == shape:
            arrays[name] = array
        else:
            checks.append(Check(name, list(shape), list(array.shape), holds=False, note="shape"))
    return arrays, checks


def checks_of_rows(rows: StoredRows, state: RowsState, source: Source, lightest: float) -> list[Check]:
    """Compare scores, T² and Q, of kernel PCA landmarks and eigenvalues, too; `lightest` is the least positive weight of a row."""
    model, apart, checks = rows.model, state.scores, list[Check]()
    eps = float(np.finfo(model.score_dtype(source.dtype)).eps)
    pca = model.linear
    if pca is None:
        checks += _checks_of_kernel(cast(KernelModel, model), state)
        allowed, note = (1e-3 if eps > 1e-10 else 1e-7), "largest difference, relative to the largest score"
    else:
        if pca.whiten:
            apart = np.multiply(apart, pca.deviations, out=np.zeros_like(apart), where=apart > 0)
        apart = np.maximum(apart - _known_scores(pca, lightest), 0.0)
        allowed, note = 64 * np.sqrt(source.shape[1]) * eps, "largest difference, relative to the longest row"
    if "scores" in rows.stored:
        checks.append(compared("scores", np.zeros_like(apart), apart, allowed, note, scale=state.longest))
    notes = ("largest difference of T, relative to 1 + T", "largest difference of √Q, relative to the row")
    for name, worst, note in zip(DIAGNOSTICS, state.diagnostics, notes, strict=True):
        if {"scores", name} <= rows.stored.keys():
            checks.append(compared(name, 0.0, worst, _ROUNDING, note))
    return checks


def _known_scores(model: PCAModel, lightest: float) -> FloatArray:
    """Return by how much scores that came with the eigenvectors of the n × n matrix may differ from projections, ``(k,)``.

    For X Xᵀ u = λu + r with an error E of X Xᵀ, X (Xᵀu / σ) = σu + (r − Eu) / σ, and making the components orthonormal
    adds half of that (`streampca.solvers.gram.orthonormalising`); ‖E‖ ≤ precision σ₁². Below σ² = precision σ₁² components
    are completed, and their scores are of that size.
    """
    first = float(model.explained_variance[0])
    solver = SOLVERS.get(str(model.source.get("solver")))
    if solver is None or not solver.multiplies_back or first == 0:
        return np.zeros(model.n_components)
    relative = model.rounding + (model.certificate.eigen_residual or 0.0)
    roots = np.sqrt(np.maximum(model.explained_variance, relative * first))
    excess: FloatArray = 6.0 * np.sqrt(max(model.weight - model.ddof, 0.0) / lightest) * relative * first / roots
    return excess


def _checks_of_kernel(model: KernelModel, state: RowsState) -> list[Check]:
    """Compare samples, landmarks and, where they are sums of squares of scores, eigenvalues."""
    checks = [compared("samples", model.n_samples, state.n_samples, 0.0, "rows")]
    if model.landmark_indices is None:
        checks.append(Check("landmarks", note="they were given as rows"))
    else:
        checks.append(compared("landmarks", len(model.landmarks), state.n_landmarks, 0.0, "rows that are the same"))
    if model.method in ("nystrom", "exact"):
        allowed = 1e-6 if model.landmarks.dtype == np.float64 else 1e-3
        values, note = (
            model.eigenvalues,
            "sum of squared scores of component {}, the worst, relative to the first eigenvalue",
        )
        checks.append(compared("eigenvalues", values, state.squares, allowed, note, scale=values[0]))
    else:
        checks.append(Check("eigenvalues", note=f"those of {model.method} are not sums of squared scores"))
    return [*checks, Check("trace", note="it needs the kernel values of every row with itself, and the centring")]


def check_of_unusual_rows(directory: Path, source: Source, listed: Sequence[int]) -> Check:
    """Compare the copies of the rows that fit least, the `listed` ones, with the rows of the source, bit by bit."""
    name, stored = "unusual rows", unusual_rows_of(directory / "samples.zarr")
    if stored is None:
        return Check(name, holds=False, note="samples.zarr does not have them")
    rows, index = stored
    if index.tolist() != list(listed[: len(index)]) or (listed and not len(index)):
        return Check(name, holds=False, note="those of samples.zarr are not the rows with the largest T² and Q")
    expected = read_rows(source, index.tolist())[0]
    same = rows.shape == expected.shape and bool(np.array_equal(rows, expected, equal_nan=rows.dtype.kind == "f"))
    return Check(name, len(rows), len(expected), holds=same, note="copies of the rows that fit least")


def checks_of_figures(directory: Path, record: Json, expected: Mapping[str, Json | None]) -> list[Check]:
    """Return a check for each figure of manifest and plan that differs, under its name, or one for all of them.

    All are compared with their digests in the commit `record` (`streampca.storage.figures`), which runs of version 0.1 do not have;
    those that follow from models with what is `expected`: objects of the manifest by name, some of their entries.
    """
    manifest, digests = read_json(directory, "manifest.json"), record.get("figures")
    differing: dict[str, Check] = {}
    for outer, entries in json.loads(json.dumps(expected)).items():
        stated = manifest.get(outer)
        stated = stated if isinstance(stated, dict) else {}
        for inner, value in (entries or {}).items():
            if (inner in stated or digests is not None) and stated.get(inner, _ABSENT) != value:
                name, note = f"manifest {outer}.{inner}", "is not what follows from the model"
                differing[name] = Check(name, shown(stated.get(inner)), shown(value), holds=False, note=note)
    for document, figure in () if digests is None else changed_figures(directory, digests):
        name = f"{document.partition('.')[0]} {figure}".strip()
        differing.setdefault(name, Check(name, holds=False, note="is not what was committed with the run"))
    note = "figures of manifest and plan are those of the model" + (" and of the commit" if digests is not None else "")
    return [differing[name] for name in sorted(differing)] or [Check("manifest", holds=True, note=note)]
