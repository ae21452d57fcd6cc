"""Whether one fit is right: compared with LAPACK, or within its own certificate, or refused by the name that is expected."""

from __future__ import annotations

import re
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from capabilities import REMOVAL_WITH, SOLVERS
from cases import Case
from doors import refit
from numpy.typing import NDArray
from oracle import Truth, reach_of, truth_of

from streampca import PCA, merge
from streampca import load as load_model
from streampca.errors import StreamPCAError

EPS = float(np.finfo(np.float64).eps)
_FLOAT32_PRODUCTS = 4e-7  # of the first eigenvalue, as stated in docs/explanation/numerics.md


@dataclass(frozen=True)
class Verdict:
    """What became of one fit."""

    kind: str
    """``"right"``, ``"refused"``, ``"wrong"`` or ``"bare"``."""
    detail: str
    """What is wrong, or the message of the error."""
    notes: tuple[str, ...] = ()
    """Statistical bounds that do not hold; each is allowed to happen, but not often."""
    statistical: bool = False
    """Whether the answer has statistical bounds."""


class Wrong(Exception):  # noqa: N818 it is a verdict, not an error of the program
    """A number that lies outside its tolerance."""


def judge(case: Case) -> Verdict:
    """Fit `case` and say what became of it; numpy's warnings count as exceptions."""
    notes: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*explained_variance_ratio_ sums to|.*integers beyond", UserWarning)
        try:
            given = case.stored()
            pca = PCA(**case.parameters).fit(given, sample_weight=case.sample_weight)
            _check(case, given, pca, notes)
            _check_door(case, given, pca, notes)
        except Wrong as wrong:
            return Verdict("wrong", str(wrong), tuple(notes))
        except (StreamPCAError, ValueError) as error:
            return _refused(case, error)
        except Exception as error:  # noqa: BLE001 whatever was raised is what was looked for
            return Verdict("bare", last_line(error), tuple(notes))
    required = required_refusals(case)
    if required:
        return Verdict("wrong", f"fitted, although expected: {required[0]}", tuple(notes))
    return Verdict("right", "", tuple(notes), pca.error_.get("sigma") is not None)


def _refused(case: Case, error: Exception) -> Verdict:
    text = f"{type(error).__name__}: {error}"
    named = isinstance(error, StreamPCAError)
    if named and any(re.search(pattern, text) for pattern in [*required_refusals(case), *allowed_refusals(case)]):
        return Verdict("refused", text)
    return Verdict("wrong" if named else "bare", f"unexpected {last_line(error)}")


def last_line(error: BaseException) -> str:
    ours = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "/streampca/" in frame.filename
    ] or traceback.extract_tb(error.__traceback__)
    place = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}" if ours else ""
    return f"{type(error).__name__}: {error} ({place})".replace("\n", " ")


def required_refusals(case: Case) -> list[str]:
    """Return patterns of which one has to match the error that this case has to end in; none if it need not."""
    given, rows = case.parameters, case.rows
    solver, missing = given["solver"], given.get("missing", "error")
    found, k, limit = [], given.get("n_components"), min(rows.shape)
    takes, plain = SOLVERS[solver], missing == "error"
    if isinstance(k, int) and k > limit:
        found.append(r"^ParameterError: n_components=\d+ must be between 1 and")
    if case.sparse and not plain:
        found.append("^NotAvailableError: sparse rows and missing='.*' cannot be combined")
    if case.sparse and not takes.sparse:
        found.append(f"^NotAvailableError: solver='{solver}' does not take sparse rows")
    if case.sparse and takes.sparse and case.container not in takes.sparse:
        found.append("^NotAvailableError: .* has blocks of sparse rows, which cannot be read by features")
    if not plain and missing not in takes.missing:
        found.append(f"^NotAvailableError: solver='{solver}' does not take missing=")
    if "remove" in given:
        if given.get("center", True) not in REMOVAL_WITH["center"]:
            found.append("^NotAvailableError: remove and center=False cannot be combined")
        if missing not in REMOVAL_WITH["missing"] or case.container not in REMOVAL_WITH["container"]:
            found.append("^NotAvailableError: remove and .* cannot be combined")
    if (
        takes.approximate
        and solver != "auto"
        and isinstance(k, int)
        and isinstance(given.get("sketch_size"), int)
        and given["sketch_size"] < k
    ):
        found.append("^ParameterError: sketch_size=.* is less than n_components=")
    if found:
        return found
    counted = rows if case.sample_weight is None else rows[case.sample_weight > 0]
    floating = rows.dtype.kind == "f"
    if floating and np.isinf(counted.astype(np.longdouble)).any():
        return [r"^NotFiniteError: Input (X )?contains inf"]
    if floating and missing == "error" and np.isnan(counted).any():
        return [r"^NotFiniteError: (Input|column).*NaN"]
    if truth_of_case(case) is None and not _needs_no_pairs(case):
        return [
            "^DataError: n_samples=",
            "^DataError: no row is left",
            "^DataError: feature",
            "^DataError: .*pair",
            "^DataError: .*observed",
        ]
    return []


