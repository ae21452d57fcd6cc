"""Random analyses of two tables, factor analyses and rotations, judged against numpy: values, scores, rows back, states merged and saved."""

from __future__ import annotations

import re
import tempfile
import warnings
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from judging import Verdict, Wrong, last_line
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import StreamPCAError

FloatArray = NDArray[np.float64]
KINDS: dict[str, Any] = {
    "mca": sp.MCA,
    "cca": sp.CCA,
    "factor_analysis": sp.FactorAnalysis,
    "rotated": lambda k, rotation, **given: sp.RotatedPCA(sp.PCA(k, **given), method=rotation),
}
ROTATIONS = ("varimax", "promax")
_REFUSALS = (
    r"expected at most \d+, the features of the smaller table",
    "one of the tables has no feature that varies",
    "expected fewer factors than the",
    "must be between 1 and min",
    "degrees of freedom",
    "the likelihood of",
    "no row is left",
    "expected 1 to ",
    "condition",
    "linearly dependent",
    "components have no loadings",
    "varimax does not converge",
)


@dataclass(frozen=True)
class AnalysisCase:
    """One analysis."""

    seed: int
    kind: str
    rows: NDArray[Any]
    n_first: int
    n_components: int
    parameters: dict[str, Any]
    sample_weight: FloatArray | None
    saved: bool
    """Whether the result is that of a state that was merged, saved and loaded."""

    def line(self) -> str:
        """Return the case in a line."""
        given = {name: "…" if isinstance(value, np.ndarray) else value for name, value in self.parameters.items()}
        weights = "" if self.sample_weight is None else ", weights of rows"
        return f"{self.kind}({self.n_components}) of {self.rows.shape} {self.rows.dtype}, first {self.n_first}, {given}{weights}"


def draw(seed: int) -> AnalysisCase:
    """Return the case of a seed."""
    rng = np.random.default_rng(seed)
    n, d1, d2 = int(rng.integers(3, 200)), int(rng.integers(1, 9)), int(rng.integers(1, 9))
    d = d1 + d2
    rows = rng.normal(size=(n, 2)) @ rng.normal(size=(2, d)) * rng.choice([0.3, 1, 3]) + rng.normal(size=(n, d))
    rows += rng.choice([0.0, 5.0, 1e3])
    dtype = np.dtype(str(rng.choice(["f8", "f4", "i2", "i1"])))
    made: NDArray[Any] = (rows if dtype.kind == "f" else (8 * rows).clip(-120, 120)).astype(dtype)
    if rng.random() < 0.15:
        made[:, rng.integers(d)] = made[0, 0]
    given: dict[str, Any] = {"center": bool(rng.random() < 0.85), "ddof": int(rng.integers(0, 2))}
    given["scale"] = [False, True, "block"][int(rng.integers(3))] if rng.random() < 0.5 else False
    if dtype.kind == "f" and rng.random() < 0.35:
        given["missing"] = str(rng.choice(["mean", "drop_rows"]))
        made[rng.random(made.shape) < 0.05] = np.nan
    weight = rng.uniform(0.1, 2, n) if rng.random() < 0.3 else None
    if weight is not None and rng.random() < 0.3:
        weight[rng.random(n) < 0.3] = 0
    if rng.random() < 0.3:
        given["feature_weight"] = rng.uniform(0.1, 2, d)
    kind = str(rng.choice(list(KINDS)))
    if kind == "rotated":
        given["rotation"] = str(rng.choice(ROTATIONS))
    if kind == "factor_analysis" and rng.random() < 0.5:
        given["rotation"] = str(rng.choice(ROTATIONS))
    if rng.random() < 0.2:
        made[:, rng.integers(d)] = made[:, rng.integers(d)]  # a feature twice, or a table of less than full rank
    return AnalysisCase(seed, kind, made, d1, int(rng.integers(1, 4)), given, weight, bool(rng.random() < 0.3))


