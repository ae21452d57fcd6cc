"""Warnings about approximate results, in sentences: intervals that are wide, components that are mixtures."""

from __future__ import annotations

from collections.abc import Sequence

from streampca.typing import Json

WIDE = 0.1
"""Relative width of an interval from which an eigenvalue is said to be known badly."""
_MOST_SPANS = 8


def approximation_warnings(certificate: Json, solver: str, sizes: Json) -> list[str]:
    """Return what a user should know of an approximate answer; nothing for an exact one.

    Parameters
    ----------
    certificate : dict
        The certificate.
    solver : str
        Which solver ran.
    sizes : dict
        ``columns``, ``passes`` (at most) and ``tolerance`` of the plan.
    """
    if certificate.get("kind") != "approximate":
        return []
    warnings, tolerance = [], sizes["tolerance"]
    if certificate.get("components_missing"):
        warnings.append(
            f"the sketch of {sizes['columns']} columns gives {len(certificate['component_errors'])} components, fewer than were asked "
            "for: take a larger sketch_size"
        )
    width = certificate["largest_relative_width"]
    missed = tolerance is not None and tolerance > 0 and certificate["n_passes"] >= sizes["passes"]
    if certificate["eigenvalue_intervals"] is None:
        warnings.append(
            "no bound of the error is known, because a covariance corrected for missing values need not be positive "
            "semidefinite: compare with another seed and a larger sketch_size"
        )
    elif width is not None and missed and width > float(tolerance or 0):
        advice = "set max_passes higher" if certificate["eigen_solver"] != "conversion" else "use recovery: nystrom"
        warnings.append(
            f"reading stopped after {passes(certificate['n_passes'])}, as many as were allowed, with eigenvalues certified to within "
            f"{percent(width)} and not to {percent(tolerance)}: {advice}, or take a larger sketch_size (it was {sizes['columns']})"
        )
    elif width is not None and width > WIDE:
        warnings.append(
            f"eigenvalues are certified to within {percent(width)} only: {_narrower(certificate, solver, sizes)}"
        )
    return warnings + _unresolved(certificate)


def _narrower(certificate: Json, solver: str, sizes: Json) -> str:
    """Return what would narrow the intervals, in words."""
    if certificate["eigen_solver"] == "conversion":
        return "that is what recovery: conversion gives; use recovery: nystrom"
    again = "set max_passes higher" if sizes["tolerance"] is not None else "set tolerance (such as 0.01) to read again"
    other = "" if solver == "adaptive" else ", or use solver: adaptive"
    return f"{again}, take a larger sketch_size (it was {sizes['columns']}){other}"


def _unresolved(certificate: Json) -> list[str]:
    clusters = certificate["unresolved_clusters"]
    if not clusters or certificate["eigen_solver"] == "conversion":
        return []
    several = len(clusters) > 1 or clusters[0][1] > clusters[0][0]
    subject = f"component{'s' if several else ''} {spans(clusters)} {'are' if several else 'is'} not told apart from neighbours"
    return [
        f"{subject}: intervals of eigenvalues touch or nearly do, and within such a group each direction may be a mixture of all"
    ]


def spans(clusters: Sequence[Sequence[int]], most: int = _MOST_SPANS) -> str:
    """Return the components of `clusters`, which are counted from 0, for people: ``3 to 5, 9``."""
    shown = [
        f"{first + 1:,}" if first == last else f"{first + 1:,} to {last + 1:,}" for first, last, *_ in clusters[:most]
    ]
    return ", ".join(shown) + (", …" if len(clusters) > most else "")


def percent(share: float) -> str:
    """Return a share with two digits: ``62%``, ``0.83%``, or ``2.1e-09`` where percent would say little."""
    if 0 < share < 1e-4:
        return f"{share:.1e}"
    return f"{100 * share:.0f}%" if share >= 0.1 else f"{100 * share:.2g}%"


def passes(n: int) -> str:
    """Return ``one pass`` or ``3 passes``."""
    return "one pass" if n == 1 else f"{n} passes"