def allowed_refusals(case: Case) -> list[str]:
    """Return patterns of errors that this case may end in."""
    rows, given, found = case.rows, case.parameters, []
    if given["solver"] == "auto" and "tolerance" in given:
        found.append("^ParameterError: sketch_size=.* is less than n_components=")
    if len(rows) <= given.get("ddof", 1):
        found.append("^DataError: n_samples=")
    if given["solver"] in ("adaptive", "auto") and given.get("scale"):
        found.append("^DataError: .* solver='adaptive' cannot standardise it")
    if "remove" in given:
        found.append("^ParameterError: remove: .*nothing would be left")
        found.append("^ParameterError: remove: all rows of the group .* have weight 0")
    if given.get("recovery") == "conversion":
        found.append("^NotAvailableError: solver='adaptive' does not take recovery='conversion'")
        found.append("^ParameterError: max_passes=.* with recovery='conversion': expected")
    truth, k = truth_of_case(case), given.get("n_components")
    if truth is None:
        found.append("^DataError")
    if truth is not None and isinstance(k, int) and k > truth.n_rows:
        found.append("^ParameterError: n_components=.* must be between 1 and")
    if rows.dtype.itemsize == 8 and rows.dtype.kind in "iu":
        found.append("^DataError: .*integers near .*which float64 rounds")
    if rows.dtype.kind != "f":
        return found
    counted = rows if case.sample_weight is None else rows[case.sample_weight > 0]
    counted = counted.astype(np.longdouble)
    size = np.nanmax(np.abs(counted), initial=0)
    if size > 1e140:
        found.append("^(NotFiniteError|DataError): .*overflow")
    if size < 1e-135 or (truth is not None and (truth.variance[truth.variance > 0] < 1e-270).any()):
        found.append("^(NotFiniteError|DataError|StreamPCAError): .*(underflow|too small|below|vanish|rescale)")
    return found


def _needs_no_pairs(case: Case) -> bool:
    """Return whether a sketch stands in for covariances of pairs of which some were never observed."""
    given, weight = case.parameters, case.sample_weight
    if given.get("missing") != "pairwise" or given["solver"] not in ("sketch", "auto"):
        return False
    weight = np.ones(len(case.rows)) if weight is None else weight
    observed = weight @ ~np.isnan(case.rows)
    return bool((observed > given.get("ddof", 1)).all())


def truth_of_case(case: Case) -> Truth | None:
    """Return what LAPACK says of the rows of `case`."""
    given = case.parameters
    return truth_of(
        case.rows,
        center=given.get("center", True),
        scale=given.get("scale", False),
        ddof=given.get("ddof", 1),
        missing=given.get("missing", "error"),
        sample_weight=case.sample_weight,
        feature_weight=given.get("feature_weight"),
        remove=given.get("remove"),
    )


def precision_of(case: Case, solver: str) -> float:
    """Return the stated error of an exact solver, relative to the first eigenvalue.

    float32 products of float16 and float32: 4e-7. Else the rounding of n terms in float64 and of an eigenproblem of
    side d: (16 n + 32 d) eps. Sparse rows are summed about zero, which costs a factor n of the digits of a feature that is
    zero in one row and far from it in all others.
    """
    n, d = case.rows.shape
    rounding = (16 * n + 32 * d) * EPS + 1e-14
    dtype = case.rows.dtype
    narrow = dtype.kind == "f" and dtype.itemsize <= 4
    small_integers = dtype.kind in "iub" and dtype.itemsize == 1
    plain = case.sample_weight is None and case.parameters.get("missing", "error") in ("error", "drop_rows")
    plain = plain and "remove" not in case.parameters
    if case.sparse:
        rounding *= n
    if narrow or (small_integers and not (plain and solver == "covariance")):
        return _FLOAT32_PRODUCTS
    return rounding


def _check(case: Case, given: Any, pca: Any, notes: list[str]) -> None:
    truth = _check_fit(case, pca, notes)
    if truth is None:
        return
    _check_scores(case, given, pca, truth)
    rng = np.random.default_rng([case.seed, 7])
    if rng.random() < 0.1:
        _check_round_trip(case, pca)
    if rng.random() < 0.25 and not case.parameters.get("checkpoint"):
        _check_groupings(case, pca, truth, rng)