def judge(case: AnalysisCase) -> Verdict:
    """Carry out `case` and say what became of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=UserWarning)
        try:
            _check(case, _fitted(case))
        except Wrong as wrong:
            return Verdict("wrong", str(wrong))
        except (StreamPCAError, ValueError) as error:
            text = f"{type(error).__name__}: {error}"
            expected = isinstance(error, StreamPCAError) and any(re.search(each, text) for each in _REFUSALS)
            return Verdict("refused" if expected else "bare", text if expected else last_line(error))
        except Exception as error:  # noqa: BLE001 whatever was raised is what was looked for
            return Verdict("bare", last_line(error))
    return Verdict("right", "")


def _tables(case: AnalysisCase, rows: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    return (rows[:, : case.n_first], rows[:, case.n_first :]) if case.kind in ("mca", "cca") else (rows,)


def _fitted(case: AnalysisCase) -> Any:
    """Return the fit; of two halves that were merged, saved and loaded where the case says so."""
    estimator: Any = KINDS[case.kind]
    n, weight = len(case.rows), case.sample_weight
    merged = case.saved and n > 20 and case.kind != "rotated"  # of a fit that keeps no state
    halves = [slice(0, n // 2), slice(n // 2, n)] if merged else [slice(0, n)]
    parts = []
    for rows in halves:
        own = None if weight is None else weight[rows]
        if own is not None and len(halves) > 1 and not own.any():
            return estimator(case.n_components, **case.parameters).fit(*_tables(case, case.rows), sample_weight=weight)
        fit = estimator(case.n_components, **case.parameters)
        parts.append(fit.fit(*_tables(case, case.rows[rows]), sample_weight=own))
    if len(parts) == 1:
        return parts[0]
    with tempfile.TemporaryDirectory() as place:
        sp.merge(parts).save(Path(place) / "m.zarr", state=True)
        loaded: Any = sp.load(Path(place) / "m.zarr")
    return loaded


def _covariance(case: AnalysisCase) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return rows with their means for holes, their weights, the factors of centred features and the scaled covariance."""
    given = case.parameters
    rows, d = case.rows.astype(np.float64), case.rows.shape[1]
    weight = np.ones(len(rows)) if case.sample_weight is None else case.sample_weight
    if given.get("missing") == "drop_rows":
        whole = ~np.isnan(rows).any(axis=1)
        rows, weight = rows[whole], weight[whole]
    if given.get("missing") == "mean":
        known = ~np.isnan(rows)
        means = (weight @ np.where(known, rows, 0.0)) / np.maximum(weight @ known, 1e-300)
        rows = np.where(known, rows, means)
    divisor = weight.sum() - given["ddof"]
    mean = weight @ rows / weight.sum()
    variance = weight @ np.square(rows - mean) / divisor
    constant = variance <= 1e-13 * np.maximum(weight @ np.square(rows) / weight.sum(), 1e-300)
    factors = np.ones(d)
    if given["scale"] is True:
        factors = np.where(constant, 0.0, 1 / np.sqrt(np.where(constant, 1.0, variance)))
    elif given["scale"] == "block":
        edges = [0, case.n_first, d] if case.kind in ("mca", "cca") else [0, d]
        for low, high in pairwise(edges):
            total = variance[low:high].sum()
            factors[low:high] = np.where(constant[low:high], 0.0, 1 / np.sqrt(total)) if total > 0 else 0.0
    factors = factors * np.sqrt(given.get("feature_weight", 1.0))
    centred = (np.where(constant, 0.0, rows - mean) if given["center"] else rows) * factors
    return centred, weight, divisor, (centred.T * weight) @ centred / divisor


def _check(case: AnalysisCase, fitted: Any) -> None:
    centred, weight, divisor, covariance = _covariance(case)
    _check_circle(case, fitted)
    if case.kind == "factor_analysis":
        _check_factors(fitted, covariance)
        return
    if case.kind == "rotated":
        _check_rotation(case, fitted, covariance)
        return
    first = slice(0, case.n_first), slice(case.n_first, None)
    blocks = [covariance[one, one] for one in first]
    cross, values = covariance[first[0], first[1]], fitted._model.strengths
    roots = [_whitening(block) for block in blocks] if case.kind == "cca" else [np.eye(len(block)) for block in blocks]
    if any(root is None for root in roots):
        return  # of a condition with which numpy's own answer is no oracle
    expected = np.linalg.svd(roots[0].T @ cross @ roots[1])[1]  # type: ignore[union-attr]
    expected = np.concatenate([expected, np.zeros(len(values))])[: len(values)]
    size = float(np.sqrt(np.trace(blocks[0]) * np.trace(blocks[1]))) if case.kind == "mca" else 1.0
    allowed = fitted._model.error + 1e-11 * max(size, 1e-300)
    off = np.abs(values - expected).max()
    if off > allowed:
        raise Wrong(f"values off by {off:.1e} (first {expected[0]:.3g}, allowed {allowed:.1e})")
    weights = np.asarray(fitted._model.components)
    scores = centred @ weights.T
    found = np.diag((scores.T * weight) @ scores / divisor, len(values))
    _check_prediction(case, fitted, scores[:, : len(values)], weight)
    if np.abs(found - values).max() > 4 * allowed:
        raise Wrong(f"covariances of scores off by {np.abs(found - values).max():.1e} (allowed {4 * allowed:.1e})")


def _check_circle(case: AnalysisCase, fitted: Any) -> None:
    """Check that the saved model gives the same scores and rows, and that rows made of scores have these scores."""
    if case.parameters.get("missing", "error") != "error":
        return
    tables = _tables(case, case.rows)
    scores = fitted.transform(*tables)
    each = scores if isinstance(scores, tuple) else (scores,)
    back = fitted.inverse_transform(*each)
    with tempfile.TemporaryDirectory() as place:
        for _ in range(2):
            fitted.save(Path(place) / "m.zarr", overwrite=True)
        loaded: Any = sp.load(Path(place) / "m.zarr")
    again = loaded.transform(*tables)
    for one, two in zip(each, again if isinstance(again, tuple) else (again,), strict=True):
        if not np.array_equal(one, two):
            raise Wrong("the loaded model has other scores")
    if case.kind == "factor_analysis":  # whose scores are means, so that those of rows made of them are smaller
        return
    returned = fitted.transform(*(back if isinstance(back, tuple) else (back,)))
    for one, two in zip(each, returned if isinstance(returned, tuple) else (returned,), strict=True):
        varying = np.abs(one).max(axis=0, initial=0.0) > 0
        size = max(float(np.abs(one).max(initial=0.0)), 1e-300)
        mean = float(np.abs(case.rows).max()) / max(float(np.std(case.rows.astype(np.float64))), 1e-300)
        allowed = (1e-4 if case.rows.dtype == np.float32 else 1e-9) * size * (1 + mean)
        off = float(np.abs(one - two)[:, varying].max(initial=0.0))
        if off > allowed and not (fitted._model.components == 0).all(axis=1).any():
            raise Wrong(f"scores of rows made of scores are off by {off:.1e} (allowed {allowed:.1e})")


