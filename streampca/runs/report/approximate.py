"""How sure an approximate answer is, told: intervals, angles, what is proven of them and what is statistical."""

from __future__ import annotations

from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import ApproximateCertificate
from streampca.runs.report import figures, seen
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles
from streampca.runs.report.sampling import sampling_chart, sampling_of
from streampca.typing import FloatArray, Json

_ROWS = 20


class Bounds:
    """The bounds of a certificate as arrays, ``(k,)``, NaN where there is none."""

    def __init__(self, certificate: ApproximateCertificate):
        ends, k = certificate.eigenvalue_intervals, len(certificate.component_errors)
        self.certificate = certificate
        self.lower, self.upper = np.full((2, k), np.nan) if ends is None else np.array(ends).T
        self.proven: FloatArray = np.array(certificate.proven_upper_bounds or (np.nan,) * k, dtype=np.float64)
        self.relative: FloatArray = np.array(certificate.component_errors, dtype=np.float64)
        self.sines: FloatArray = np.array(certificate.angle_bounds, dtype=np.float64)
        self.pairs = [(first, last) for first, last, _ in certificate.clusters]


def interval_chart(run: RunFiles, bounds: Bounds, spectrum: ReportedSpectrum) -> Chart:
    """Return the eigenvalues in their intervals, with error bars where there are sampling errors."""
    errors = sampling_of(run, len(spectrum.values))
    if errors is not None:
        return sampling_chart(spectrum.values, errors, (bounds.lower, bounds.upper))
    ends = (bounds.lower, bounds.upper)
    draw = partial(plotting.scree, values=spectrum.values, bounds=ends, mixed=bounds.pairs)
    svg = figures.inline("intervals", draw)
    k, widest = len(spectrum.values), bounds.certificate.largest_error
    alt = f"Chart of {words.plural(k, 'eigenvalue')} with the intervals that they lie in. {seen.shares_of_components(spectrum.ratios)}"
    if not bounds.certificate.bounded:
        return Chart("Variance along each axis", svg, alt, "No interval is known for these.")
    caption = f"The widest interval is {words.share(widest)} of its upper end"
    caption += ": narrower than the dots." if widest < 0.02 else "."
    alt += f" The widest interval is {words.share(widest)} of its upper end."
    return Chart("Variance along each axis, and where it lies", svg, alt, caption)


def accuracy(run: RunFiles, bounds: Bounds, spectrum: ReportedSpectrum) -> Json:
    """Return the section on how sure the answer is."""
    certificate = bounds.certificate
    return {
        "lead": sentences.how_sure(certificate),
        "chart": _error_chart(run, bounds) if certificate.bounded else None,
        "proven": sentences.proven(certificate),
        "statistical": sentences.statistical(certificate),
        "table": _table(bounds, spectrum) if certificate.bounded else None,
        "counts": _counts(certificate) if certificate.bounded else None,
        "facts": _facts(run, certificate),
    }


def _error_chart(run: RunFiles, bounds: Bounds) -> Chart:
    tolerance = words.number(field(run.manifest, "approximation", "tolerance"))
    svg = figures.inline(
        "errors",
        partial(plotting.errors, relative=bounds.relative, sines=bounds.sines, mixed=bounds.pairs, tolerance=tolerance),
    )
    alt = (
        f"Bounds of the errors of {words.plural(len(bounds.relative), 'component')}: of eigenvalues and of directions. "
        f"The largest bound of an eigenvalue is {words.share(bounds.certificate.largest_error)}"
    )
    largest_sine = float(np.nanmax(bounds.sines, initial=0.0))
    alt += f", of the sine of an angle {largest_sine:.2g}." if largest_sine else "."
    return Chart("How far off each one can be", svg, alt)


def _table(bounds: Bounds, spectrum: ReportedSpectrum) -> ReportTable:
    k = len(spectrum.values)
    group_of = {
        i: (first, last, sine) for first, last, sine in bounds.certificate.clusters for i in range(first, last + 1)
    }
    rows = []
    for i in range(min(k, _ROWS)):
        rows.append(
            (
                f"{i + 1}",
                words.figure(spectrum.values[i], 5),
                words.figure(float(bounds.lower[i]), 5),
                words.figure(float(bounds.upper[i]), 5),
                words.figure(float(bounds.proven[i]), 5),
                words.share(float(bounds.relative[i])),
                _direction(float(bounds.sines[i]), group_of.get(i), converted=bounds.certificate.converted),
            )
        )
    heads = ("component", "variance", "at least", "at most", "proven at most", "off by at most", "direction")
    caption = f"First {_ROWS} of {k:,} eigenvalues and their bounds" if k > _ROWS else "Eigenvalues and their bounds"
    return ReportTable(caption, heads, tuple(rows))


def _direction(sine: float, group: tuple[int, int, float | None] | None, *, converted: bool) -> str:
    """Return how far a component may be turned, in words."""
    if converted:
        return words.MISSING
    if np.isfinite(sine):
        return f"within {words.angle(sine)}"
    if group is None:
        return words.MISSING
    first, last, span = group
    if first == last:
        return "not told apart"
    within = "" if span is None else f", within {words.angle(span)}"
    return f"one of {first + 1:,}–{last + 1:,}{within}"


def _counts(certificate: ApproximateCertificate) -> ReportTable:
    """Return between which numbers of components 90, 95 and 99 % of the variance are reached."""
    rows = []
    for share, (low, high) in certificate.components_for.items():
        most = "more than were found" if high is None else words.count(high)
        rows.append((f"{100 * float(share):.0f}{words.SPACE}%", words.count(low), most))
    return ReportTable("Components that carry so much of the variance", ("", "at least", "at most"), tuple(rows))


def _facts(run: RunFiles, certificate: ApproximateCertificate) -> words.Facts:
    """Return how the answer came about: passes, pilot, columns."""
    sizes, passes = field(run.manifest, "approximation"), words.whole(field(run.manifest, "passes"))
    tolerance, most = words.number(field(sizes, "tolerance")), words.whole(field(sizes, "passes"))
    pilot, taken = words.whole(field(sizes, "pilot_rows")), words.number(field(sizes, "pilot_bytes"))
    sine = certificate.subspace_angle_bound
    from_what = {"nystrom": "Nyström", "incremental": "incremental updates", "conversion": "conversion"}
    read = words.count(passes)
    if passes is not None and most is not None and most > passes:
        read += f" of at most {most:,}"
    pairs = [
        ("passes over the data", read),
        ("asked for", words.share(tolerance) if tolerance else words.MISSING),
        ("reached", words.share(certificate.largest_error) if certificate.bounded else words.MISSING),
        (
            "rows read beforehand",
            f"{pilot:,} ({words.size(taken)})" if pilot else "none" if pilot == 0 else words.MISSING,
        ),
        ("columns of the sketch", words.count(field(sizes, "columns"))),
        ("columns held out", words.count(field(sizes, "held_out"))),
        ("recovered by", from_what.get(certificate.eigen_solver, words.MISSING)),
        ("span of all components", words.MISSING if sine is None else f"within {words.angle(sine)}"),
    ]
    return words.facts("How it came about", pairs)
