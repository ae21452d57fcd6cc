"""The accuracy of a result in a few words, from its certificate."""

from __future__ import annotations

from streampca.solvers.certificate_warnings import passes, percent
from streampca.typing import Json


def carried(certificate: Json) -> str:
    """Return what share of the variance the components carry: ``95.9%``, or the two shares that it lies between."""
    low = float(certificate["captured_variance"])
    shown = f"{low:.1%}"
    if certificate.get("kind") != "approximate":
        return shown
    if certificate["eigenvalue_intervals"] is None:
        return f"{shown} (as estimated)"
    high = f"{1.0 - float(certificate['relative_residual_interval'][0]):.1%}"
    return shown if high == shown else f"{shown} to {high}"


def accuracy(certificate: Json, sizes: Json | None) -> str | None:
    """Return in a few words how sure an approximate answer is, None for an exact one.

    `sizes` is what a run kept of its plan: ``passes`` at most, ``tolerance``, ``pilot_rows``; None where it is not known.
    """
    if certificate.get("kind") != "approximate":
        return None
    known = sizes or {}
    tolerance, most = known.get("tolerance"), known.get("passes")
    after = passes(certificate["n_passes"]) + (f" of at most {most}" if most and most > certificate["n_passes"] else "")
    if known.get("pilot_rows"):
        after += f" and a sample of {known['pilot_rows']:,} rows"
    width, k = certificate["largest_relative_width"], len(certificate["component_errors"])
    if width is None:
        return f"no bound of the error, after {after}"
    asked = f" ({percent(tolerance)} asked)" if tolerance else ""
    words = f"eigenvalues certified to within {percent(width)}{asked}"
    if certificate["eigen_solver"] != "conversion":
        apart = k - sum(last - first + 1 for first, last, *_ in certificate["unresolved_clusters"])
        words += f", {apart:,} of {k:,} components told apart"
    return f"{words}, after {after}"
