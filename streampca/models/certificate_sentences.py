"""All sentences about certificates: the clauses of a statement, warnings, the lines of a summary, and those of a report.

Models add clauses to the statement as they are made; everything else is said of a finished certificate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import streampca.formatting as words
from streampca.linalg.certificate import Certified
from streampca.models.certificates import ApproximateCertificate, Certificate, ExactCertificate, KernelCertificate

WIDE = 0.1
"""Relative width of an interval from which an eigenvalue is said to be known badly."""
_MOST_SPANS = 8
_LARGE_ROUNDING, _LARGE_INTEGER_ROUNDING = 1e-2, 1e-10


# --- statements: how an answer came about and what bounds its error ---------------------------------------------------------


def exact(precision: float) -> str:
    """Return the statement of an exact solver whose eigenvalues have the relative `precision`."""
    return (
        "exact: the matrix holds every row; the only error of eigenvalues is the rounding of sums "
        f"(relative to the first: {precision:.0e}); singular values are reliable above {precision**0.5:.0e} of the first"
    )


def triangular(precision: float) -> str:
    """Return the statement of a triangular factor; `precision` is the square of that of singular values."""
    return (
        "exact: the triangular factor holds every row, and nothing was squared; singular values have an error of "
        f"{precision**0.5:.0e} of the first, and those above it are reliable"
    )


def approximate(found: Certified, n_passes: int) -> str:
    """Return the statement of an approximate solver: the proven and the statistical bounds, and the unresolved components."""
    if found.bounds is None or found.angles is None:
        return (
            f"approximate, from {passes(n_passes)}, without a certificate: a covariance corrected for missing values need not be "
            "positive semidefinite, and no bound holds for what was left out"
        )
    clauses = [
        f"approximate, from {passes(n_passes)}: no eigenvalue is below its interval (proven, allowing for rounding of {found.rounding:.0e} "
        f"of the first), and all that was left out sums to {found.left_out:.1e} of the variance (exact trace)"
    ]
    if found.confidence is None:
        clauses.append("upper bounds and angles follow from that trace alone (proven, and wide)")
    else:
        clauses.append(
            "upper bounds and angles rest on the largest eigenvalue left out and on the residuals of the eigenpairs, both measured by random "
            f"columns (statistical: all of them hold together with a probability of at least {found.confidence:.2%})"
        )
    if found.incremental:
        clauses.append("bounds are of first order; a further pass narrows them")
    k = len(found.values)
    if found.converted:
        clauses.append(
            "components and eigenvalues are those of the conversion: no angle is bounded, errors are against the intervals"
        )
    elif found.angles.clusters:
        unresolved = _n_of(found.angles.clusters)
        clauses.append(f"{unresolved} of {k} components are not separated from their neighbours (unresolved clusters)")
    if found.n_found < k:
        drawn = "their directions were drawn at random, orthogonal to the others, and no angle is bounded for them"
        if found.vanishing[found.n_found :].all():
            missed = f"carry no variance above rounding: {drawn}"
        else:
            missed = f"were not found and are reported with the eigenvalue 0, which may be entirely wrong: {drawn}"
        clauses.append(f"the last {k - found.n_found} of {k} components {missed}")
    return "; ".join(clauses)


def exact_kernel(precision: float) -> str:
    """Return the statement of an exact kernel matrix whose eigenvalues have the relative `precision`."""
    return (
        "exact: every pair of rows was compared; eigenvalues carry the rounding of the kernel values and of the products "
        f"(relative to the first: {precision:.0e}), nothing else"
    )


def nystrom(bound: float, n_rows: int, most: float, *, known_definite: bool) -> str:
    """Return the statement of Nyström features: eigenvalues may be larger by `bound`, estimated from rows, for certain by `most`."""
    unknown = "; this holds only if the kernel is positive semi-definite, which is not known"
    return (
        f"every eigenvalue of the centred kernel matrix lies above the one found by at most {bound:.3g}, estimated from "
        f"{n_rows} rows; for certain by at most the residual trace and its rounding, {most:.3g}"
        + ("" if known_definite else unknown)
    )


def empirical_map(error: float) -> str:
    """Return the statement of the empirical kernel map, whose squared eigenvalues are known to within `error`."""
    return (
        f"the squares of the eigenvalues lie above those found by at most about {error:.3g}, estimated by leaving out each "
        "column of the transform"
    )


INDEFINITE = "no certificate: the kernel is not positive semi-definite, so the error of its approximation has no sign"
UNBOUNDED = "no certificate for this recovery or transform"
OF_LANDMARKS = (
    "no certificate: the eigenpairs are those of the landmarks alone; method='nystrom' takes all rows into account"
)
EXACT_TRACE = "exact"
TRACE_OF_LANDMARKS = "estimated from the landmarks"
TRACE_OF_FEATURES = (
    "Σ κ(x, x) is exact; what centring takes off it is the squared mean of the landmarks' features, which is at most "
    "the exact one, so that shares of variance are at most the exact ones"
)


def before_rotation(given: Certificate) -> str:
    """Return the statement of rotated components."""
    return f"before the rotation: {given.statement}"


# --- clauses that further facts add to a statement ---------------------------------------------------------------------------


def too_few(k: int) -> str:
    """Return that a sketch gives `k` components, fewer than were asked for."""
    return f"the sketch gives {k} components, fewer than requested: a larger sketch_size would give more"


def rows_left_out(n: int) -> str:
    """Return that `n` rows were left out."""
    return f"{words.plural(n, 'row')} with missing values left out"


def missing_values(n: int, missing: str, clipped: float | None) -> str:
    """Return what became of `n` missing values; `clipped` is the sum of the moduli of negative eigenvalues, if there may be some."""
    if clipped is not None:
        return (
            f"{words.plural(n, 'missing value')}: every covariance is over the rows in which both features were observed; "
            f"such a matrix may have negative eigenvalues, which were clipped (sum of moduli: {clipped:.3g}, "
            "counted as variance so that shares add up to one)"
        )
    if missing == "pairwise":
        return f"{words.plural(n, 'missing value')}, taken to be missing at random in each feature"
    return f"{words.plural(n, 'missing value')} replaced by the mean of their feature"


def decoded(dtype: str, moved: float) -> str:
    """Return that decoding in `dtype` moves eigenvalues by up to `moved` of the first."""
    return f"packed values were decoded in {dtype}, which moves no eigenvalue by more than {moved:.0e} of the first"


def integers_rounded(change: float) -> str:
    """Return that rounding of integers changes eigenvalues by up to `change` of the first."""
    return f"integers beyond 2**53 were rounded, which changes eigenvalues by up to {change:.0e} of the first"


def integers_rounded_of_rows(share: float) -> str:
    """Return that rounding of integers moves rows by up to `share` of their distance from their mean."""
    return (
        f"integers beyond 2**53 were rounded, which moves rows by up to {share:.0e} of their distance from their mean"
    )


def rows_taken_out(growth: float) -> str:
    """Return that the rounding grew by the factor `growth` as rows were taken out."""
    return f"rows were taken out again, which magnified this rounding by a factor of {growth:.1f}"


def of_residuals(n_regressors: int) -> str:
    """Return that means and slopes were removed."""
    return f"of the residuals after removal of {n_regressors} means and slopes for each feature"


# --- warnings and notes ----------------------------------------------------------------------------------------------------


def warnings_of_pca(certificate: ExactCertificate, sizes: Mapping[str, Any]) -> list[str]:
    """Return what a user should know of an approximate answer; nothing for an exact one.

    Parameters
    ----------
    certificate : ExactCertificate
        The certificate.
    sizes : mapping
        ``columns``, ``passes`` (at most), ``tolerance`` and ``rows_per_update`` of the plan.
    """
    if not isinstance(certificate, ApproximateCertificate):
        return []
    warnings, tolerance = [], sizes["tolerance"]
    if certificate.components_missing:
        warnings.append(
            f"the sketch of {sizes['columns']} columns gives {len(certificate.component_errors)} components, fewer than "
            "requested: set a larger sketch_size"
        )
    width = certificate.largest_relative_width
    missed = tolerance is not None and tolerance > 0 and certificate.n_passes >= sizes["passes"]
    if not certificate.bounded:
        warnings.append(
            "no bound of the error is known, because a covariance corrected for missing values need not be positive "
            "semidefinite: compare with another seed and a larger sketch_size"
        )
    elif width is not None and missed and width > float(tolerance or 0):
        advice = "use recovery: nystrom" if certificate.converted else "set max_passes higher"
        warnings.append(
            f"reading stopped after {passes(certificate.n_passes)}, the most allowed, with eigenvalues certified to within "
            f"{percent(width)} instead of {percent(tolerance)}: {advice}, or set a larger sketch_size (it was {sizes['columns']})"
        )
    elif width is not None and width > WIDE:
        warnings.append(f"eigenvalues are certified only to within {percent(width)}: {_narrower(certificate, sizes)}")
    clusters = certificate.clusters
    if clusters:
        several = len(clusters) > 1 or clusters[0][1] > clusters[0][0]
        subject = f"component{'s' if several else ''} {spans(clusters)} {'are' if several else 'is'} not separated from neighbours"
        warnings.append(
            f"{subject}: their eigenvalue intervals touch or nearly touch, so each direction may be a mixture of its group"
        )
    return warnings


def _narrower(certificate: ApproximateCertificate, sizes: Mapping[str, Any]) -> str:
    """Return what would narrow the intervals, in words."""
    if certificate.converted:
        return "recovery: conversion cannot narrow this; use recovery: nystrom"
    again = "set max_passes higher" if sizes["tolerance"] is not None else "set tolerance (such as 0.01) to read again"
    other = "" if sizes["rows_per_update"] else ", or use solver: adaptive"
    return f"{again}, set a larger sketch_size (it was {sizes['columns']}){other}"


def clipped(mass: float, total: float) -> list[str]:
    """Return the warning that negative eigenvalues of the given `mass` were clipped, if there were any."""
    if not mass:
        return []
    return [f"negative eigenvalues of the pairwise covariances were clipped: {mass / total:.2g} of the total variance"]


def concerns_of_pca(certificate: ExactCertificate, share: float) -> list[str]:
    """Return what figures of PCA are not what their names say; `share` is the sum of the explained variance ratios."""
    found = []
    if certificate.converted and share > 1 + 1e-9:
        found.append(
            f"explained_variance_ratio_ sums to {share:.4g}: eigenvalues of recovery='conversion' are estimates that may exceed the "
            f"variance of the rows (total_variance_ is exact, and {certificate.captured_variance:.3g} of it is proven to lie along the "
            "components); use recovery='nystrom', whose eigenvalues are bounds from below"
        )
    rounded = certificate.integer_rounding or 0.0
    if rounded > _LARGE_INTEGER_ROUNDING:
        found.append(
            f"integers beyond 2**53 were rounded to float64, which may change eigenvalues by {rounded:.0e} of the first: subtract a "
            "whole number near the mean from each feature first, as in X - X[0]"
        )
    return found


def concerns_of_kernel_pca(certificate: KernelCertificate, k: int, *, center: bool) -> list[str]:
    """Return what a user should know of the `k` eigenvalues of a kernel matrix before using them."""
    concerns = []
    if missing := certificate.components_missing:
        n_positive = certificate.components_found or 0
        hint = f"; the other {k - n_positive} are returned as zeros" if k > n_positive else ""
        concerns.append(
            f"n_components={n_positive + missing}: only {words.plural(n_positive, 'eigenvalue')} of the "
            f"{'centred ' if center else ''}kernel matrix {'is' if n_positive == 1 else 'are'} positive beyond rounding with this method{hint}"
        )
    rounding = certificate.rounding or 0.0
    if rounding > _LARGE_ROUNDING:
        concerns.append(
            f"rounding of the kernel values takes up to {min(1.0, rounding):.0%} of the first eigenvalue, because they vary "
            "little relative to their size: subtract the mean of the rows, or use float64 if they are float32"
        )
    rounded = certificate.integer_rounding or 0.0
    if rounded > _LARGE_INTEGER_ROUNDING:
        concerns.append(
            f"integers beyond 2**53 were rounded to float64, which may move rows by {rounded:.0e} of their distance from their mean: "
            "subtract a whole number near the mean from each feature first, as in X - X[0]"
        )
    return concerns


def indefinite(method: str) -> str:
    """Return the warning of a kernel that is not positive semi-definite."""
    return (
        "the kernel is not positive semi-definite: negative eigenvalues are left out, shares of the trace may exceed 1, and "
        + (
            "eigenvalues come without a certificate"
            if method == "nystrom"
            else "distances in its space are not proper ones"
        )
    )


def notes_of_missing(certificate: ExactCertificate, *, conditional: bool) -> list[str]:
    """Return what became of missing values in the fit, and of rows with them in `transform`."""
    notes = []
    if certificate.rows_left_out:
        notes.append(
            f"{words.plural(certificate.rows_left_out, 'row was', 'rows were')} left out for missing values (NaN); their scores are NaN"
        )
    if certificate.missing_values:
        how = (
            "scores of such rows are conditional means given what was observed"
            if conditional
            else "in scores they count as the mean of their feature"
        )
        notes.append(f"{words.plural(certificate.missing_values, 'value is', 'values are')} missing (NaN); {how}")
    return notes


# --- summaries of a run, on a terminal ---------------------------------------------------------------------------------------


def carried(certificate: Certificate) -> str:
    """Return what share of the variance the components carry: ``95.9%``, or the two shares that it lies between."""
    shown = f"{certificate.captured_variance:.1%}"
    if not isinstance(certificate, ApproximateCertificate):
        return shown
    if not certificate.bounded:
        return f"{shown} (as estimated)"
    high = f"{1.0 - certificate.relative_residual_interval[0]:.1%}"
    return shown if high == shown else f"{shown} to {high}"


def accuracy(certificate: Certificate, sizes: Mapping[str, Any] | None) -> str | None:
    """Return in a few words how sure an approximate answer is, None for an exact one.

    `sizes` is what a run kept of its plan: ``passes`` at most, ``tolerance``, ``pilot_rows``; None where it is not known.
    """
    if not isinstance(certificate, ApproximateCertificate):
        return None
    known = sizes or {}
    tolerance, most, n_passes = known.get("tolerance"), known.get("passes"), certificate.n_passes
    after = passes(n_passes) + (f" of at most {most}" if most and most > n_passes else "")
    if known.get("pilot_rows"):
        after += f" and a sample of {known['pilot_rows']:,} rows"
    width, k = certificate.largest_relative_width, len(certificate.component_errors)
    if width is None:
        return f"no bound of the error, after {after}"
    asked = f" ({percent(tolerance)} asked)" if tolerance else ""
    said = f"eigenvalues certified to within {percent(width)}{asked}"
    if not certificate.converted:
        said += f", {k - _n_of(certificate.clusters):,} of {k:,} components separated"
    return f"{said}, after {after}"


def accuracy_in_short(certificate: Certificate) -> str:
    """Return the accuracy of the eigenvalues in a few words: ``exact``, or ``0.71%, 18 of 20 separated``."""
    if isinstance(certificate, ApproximateCertificate):
        if not certificate.bounded:
            return "no bound"
        k = len(certificate.component_errors)
        apart = "" if certificate.converted else f", {k - _n_of(certificate.clusters):,} of {k:,} separated"
        return f"{percent(certificate.largest_error)}{apart}"
    return {"exact": "exact", "none": "no bound"}.get(certificate.kind, "bounded by estimates")


def _n_of(clusters: Iterable[tuple[int, int, float | None]]) -> int:
    """Return how many components there are in `clusters`."""
    return sum(last - first + 1 for first, last, _ in clusters)


def spans(clusters: Sequence[tuple[int, int, float | None]], most: int = _MOST_SPANS) -> str:
    """Return the components of `clusters`, which are counted from 0, for people: ``3 to 5, 9``."""
    shown = [f"{first + 1:,}" if first == last else f"{first + 1:,} to {last + 1:,}" for first, last, _ in clusters]
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")


def percent(share: float) -> str:
    """Return a share with two digits: ``62%``, ``0.83%``, or ``2.1e-09`` where percent would say little."""
    if 0 < share < 1e-4:
        return f"{share:.1e}"
    return f"{100 * share:.0f}%" if share >= 0.1 else f"{100 * share:.2g}%"


def passes(n: int) -> str:
    """Return ``one pass`` or ``3 passes``."""
    return "one pass" if n == 1 else f"{n} passes"


# --- sentences of a report ---------------------------------------------------------------------------------------------------


def paragraph(certificate: Certificate, n_components: int) -> list[str]:
    """Return what is known about the error of a model of `n_components`."""
    statement = words.clean(certificate.statement, 1200).strip()
    end = "" if statement.endswith((".", "!", "?", "…")) else "."
    sentences = [f"{statement[:1].upper()}{statement[1:]}{end}"]
    bounded = certificate.kind in ("approximate", "statistical")
    if not bounded or certificate.get("eigenvalue_intervals") is not None:
        left = words.share(max(0.0, certificate.relative_residual))
        sentences.append(f"{'At most ' if bounded else ''}{left} of the variance lies outside the components kept.")
    residual, orthonormality, trusted, rank = (
        certificate.get(name) for name in ("eigen_residual", "orthonormality", "trusted_above", "numerical_rank")
    )
    if residual is not None:
        most = "at most " if bounded else ""
        sentences.append(
            f"The worst eigenpair misses Cv = λv by {most}{words.figure(residual, 2)} of the largest eigenvalue."
        )
    if orthonormality is not None and certificate.kind != "none":  # rotated components are not
        sentences.append(f"The components are orthonormal to {words.figure(orthonormality, 2)}.")
    if isinstance(rank, int):
        # The rank is counted among the eigenvalues that were computed, so it can only ever say this much.
        some = f"{rank:,} of the {n_components:,}" if rank < n_components else f"All {n_components:,}"
        level = f" ({words.figure(trusted, 2)} of the first)" if trusted else ""
        sentences.append(f"{some} eigenvalues stand above what rounding could make{level}.")
    return sentences


def paragraph_of_analysis(certificate: Certificate) -> list[str]:
    """Return what is known about the error of an analysis of a covariance, whose components are no eigenvectors."""
    statement = words.clean(certificate.statement, 1200).strip()
    sentences = [f"{statement[:1].upper()}{statement[1:]}."]
    left = words.share(max(0.0, certificate.relative_residual))
    sentences.append(f"A reconstruction from all scores leaves {left} of the variance.")
    residual = certificate.get("eigen_residual")
    if residual is not None:
        sentences.append(
            f"The residual of the equations of the result is {words.figure(residual, 2)}, relative to its first value."
        )
    return sentences


def carried_at_least(certificate: ApproximateCertificate) -> str:
    """Return what share of the variance the components carry: ``at least 95.9 %``, or about so much without proof."""
    return f"{'at least' if certificate.bounded else 'about'} {words.share(certificate.captured_variance)}"


def how_sure(certificate: ApproximateCertificate) -> str:
    """Return how sure an approximate answer is, in a few sentences."""
    if not certificate.bounded:
        return (
            "The result is approximate, and no bound of its error is known: a covariance that was corrected for missing values "
            "need not be positive semidefinite. Compare it with the result of another seed and a larger sketch."
        )
    k = len(certificate.component_errors)
    apart = k - _n_of(certificate.clusters)
    sentence = f"The result is approximate. The relative error of {'the' if k == 1 else 'each'} eigenvalue is at most {words.share(certificate.largest_error)}"
    if certificate.converted:
        return f"{sentence}. The components follow the conversion of the literature, and no bound of their angles is known."
    if k == 1:
        return f"{sentence}, and the component is {'' if apart else 'not '}separated from the next one."
    which = f"all {k:,} components are" if apart == k else f"none of the {k:,} components is"
    if 0 < apart < k:
        which = f"{apart:,} of the {k:,} components {'is' if apart == 1 else 'are'}"
    sentence = f"{sentence}, and {which} separated from {'its neighbours' if apart == 1 else 'their neighbours'}."
    if certificate.sigma is None:
        return f"{sentence} All bounds below are proven."
    if certificate.confidence is None:  # models of earlier versions
        return sentence
    return f"{sentence} All bounds below hold together with a probability of at least {certificate.confidence:.2%}."


def proven(certificate: ApproximateCertificate) -> tuple[str, ...]:
    """Return what holds for certain of an approximate answer, up to rounding."""
    if not certificate.bounded:
        return ()
    sentences = ["No eigenvalue of the data lies below its interval."]
    if certificate.nuclear_error is not None:
        left = words.share(certificate.nuclear_error)
        sentences.append(
            f"The variance that the sketch does not hold is {left} of the total, which is accumulated exactly."
        )
    sentences.append(f"Together the components carry {carried_at_least(certificate)} of the variance.")
    sentences.append("The numbers of components for 90, 95 and 99 % of the variance lie in the ranges above.")
    if certificate.sigma is None:
        sentences.append("Upper bounds and angles follow from that variance alone, so they are wide.")
    if certificate.trusted_above:
        rounding = words.figure(certificate.trusted_above, 1)
        sentences.append(f"The intervals include rounding, which is at most {rounding} of the first eigenvalue.")
    return tuple(sentences)


def statistical(certificate: ApproximateCertificate) -> tuple[str, ...]:
    """Return what rests on an estimate."""
    if not certificate.bounded or certificate.sigma is None:
        return ()
    sentences = [
        "Upper bounds of eigenvalues follow from the largest eigenvalue that the sketch left out and from the residuals of the eigenpairs. "
        "Both are estimated from random directions that are independent of the result."
    ]
    if any(sine is not None for sine in certificate.angle_bounds):
        sentences.append("Angles follow from the same estimates.")
    most = words.share(1 - certificate.relative_residual_interval[0])
    sentences.append(f"Together the components carry at most {most} of the variance.")
    if certificate.eigen_solver == "incremental":
        sentences.append("The intervals of a single incremental pass are wide. A further pass narrows them.")
    return tuple(sentences)