def _check_fit(case: Case, pca: Any, notes: list[str]) -> Truth | None:
    """Compare what a fit found with LAPACK; return that, None where it says nothing."""
    if required_refusals(case):
        return None
    truth = truth_of_case(case)
    if truth is None:
        return None
    _check_shapes(case, pca, truth)
    precision = precision_of(case, pca.solver_) + truth.lost
    value = _slack(case, pca, truth)
    if pca.error_["kind"] == "approximate":
        _check_certificate(case, pca, truth, notes)
    else:
        _check_exact(case, pca, truth, value)
    _check_derived(case, pca, truth, value)
    _check_moments(case, pca, truth, precision)
    return truth


def _slack(case: Case, pca: Any, truth: Truth) -> float:
    """Return how far an eigenvalue of an exact solver may be from LAPACK's."""
    precision = precision_of(case, pca.solver_) + truth.lost
    return precision * max(float(truth.values[0]), 0.0) + 4 * truth.resolution()


def _check_door(case: Case, given: Any, pca: Any, notes: list[str]) -> None:
    """Check the model that another door gives for the same parameters and rows."""
    if required_refusals(case) or case.door == "fit":
        return
    with tempfile.TemporaryDirectory() as directory:
        try:
            other = refit(case, given, pca, Path(directory))
            if other is not None:
                _check_fit(case, other, notes)
        except AssertionError as error:
            raise Wrong(f"by {case.door}: {error}") from error
        except Wrong as wrong:
            raise Wrong(f"by {case.door}: {wrong}") from wrong


def _close(name: str, found: Any, expected: Any, tolerance: Any) -> None:
    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape:
        raise Wrong(f"{name}: shape {found.shape}, expected {expected.shape}")
    if not np.isfinite(found.astype(np.float64)).all():
        raise Wrong(f"{name}: not finite")
    excess = np.abs(found - expected) - tolerance
    if (excess > 0).any():
        worst = np.unravel_index(int(np.argmax(excess)), excess.shape)
        allowed = np.broadcast_to(tolerance, excess.shape)[worst]
        raise Wrong(
            f"{name}: {float(found[worst]):.6g} at {tuple(map(int, worst))}, expected {float(expected[worst]):.6g} "
            f"(off by {float(abs(found[worst] - expected[worst])):.1e}, allowed {float(allowed):.1e})"
        )


def _check_shapes(case: Case, pca: Any, truth: Truth) -> None:
    k, d = pca.components_.shape
    wanted = case.parameters.get("n_components")
    if d != case.rows.shape[1] or len(pca.explained_variance_) != k or pca.n_components_ != k:
        raise Wrong(f"shapes: components_ {pca.components_.shape}, explained_variance_ {pca.explained_variance_.shape}")
    if isinstance(wanted, int) and k != min(wanted, truth.n_rows):
        raise Wrong(f"{k} components of {wanted} with {truth.n_rows} rows")
    if pca.n_samples_seen_ != truth.n_rows:
        raise Wrong(f"n_samples_seen_: {pca.n_samples_seen_}, expected {truth.n_rows}")
    order = np.diff(pca.explained_variance_)
    if (order > 0).any() or (pca.explained_variance_ < 0).any():
        raise Wrong("explained_variance_ is not descending, or negative")
    gram = pca.components_ @ pca.components_.T
    _close("orthonormality", gram, np.eye(k), 100 * max(d, 10) * EPS)
    peak = np.abs(pca.components_).max(axis=1)
    largest = np.where(np.abs(pca.components_) >= peak[:, None] * (1 - 1e-9), pca.components_, -1).max(axis=1)
    if (largest < 0).any():
        raise Wrong("signs: the entry of largest modulus is negative")


def _check_exact(case: Case, pca: Any, truth: Truth, value: float) -> None:
    k = len(pca.components_)
    squared = pca.solver_ != "qr"
    _close("explained_variance_", truth.in_unit(pca.explained_variance_), truth.values[:k], value)
    share = case.parameters.get("n_components")
    if isinstance(share, float):
        _check_share(share, k, truth, value)
    residual = truth.matrix @ pca.components_.T - pca.components_.T * truth.in_unit(pca.explained_variance_)
    if truth.clipped:
        positive = truth.in_unit(pca.explained_variance_) > value
        residual = residual[:, positive]
    length = float(np.linalg.norm(residual, axis=0).max(initial=0.0))
    if pca.solver_ == "gram":
        # A component is Xᵀu / σ, and XXᵀu = λu + r leaves Xᵀr / σ: rounding is magnified by σ₁ / σ, and all that stand above it share it.
        found = truth.in_unit(pca.explained_variance_)
        least = found[found > pca.error_["trusted_above"] * found[0]].min(initial=np.inf)
        unit = max(32 * EPS, pca.error_["trusted_above"])
        value += unit * float(truth.values[0] * np.sqrt(max(truth.values[0] / least, 1.0)))
    if length > 4 * value + 2e-11 * truth.values[0] * squared:
        raise Wrong(f"components_: residual {length / max(truth.values[0], 1e-300):.1e} of the first eigenvalue")


