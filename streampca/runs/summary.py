"""What to tell about a finished fit: warnings, and in a few words how sure an approximate answer is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streampca.models.kernel import KernelModel
    from streampca.models.pca import PCAModel
    from streampca.solvers.kernel.result import KernelFit
    from streampca.solvers.result import Fit
    from streampca.sources.base import Source

WIDE = 0.1
"""Relative width of an interval from which an eigenvalue is said to be known badly."""
_MOST_SPANS = 8


def result_of(model: PCAModel | KernelModel) -> dict[str, Any]:
    """Return what the manifest says of the result; all of it follows from the model."""
    from streampca.models.kernel import KernelModel

    if isinstance(model, KernelModel):
        from streampca.runs.kernel import kernel_result

        return kernel_result(model)
    return {
        "n_components": len(model.components),
        "total_variance": model.total_variance,
        "explained_variance": model.explained_variance.tolist(),
        "explained_variance_ratio": model.explained_variance_ratio.tolist(),
        "constant_features": model.constant_features.tolist(),
        "components_for": {str(share): model.components_for(share) for share in (0.9, 0.95, 0.99)},
    }


def notes_of(fitted: Fit | KernelFit, source: Source) -> list[str]:
    """Return facts about a fit that follow from the data and from what was asked for, and take nothing from the result."""
    from streampca.runs.kernel import KernelFit

    found = list(fitted.plan.notes)
    if not isinstance(fitted, KernelFit):
        found += _notes_on_features_and_holes(fitted.model)
    if source.missing_chunks_filled:
        found.append(f"{source.missing_chunks_filled} chunk(s) did not exist and were read as the fill value, as asked")
    return found


def _notes_on_features_and_holes(model: PCAModel) -> list[str]:
    found = []
    n_constant = len(model.constant_features)
    if n_constant and model.scale is not None:
        found.append(
            f"{n_constant} feature(s) never vary and were given weight 0: {_some(model.constant_features.tolist())}"
        )
    said = model.certificate
    if said.get("rows_left_out"):
        found.append(f"{said['rows_left_out']} row(s) with missing values (NaN) were left out; their scores are NaN")
    if said.get("missing_values"):
        how = (
            "scores of such rows are conditional means given what was observed"
            if model.conditional
            else "in scores they count as the mean of their feature"
        )
        found.append(f"{said['missing_values']} value(s) are missing (NaN); {how}")
    return found


def warnings_of(fitted: Fit | KernelFit) -> list[str]:
    """Return what limits the use of a result, or makes it other than was asked for."""
    from streampca.runs.kernel import KernelFit, kernel_warnings

    if isinstance(fitted, KernelFit):
        return kernel_warnings(fitted.model)
    model, found = fitted.model, []
    if model.numerical_rank < len(model.components):
        found.append(
            f"only {model.numerical_rank} of {len(model.components)} components stand above rounding: the others span directions without variance"
        )
    said = model.certificate
    if said.get("clipped_mass"):
        share = said["clipped_mass"] / model.total_variance
        found.append(
            f"negative eigenvalues of the pairwise covariances were clipped: {share:.2g} of the total variance"
        )
    return found + approximation_warnings(said, fitted.plan.solver, fitted.plan.sketch)


def approximation_warnings(said: dict[str, Any], solver: str, sizes: dict[str, Any]) -> list[str]:
    """Return what a user should know of an approximate answer; nothing for an exact one.

    Parameters
    ----------
    said : dict
        The certificate.
    solver : str
        Which solver ran.
    sizes : dict
        ``columns``, ``passes`` (at most) and ``tolerance`` of the plan.
    """
    if said.get("kind") != "approximate":
        return []
    found, tolerance = [], sizes["tolerance"]
    if said.get("components_missing"):
        found.append(
            f"the sketch of {sizes['columns']} columns gives {len(said['component_errors'])} components, fewer than were asked "
            "for: take a larger sketch_size"
        )
    width = said["largest_relative_width"]
    missed = tolerance is not None and tolerance > 0 and said["n_passes"] >= sizes["passes"]
    if said["eigenvalue_intervals"] is None:
        found.append(
            "no bound of the error is known, because a covariance corrected for missing values need not be positive "
            "semidefinite: compare with another seed and a larger sketch_size"
        )
    elif width is not None and missed and width > float(tolerance or 0):
        advice = "set max_passes higher" if said["eigen_solver"] != "conversion" else "use recovery: nystrom"
        found.append(
            f"reading stopped after {_passes(said['n_passes'])}, as many as were allowed, with eigenvalues certified to within "
            f"{percent(width)} and not to {percent(tolerance)}: {advice}, or take a larger sketch_size (it was {sizes['columns']})"
        )
    elif width is not None and width > WIDE:
        found.append(f"eigenvalues are certified to within {percent(width)} only: {_narrower(said, solver, sizes)}")
    return found + _unresolved(said)


def _narrower(said: dict[str, Any], solver: str, sizes: dict[str, Any]) -> str:
    """Return what would narrow the intervals, in words."""
    if said["eigen_solver"] == "conversion":
        return "that is what recovery: conversion gives; use recovery: nystrom"
    again = "set max_passes higher" if sizes["tolerance"] is not None else "set tolerance (such as 0.01) to read again"
    other = "" if solver == "adaptive" else ", or use solver: adaptive"
    return f"{again}, take a larger sketch_size (it was {sizes['columns']}){other}"


def _unresolved(said: dict[str, Any]) -> list[str]:
    clusters = said["unresolved_clusters"]
    if not clusters or said["eigen_solver"] == "conversion":
        return []
    several = len(clusters) > 1 or clusters[0][1] > clusters[0][0]
    subject = f"component{'s' if several else ''} {spans(clusters)} {'are' if several else 'is'} not told apart from neighbours"
    return [
        f"{subject}: intervals of eigenvalues touch or nearly do, and within such a group each direction may be a mixture of all"
    ]


def spans(clusters: Sequence[Sequence[Any]], most: int = _MOST_SPANS) -> str:
    """Return the components of `clusters`, which are counted from 0, for people: ``3 to 5, 9``."""
    shown = [
        f"{first + 1:,}" if first == last else f"{first + 1:,} to {last + 1:,}" for first, last, *_ in clusters[:most]
    ]
    return ", ".join(shown) + (", …" if len(clusters) > most else "")


def carried(said: dict[str, Any]) -> str:
    """Return what share of the variance the components carry: ``95.9%``, or the two shares that it lies between."""
    low = float(said["captured_variance"])
    shown = f"{low:.1%}"
    if said.get("kind") != "approximate":
        return shown
    if said["eigenvalue_intervals"] is None:
        return f"{shown} (as estimated)"
    high = f"{1.0 - float(said['relative_residual_interval'][0]):.1%}"
    return shown if high == shown else f"{shown} to {high}"


def accuracy(said: dict[str, Any], sizes: dict[str, Any] | None) -> str | None:
    """Return in a few words how sure an approximate answer is, None for an exact one.

    `sizes` is what a run kept of its plan: ``passes`` at most, ``tolerance``, ``pilot_rows``; None where it is not known.
    """
    if said.get("kind") != "approximate":
        return None
    known = sizes or {}
    tolerance, most = known.get("tolerance"), known.get("passes")
    after = _passes(said["n_passes"]) + (f" of at most {most}" if most and most > said["n_passes"] else "")
    if known.get("pilot_rows"):
        after += f" and a sample of {known['pilot_rows']:,} rows"
    width, k = said["largest_relative_width"], len(said["component_errors"])
    if width is None:
        return f"no bound of the error, after {after}"
    asked = f" ({percent(tolerance)} asked)" if tolerance else ""
    words = f"eigenvalues certified to within {percent(width)}{asked}"
    if said["eigen_solver"] != "conversion":
        apart = k - sum(last - first + 1 for first, last, *_ in said["unresolved_clusters"])
        words += f", {apart:,} of {k:,} components told apart"
    return f"{words}, after {after}"


def percent(share: Any) -> str:
    """Return a share with two digits: ``62%``, ``0.83%``, or ``2.1e-09`` where percent would say little."""
    value = float(share)
    if 0 < value < 1e-4:
        return f"{value:.1e}"
    return f"{100 * value:.0f}%" if value >= 0.1 else f"{100 * value:.2g}%"


def _passes(n: int) -> str:
    return "one pass" if n == 1 else f"{n} passes"


def _some(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", …" if len(numbers) > 10 else "")