def _check_rotation(case: AnalysisCase, fitted: Any, covariance: FloatArray) -> None:
    """Check that the pattern A has the covariance of the leading components, A Φ Aᵀ = L Lᵀ, and that varimax is stationary."""
    k = fitted.n_components_
    values, vectors = np.linalg.eigh(covariance)
    values, vectors = values[::-1], vectors[:, ::-1]
    gap = (values[k - 1] - values[k]) / values[0] if k < len(values) else 1.0
    if gap < 1e-6:
        return  # the span of the leading components is not determined
    leading = (vectors[:, :k] * values[:k]) @ vectors[:, :k].T
    pattern = (fitted.components_ * np.sqrt(fitted.explained_variance_)[:, None]).T
    known = pattern @ fitted.correlation_ @ pattern.T
    rounding = 1e-5 if case.rows.dtype == np.float32 else 1e-10
    allowed = (rounding / gap + 1e-9) * values[0] * max(1.0, float(np.linalg.cond(fitted.rotation_)) * 1e-4)
    off = float(np.abs(known - leading).max())
    if off > allowed:
        raise Wrong(f"the rotated pattern has another covariance, off by {off:.1e} (allowed {allowed:.1e})")
    if case.parameters["rotation"] != "varimax" or k < 2:
        return
    lengths = np.linalg.norm(pattern, axis=1)
    counted = lengths > 1e-6 * lengths.max()
    scaled = pattern[counted] / lengths[counted, None]
    slope = scaled.T @ (
        scaled**3 - scaled * np.square(scaled).sum(axis=0) / len(pattern)
    )  # features without loadings count in d
    off = float(np.abs(slope - slope.T).max())
    if off > 1e-4 * max(len(scaled), 1):
        raise Wrong(f"varimax is not stationary: its slope is {off:.1e}")


def _check_prediction(case: AnalysisCase, fitted: Any, scores: FloatArray, weight: FloatArray) -> None:
    """Check the normal equations: what a regression leaves of the second table has no covariance with the scores."""
    if case.parameters.get("missing", "error") != "error":
        return
    second = _tables(case, case.rows.astype(np.float64))[1]
    left = (second - fitted.predict(case.rows[:, : case.n_first])) * np.sqrt(weight)[:, None]
    regressors = scores * np.sqrt(weight)[:, None]
    spread = np.linalg.norm(second * np.sqrt(weight)[:, None], axis=0)
    lengths = np.linalg.norm(regressors, axis=0)
    lengths[lengths < 1e-9 * lengths.max(initial=0.0)] = 0.0  # of a pair beyond the rank, whose scores are rounding
    size = lengths[:, None] * spread
    off = np.where(size > 0, np.abs(regressors.T @ left) / np.where(size > 0, size, 1.0), 0.0)
    if fitted.scale_ is not None:  # which leaves constant features out
        off = np.delete(
            off, fitted.constant_features_[fitted.constant_features_ >= case.n_first] - case.n_first, axis=1
        )
    allowed = 1e-9 if case.rows.dtype != np.float32 else 1e-4
    if off.max(initial=0.0) > allowed:
        raise Wrong(f"predictions leave covariances of {off.max():.1e} with the scores (allowed {allowed:.0e})")


def _whitening(block: FloatArray) -> FloatArray | None:
    """Return the whitening of a covariance, None where its smallest eigenvalue is near rounding."""
    values, vectors = np.linalg.eigh(block)
    known = values > 1e-5 * values[-1]
    if ((values > 1e-12 * values[-1]) & ~known).any():
        return None
    whitening: FloatArray = vectors[:, known] / np.sqrt(values[known])
    return whitening


def _check_factors(fitted: Any, covariance: FloatArray) -> None:
    """Check the first-order condition: the model has the variances of the features, but for those at their bound."""
    model = fitted.get_covariance()
    varying = np.flatnonzero(np.diag(covariance) > 0)
    free = np.setdiff1d(varying, fitted.heywood_features_)
    off = np.abs(np.diag(model)[free] / np.diag(covariance)[free] - 1).max(initial=0.0)
    if off > 1e-3 and not fitted.heywood_features_:
        raise Wrong(f"variances of the model off by {off:.1e}")
    if (fitted.noise_variance_ < 0).any():
        raise Wrong("a uniqueness is negative")