def _check_share(share: float, k: int, truth: Truth, value: float) -> None:
    """Check that k is the smallest number of components that carries `share`, but for ties within rounding."""
    reached = np.cumsum(truth.values)
    slack = len(truth.values) * value
    if reached[k - 1] < share * truth.total - slack or (k > 1 and reached[k - 2] > share * truth.total + slack):
        raise Wrong(f"n_components={share}: {k} components")


def _check_certificate(case: Case, pca: Any, truth: Truth, notes: list[str]) -> None:
    said, first = pca.error_, float(truth.values[0])
    k = len(pca.components_)
    # LAPACK's own values carry some rounding.
    trusted = (said["trusted_above"] + 16 * len(truth.values) * EPS) * first + 4 * truth.resolution()
    expected = truth.values[:k]
    found = truth.in_unit(pca.explained_variance_)
    if case.parameters.get("missing") == "pairwise":
        if said["eigenvalue_intervals"] is not None:
            raise Wrong("intervals for a matrix of pairs")
        return
    intervals = truth.in_unit(said["eigenvalue_intervals"])
    if (intervals[:, 0] - expected > trusted).any():
        worst = float(((intervals[:, 0] - expected) / max(first, 1e-300)).max())
        raise Wrong(
            f"proven lower end above the eigenvalue by {worst:.1e} of the first ({said['trusted_above']:.0e} stated)"
        )
    upper = truth.in_unit(said["proven_upper_bounds"])
    if (expected - upper > trusted).any():
        worst = float(((expected - upper) / max(first, 1e-300)).max())
        raise Wrong(
            f"proven upper bound below the eigenvalue by {worst:.1e} of the first ({said['trusted_above']:.0e} stated)"
        )
    if (expected - intervals[:, 1] > trusted).any():
        notes.append("upper end of an interval")
    axes = pca.components_
    carried = float(np.einsum("ij,ji->", axes @ truth.matrix, axes.T))
    share = carried / truth.total if truth.total > 0 else 0.0
    low, rounding = said["captured_variance"], said["trusted_above"] + 64 * EPS * len(truth.values)
    if low - share > rounding:
        raise Wrong(
            f"captured_variance {low:.9f} above what is carried, {share:.9f} ({said['trusted_above']:.0e} stated)"
        )
    if said["relative_residual_interval"][1] < 1 - share - rounding:
        raise Wrong("relative_residual_interval: the proven upper end does not hold")
    if said["relative_residual_interval"][0] > 1 - share + rounding:
        notes.append("lower end of the residual's interval")
    # Values are those of the lower ends before room was left for rounding, δ in docs/explanation/numerics.md.
    room = max(float(found[0] - intervals[0, 0]), 0.0)
    if case.parameters.get("recovery") != "conversion" and (found - expected > trusted + room).any():
        worst = float(((found - expected) / max(first, 1e-300)).max())
        raise Wrong(
            f"explained_variance_ above the eigenvalue by {worst:.1e} of the first ({room / max(first, 1e-300):.0e} stated)"
        )
    _check_angles(pca, truth, said, notes)
    for number, (least, most) in said["components_for"].items():
        reached = np.flatnonzero(np.cumsum(truth.values) >= float(number) * truth.total * (1 - 1e-9))
        needed = int(reached[0]) + 1 if len(reached) else 1
        reached = np.flatnonzero(np.cumsum(truth.values) >= float(number) * truth.total * (1 + 1e-9))
        at_most = int(reached[0]) + 1 if len(reached) else len(truth.values)
        slack = said["trusted_above"] > 1e-3
        if truth.total > 0 and not slack and (at_most < least or (most is not None and needed > most)):
            tie = np.abs(np.cumsum(truth.values) / truth.total - float(number)).min() <= 10 * said["trusted_above"] * k
            if not tie:
                raise Wrong(f"components_for {number}: {needed} is not in [{least}, {most}]")


def _check_angles(pca: Any, truth: Truth, said: dict[str, Any], notes: list[str]) -> None:
    """Compare the bounds of angles, which are statistical, with the true ones, where these are defined beyond rounding."""
    k, first = len(pca.components_), float(truth.values[0])
    values = np.append(truth.values, 0.0)
    floor = said["trusted_above"] * first
    for i, bound in enumerate(said["angle_bounds"]):
        gap = min(values[i - 1] - values[i] if i else np.inf, values[i] - values[i + 1])
        if bound is None or gap <= 0 or gap < 1e-12 * first:
            continue
        sine = np.linalg.norm(pca.components_[i] - (pca.components_[i] @ truth.vectors[i]) * truth.vectors[i])
        if sine > bound + 4 * floor / gap + 1e-12:
            notes.append(f"angle bound: {sine:.1e} > {bound:.1e}")
            break
    bound = said["subspace_angle_bound"]
    if bound is not None and k < len(truth.values):
        gap = values[k - 1] - values[k]
        if gap > 1e-12 * first:
            rest = pca.components_ - (pca.components_ @ truth.vectors[:k].T) @ truth.vectors[:k]
            sine = np.linalg.norm(rest, 2)
            if sine > bound + 4 * floor / gap + 1e-12:
                notes.append(f"subspace angle bound: {sine:.1e} > {bound:.1e}")
        elif bound < 1e-3 and truth.values[k - 1] < 1e-13 * first and first > 0:
            raise Wrong(f"subspace_angle_bound {bound:.1e} for a span that is not defined: rank below k")


def _check_derived(case: Case, pca: Any, truth: Truth, value: float) -> None:
    """Check what follows from eigenvalues: shares, singular values, noise, total."""
    d, k = case.rows.shape[1], len(pca.components_)
    centred = case.parameters.get("center", True)
    if pca.error_["kind"] == "exact" or centred or case.parameters.get("missing") != "pairwise":
        total = truth.total if pca.error_["kind"] == "exact" else float(np.trace(truth.matrix))
        _close("total_variance_", truth.in_unit(pca.total_variance_), total, d * value)
    variances, total = pca.explained_variance_, pca.total_variance_
    expected = variances / total if total > 0 else np.zeros(k)
    _close("explained_variance_ratio_", pca.explained_variance_ratio_, expected, 8 * EPS)
    if case.parameters.get("missing") != "pairwise":
        divisor = truth.weight - case.parameters.get("ddof", 1)
        singular = np.sqrt(variances) * np.sqrt(divisor)
        _close("singular_values_", pca.singular_values_, singular, 1e-11 * singular.max(initial=0.0))
    left = min(truth.n_rows, d) - k
    noise = max(0.0, float(total - variances.sum()) / left) if left > 0 else 0.0
    slack = 16 * d * EPS * max(float(total), 0.0)
    _close("noise_variance_", pca.noise_variance_, noise, slack)


def _check_moments(case: Case, pca: Any, truth: Truth, precision: float) -> None:
    n = len(case.rows)
    with np.errstate(invalid="ignore"):
        values = case.rows.astype(np.longdouble)
    if case.sample_weight is not None:
        values = values[case.sample_weight > 0]
    spread, size = np.nanmax(values, axis=0) - np.nanmin(values, axis=0), np.nanmax(np.abs(values), axis=0)
    narrow = precision >= _FLOAT32_PRODUCTS
    unit = float(np.finfo(np.float32).eps) if narrow else EPS
    slack = 4 * unit * np.sqrt(n) * spread + 8 * EPS * size + (4 * n * EPS * size if case.sparse else 0)
    # Deviations from the origin, and those put in place of missing values, are multiples of the smallest number of their type.
    slack = slack + 4 * np.longdouble(np.finfo(np.float32 if narrow else np.float64).smallest_subnormal)
    expected = truth.mean if case.parameters.get("center", True) else np.zeros(len(truth.mean))
    _close("mean_", pca.mean_.astype(np.longdouble), expected, slack)
    if case.parameters.get("scale"):
        deviation = np.sqrt(truth.variance)
        expected = np.where(deviation > 0, deviation, 1)
        relative: Any = max(precision, 1e-12)
        if pca.error_["kind"] == "approximate":  # moments are taken about a number within the range of the values
            about = np.divide(spread, deviation, out=np.zeros_like(spread), where=deviation > 0)
            relative = relative + 16 * unit * (1 + about**2)
        if truth.residuals is not None:
            relative = relative + 64 * EPS * np.divide(size, deviation, out=np.zeros_like(size), where=deviation > 0)
        _close("scale_", pca.scale_.astype(np.longdouble), expected, relative * expected)
    elif pca.scale_ is not None:
        raise Wrong("scale_ without scale")
    if truth.residuals is not None:  # what is left of a feature that is explained is rounding
        left = np.sqrt(truth.variance)
        if (left[pca.constant_features_] > 1e-13 * size[pca.constant_features_]).any():
            raise Wrong("constant_features_: a feature of which more is left than rounding")
        return
    constant = np.flatnonzero(truth.variance == 0)
    if not np.array_equal(pca.constant_features_, constant):
        found = pca.constant_features_.tolist()
        raise Wrong(f"constant_features_: {found[:8]}, expected {constant.tolist()[:8]}")


def _axes(case: Case, pca: Any, truth: Truth) -> NDArray[np.longdouble]:
    """Return what centred rows are multiplied by to give scores; ``(d, k)``."""
    axes = pca.components_.astype(np.longdouble) * _row_factors(case, pca, truth)
    if case.parameters.get("whiten"):
        deviations = np.sqrt(pca.explained_variance_.astype(np.longdouble))
        deviations[pca.numerical_rank_ :] = np.inf
        axes = axes / deviations[:, None]
    return axes.T


def _check_scores(case: Case, given: Any, pca: Any, truth: Truth) -> None:
    rows = case.rows.astype(np.longdouble)
    usable = np.isfinite(rows).all(axis=1)
    if case.parameters.get("missing", "error") == "error" and not usable.all():
        return  # rows of weight 0 hold what cannot be transformed
    taken = _taken(case, slice(None))
    if taken is None:
        return
    scores, distances = _scores(case, given, pca, taken)
    kept_type = case.rows.dtype.kind == "f" and case.rows.dtype.itemsize <= 4
    dtype = np.dtype(np.float32 if kept_type else np.float64)
    if scores.dtype != dtype or scores.shape != (len(rows), len(pca.components_)):
        raise Wrong(f"scores: {scores.dtype} {scores.shape}")
    mean = pca.mean_.astype(np.longdouble)
    axes = _axes(case, pca, truth)
    eps = float(np.finfo(dtype).eps)
    d = rows.shape[1]
    centred = rows[usable] - mean
    size = np.abs(centred) @ np.abs(axes)
    removal = 0.0
    if truth.residuals is not None:
        # The regression has the rounding of all rows.
        removal = 16 * EPS * (np.abs(centred).max(axis=0, initial=0) @ np.abs(axes)) * _reach(case)[usable, None]
        centred = truth.residuals[usable]
        size = np.abs(centred) @ np.abs(axes)
    of_mean = np.abs(mean) @ np.abs(axes)
    near = len(centred) > 0 and bool((of_mean <= 17 * (centred @ axes).std(axis=0)).all())
    if case.sparse or near:  # the product of the mean is subtracted from that of the row (docs/explanation/numerics.md)
        size = size + np.abs(rows[usable]) @ np.abs(axes) + of_mean
    slack = 2 * (d + 4) * eps * size + 4 * EPS * np.abs(mean) @ np.abs(axes) + removal
    # Below the smallest normal number, products keep their absolute and not their relative error.
    slack = slack + d * np.longdouble(np.finfo(dtype).smallest_normal)
    if dtype == np.float32:  # factors of features below the smallest normal number keep their absolute error
        entries = np.abs(rows[usable]).sum(axis=1)[:, None] + np.abs(mean).sum()
        slack = slack + entries * np.longdouble(np.finfo(dtype).smallest_subnormal)
        if truth.residuals is not None:  # residuals are rounded to float32 again
            slack = slack + np.abs(axes).sum(axis=0) * np.longdouble(np.finfo(dtype).smallest_subnormal)
    _close("scores", scores[usable].astype(np.longdouble), centred @ axes, slack)
    if case.parameters.get("missing") == "drop_rows" and not np.isnan(scores[~usable]).all():
        raise Wrong("scores of rows with holes are not NaN")
    if case.parameters.get("missing") in ("mean", "pairwise") and not np.isfinite(scores).all():
        raise Wrong("scores: not finite")
    if distances is not None:
        _check_distances(case, pca, truth, centred, centred @ axes, slack, [each[usable] for each in distances])
    _check_inverse(case, pca, truth, scores, usable, taken)


def _taken(case: Case, which: slice) -> dict[str, Any] | None:
    """Return what `transform` needs to know of rows to remove, an empty mapping where nothing is removed; None where it cannot be known."""
    remove = case.parameters.get("remove")
    if remove is None:
        return {}
    given = {key: value[which] for key, value in remove.items() if key != "trend"}
    if "trend" in remove:
        given["trend"] = np.arange(len(case.rows), dtype=np.float64)[which]
    if "groups" in remove and case.sample_weight is not None:
        counted = np.unique(remove["groups"][case.sample_weight > 0])
        if not np.isin(remove["groups"], counted).all():
            return None
    return {"remove": given}


def _scores(case: Case, given: Any, pca: Any, taken: dict[str, Any]) -> tuple[NDArray[Any], list[NDArray[Any]] | None]:
    """Return the scores of the rows of the case, and T² and Q where it asks for them; those of rows that are left out are NaN."""
    scores, distances = _stored_scores(case, given, pca, taken)
    if case.where is None:
        return scores, distances
    for name, each in (("scores", scores), *zip(("t2", "q"), distances or (), strict=False)):
        if len(each) != len(case.where) or not np.isnan(each[~case.where]).all():
            raise Wrong(f"{name} of rows that are left out: not NaN in their places, shape {each.shape}")
    return scores[case.where], None if distances is None else [each[case.where] for each in distances]


def _stored_scores(
    case: Case, given: Any, pca: Any, taken: dict[str, Any]
) -> tuple[NDArray[Any], list[NDArray[Any]] | None]:
    """Return the scores of `given`, and T² and Q where the case asks for them, by the way that the case takes, in the places of stored rows."""
    if case.output == "transform":
        return np.asarray(pca.transform(given, **taken)), None
    with tempfile.TemporaryDirectory() as directory:
        if case.output == "loaded":
            return np.asarray(load_model(pca.save(Path(directory) / "model")).transform(given, **taken)), None
        diagnostics = case.output == "diagnostics"
        group = zarr.open_group(
            pca.transform_to(given, Path(directory) / "scores", diagnostics=diagnostics, **taken), mode="r"
        )
        distances = [np.asarray(group[name][...]) for name in ("t2", "q")] if diagnostics else None
        return np.asarray(group["scores"][...]), distances


def _check_distances(
    case: Case,
    pca: Any,
    truth: Truth,
    centred: NDArray[np.longdouble],
    scores: NDArray[np.longdouble],
    slack: NDArray[np.longdouble],
    found: list[NDArray[Any]],
) -> None:
    """Compare T² and Q with their definitions; an error e of a score s makes one of (2 |s| e + e²) / λ in T²."""
    rank, eps = pca.numerical_rank_, float(np.finfo(np.float64).eps)
    deviations = np.sqrt(pca.explained_variance_.astype(np.longdouble))
    if case.parameters.get("whiten"):
        units = np.where(np.arange(len(deviations)) < rank, deviations, 0)
        scores, slack = scores * units, slack * units
    kept = np.arange(len(deviations)) < rank
    squares = np.divide(scores, deviations, out=np.zeros_like(scores), where=kept) ** 2
    wide = np.divide(slack, deviations, out=np.zeros_like(slack), where=kept)
    error = (2 * np.sqrt(squares) * wide + wide**2).sum(axis=1) + 64 * eps * squares.sum(axis=1)
    _close("t2", found[0].astype(np.longdouble), squares.sum(axis=1), error)
    shaped = centred * _row_factors(case, pca, truth)
    axes = pca.components_[:rank].astype(np.longdouble)
    rest = shaped - (shaped @ axes.T) @ axes
    narrow = case.rows.dtype.kind == "f" and case.rows.dtype.itemsize <= 4
    rounding = (8 * (len(axes) + shaped.shape[1])) * float(np.finfo(np.float32 if narrow else np.float64).eps)
    size = np.sqrt((shaped**2).sum(axis=1))
    size = size + np.sqrt((slack**2).sum(axis=1)) / rounding
    lengths = np.sqrt((rest**2).sum(axis=1))
    step = rounding * size
    _close("q", found[1].astype(np.longdouble), lengths**2, 2 * lengths * step + step**2 + rounding * size**2)


def _reach(case: Case) -> NDArray[np.float64]:
    """Return by how much the rounding of what is removed is magnified in each row; ``(n,)``."""
    weight = np.ones(len(case.rows)) if case.sample_weight is None else case.sample_weight
    return reach_of(case.parameters["remove"], weight)


def _row_factors(case: Case, pca: Any, truth: Truth) -> NDArray[np.longdouble]:
    """Return what centred features are multiplied by before they are projected; ``(d,)``."""
    factors = np.ones(case.rows.shape[1], dtype=np.longdouble)
    if case.parameters.get("scale"):
        factors = factors / pca.scale_
        factors[truth.variance == 0] = 0
    weight = case.parameters.get("feature_weight")
    return factors if weight is None else factors * np.sqrt(weight)


def _check_inverse(
    case: Case, pca: Any, truth: Truth, scores: NDArray[Any], usable: NDArray[np.bool_], taken: dict[str, Any]
) -> None:
    if truth.residuals is not None and case.sample_weight is not None:
        usable = usable & (
            case.sample_weight > 0
        )  # what a constant feature has in rows that do not count does not come back
    back = np.asarray(pca.inverse_transform(scores, **taken))[usable]
    scores = scores[usable]
    wide = scores.astype(np.longdouble)
    if case.parameters.get("whiten"):
        wide = wide * np.sqrt(pca.explained_variance_.astype(np.longdouble))
    axes = pca.components_.astype(np.longdouble)
    if case.parameters.get("scale"):
        axes = axes * pca.scale_
        axes[:, truth.variance == 0] = 0  # constant features come back exactly
    weight = case.parameters.get("feature_weight")
    if weight is not None:
        axes = axes * np.divide(1, np.sqrt(weight), out=np.zeros_like(weight), where=weight > 0)
    level = pca.mean_ if truth.residuals is None else case.rows[usable].astype(np.longdouble) - truth.residuals[usable]
    expected = wide @ axes + level
    eps = float(np.finfo(scores.dtype).eps)
    size = np.abs(wide) @ np.abs(axes) + np.abs(level)
    slack = 4 * (len(axes) + 4) * eps * size + len(axes) * np.longdouble(np.finfo(scores.dtype).smallest_normal)
    if truth.residuals is not None:  # the regression has the rounding of all rows, in float64
        largest = np.abs(case.rows[usable].astype(np.longdouble)).max(axis=0, initial=0)
        slack = slack + 16 * EPS * largest * _reach(case)[usable, None]
    if scores.dtype == np.float32:
        # Entries of scaled components below the smallest normal number keep their absolute error.
        unit = np.longdouble(np.finfo(np.float32).smallest_subnormal)
        slack = slack + np.abs(wide).sum(axis=1)[:, None] * unit
        fits = np.abs(size) < 3e38
        _close("inverse_transform", np.where(fits, back, 0).astype(np.longdouble), np.where(fits, expected, 0), slack)
    else:
        _close("inverse_transform", back.astype(np.longdouble), expected, slack)


def _check_round_trip(case: Case, pca: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = pca.save(Path(directory) / "model")
        loaded = load_model(path)
    for name in ("components_", "explained_variance_", "mean_", "scale_", "singular_values_"):
        one, other = getattr(pca, name), getattr(loaded, name)
        if (one is None) != (other is None) or (
            one is not None and np.asarray(one).tobytes() != np.asarray(other).tobytes()
        ):
            raise Wrong(f"load: {name} differs")
    for name in ("noise_variance_", "total_variance_", "numerical_rank_", "n_samples_seen_"):
        if getattr(pca, name) != getattr(loaded, name):
            raise Wrong(f"load: {name} differs")
    if "device" in case.parameters:  # which no model remembers
        loaded.set_params(device=case.parameters["device"])
    rows = case.rows[:3]
    usable = np.isfinite(rows.astype(np.float64)).all() and rows.dtype.str[0] != ">"
    taken = _taken(case, slice(3))
    if (
        usable
        and taken is not None
        and pca.transform(rows, **taken).tobytes() != loaded.transform(rows, **taken).tobytes()
    ):
        raise Wrong("load: scores differ")


def _check_groupings(case: Case, pca: Any, truth: Truth, rng: np.random.Generator) -> None:
    """Check `partial_fit` of two parts and `merge` of two fits against LAPACK, where the solver keeps a state."""
    n, value = len(case.rows), _slack(case, pca, truth)
    if (
        not SOLVERS[pca.solver_].continues
        or n < 4
        or case.container not in ("numpy", "csr")
        or "remove" in case.parameters
    ):
        return
    cut = int(rng.integers(2, n - 1))
    parts, counted = [], []
    for part in (slice(0, cut), slice(cut, n)):
        weight = None if case.sample_weight is None else case.sample_weight[part]
        if weight is not None and np.count_nonzero(weight) < 2:
            return
        stored = Case(case.seed, case.rows[part], case.container, case.chunks, {}, None).stored()
        counted.append(stored.shape[0] if weight is None else np.count_nonzero(weight))
        parts.append((stored, weight))
    parameters = case.parameters | {"solver": pca.solver_}
    k = parameters.get("n_components")
    if case.parameters.get("missing", "error") != "error" or (isinstance(k, int) and k > min(counted)):
        return
    if isinstance(k, float):
        return
    grown = PCA(**parameters)
    for rows, weight in parts:
        grown.partial_fit(rows, sample_weight=weight)
    _check_exact(case, grown, truth, 4 * value)
    try:
        merged = merge([PCA(**parameters).fit(rows, sample_weight=weight) for rows, weight in parts])
    except StreamPCAError as error:
        if "gives no variance" in str(error):
            return  # a part of too little weight
        raise
    _check_exact(case, merged, truth, 4 * value)


def shortened(detail: str) -> str:
    """Return `detail` without its numbers, so that failures of one cause have one name."""
    return re.sub(r"-?\d[\d.,]*(e[+-]?\d+)?", "#", detail)[:110]
