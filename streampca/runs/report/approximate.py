"""How sure an approximate answer is, told: intervals, angles, what is proven of them and what is statistical."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

import streampca.plotting as plotting
from streampca.runs.report import figures, seen, words
from streampca.runs.report.parts import Chart, ReportTable
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles
from streampca.runs.report.sampling import sampling_chart, sampling_of
from streampca.typing import FloatArray, Json

_ROWS = 20
_SHARES = (("90", "0.9"), ("95", "0.95"), ("99", "0.99"))


@dataclass(frozen=True)
class Bounds:
    """What the certificate of an approximate answer bounds; NaN where it bounds nothing."""

    certificate: dict[str, object]
    """The certificate of the manifest."""
    lower: FloatArray
    """Lower ends of the intervals of the eigenvalues, ``(n_components,)``."""
    upper: FloatArray
    """Upper ends of them."""
    proven: FloatArray
    """Proven upper ends, which are higher."""
    relative: FloatArray
    """Relative errors of the eigenvalues at most."""
    sines: FloatArray
    """Sines of the angles by which the components are turned at most."""
    groups: tuple[tuple[int, int, float | None], ...]
    """First and last component, from 0, of groups that are not told apart, and the sine of the angle of their span.

    None for the conversion, whose directions have no bound anyway.
    """

    @property
    def certified(self) -> bool:
        """Tell whether there are intervals at all."""
        return bool(np.isfinite(self.upper).any())

    @property
    def converted(self) -> bool:
        """Tell whether eigenvalues are those of the literature's conversion, which need not lie in their intervals."""
        return self.certificate.get("eigen_solver") == "conversion"

    @property
    def statistical(self) -> bool:
        """Tell whether upper ends rest on an estimate."""
        return words.number(self.certificate.get("sigma")) is not None

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """Return first and last component of each group."""
        return tuple((first, last) for first, last, _ in self.groups)


def bounds_of(run: RunFiles) -> Bounds | None:
    """Return what the certificate of `run` bounds, None for an exact answer."""
    certificate = field(run.manifest, "certificate")
    if not isinstance(certificate, dict) or certificate.get("kind") != "approximate":
        return None
    k, converted = run.n_components, certificate.get("eigen_solver") == "conversion"
    ends = certificate.get("eigenvalue_intervals")
    ends = [pair if isinstance(pair, list) and len(pair) == 2 else (None, None) for pair in _list(ends)]
    return Bounds(
        certificate,
        _numbers([low for low, _ in ends], k),
        _numbers([high for _, high in ends], k),
        _numbers(_list(certificate.get("proven_upper_bounds")), k),
        _numbers(_list(certificate.get("component_errors")), k),
        _numbers(_list(certificate.get("angle_bounds")), k),
        () if converted else tuple(_groups(_list(certificate.get("unresolved_clusters")), k)),
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _numbers(values: Sequence[object], k: int) -> FloatArray:
    numbers = np.full(k, np.nan)
    for i, value in enumerate(values[:k]):
        checked = words.number(value)
        if checked is not None and checked >= 0:
            numbers[i] = checked
    return numbers


def _groups(clusters: Sequence[object], k: int) -> list[tuple[int, int, float | None]]:
    groups = []
    for cluster in clusters[:k]:
        first, last, sine = cluster if isinstance(cluster, list) and len(cluster) == 3 else (None, None, None)
        first, last = words.whole(first), words.whole(last)
        if first is not None and last is not None and first <= last < k:
            groups.append((first, last, words.number(sine)))
    return groups


def carried(bounds: Bounds, spectrum: ReportedSpectrum) -> str:
    """Return what share of the variance the components carry: ``at least 95.9 %``, or about so much without proof."""
    low = words.number(bounds.certificate.get("captured_variance"))
    shown = words.share(float(spectrum.ratios.sum()) if low is None else low)
    return f"{'at least' if bounds.certified else 'about'} {shown}"


def interval_chart(run: RunFiles, bounds: Bounds, spectrum: ReportedSpectrum) -> Chart:
    """Return the eigenvalues in their intervals, with error bars where there are sampling errors."""
    errors = sampling_of(run, len(spectrum.values))
    if errors is not None:
        return sampling_chart(spectrum.values, errors, (bounds.lower, bounds.upper))
    ends = (bounds.lower, bounds.upper)
    draw = partial(plotting.scree, values=spectrum.values, bounds=ends, mixed=bounds.pairs)
    svg = figures.inline("intervals", draw)
    k, widest = len(spectrum.values), _largest(bounds.relative)
    alt = f"Chart of {words.plural(k, 'eigenvalue')} with the intervals that they lie in. {seen.shares_of_components(spectrum.ratios)}"
    if not bounds.certified:
        return Chart("Variance along each axis", svg, alt, "No interval is known for these.")
    caption = f"The widest interval is {words.share(widest)} of its upper end"
    caption += ": narrower than the dots." if widest < 0.02 else "."
    alt += f" The widest interval is {words.share(widest)} of its upper end."
    return Chart("Variance along each axis, and where it lies", svg, alt, caption)


def _largest(values: FloatArray) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else 0.0


def accuracy(run: RunFiles, bounds: Bounds, spectrum: ReportedSpectrum) -> Json:
    """Return the section on how sure the answer is."""
    return {
        "lead": _lead(bounds, spectrum),
        "chart": _error_chart(run, bounds) if bounds.certified else None,
        "proven": _proven(bounds, spectrum),
        "statistical": _statistical(bounds),
        "table": _table(bounds, spectrum) if bounds.certified else None,
        "counts": _counts(bounds) if bounds.certified else None,
        "facts": _facts(run, bounds),
    }


def _lead(bounds: Bounds, spectrum: ReportedSpectrum) -> str:
    if not bounds.certified:
        return (
            "This answer is approximate, and nothing bounds its error: a covariance that was corrected for missing values "
            "need not be positive semidefinite, and then what was left out can be of any sign. Compare it with an answer "
            "from another seed and a larger sketch."
        )
    k, apart = len(spectrum.values), len(spectrum.values) - sum(last - first + 1 for first, last in bounds.pairs)
    sentence = (
        f"This answer is approximate: every eigenvalue is known to within {words.share(_largest(bounds.relative))}"
    )
    if bounds.converted:
        return f"{sentence}. The components are those of the literature’s conversion, whose directions have no bound."
    if k == 1:
        return f"{sentence}, and the component is {'' if apart else 'not '}told apart from the next one."
    which = f"all {k:,} components are" if apart == k else f"none of the {k:,} components is"
    if 0 < apart < k:
        which = f"{apart:,} of the {k:,} components {'is' if apart == 1 else 'are'}"
    return f"{sentence}, and {which} told apart from the neighbours."


def _error_chart(run: RunFiles, bounds: Bounds) -> Chart:
    tolerance = words.number(field(run.manifest, "approximation", "tolerance"))
    svg = figures.inline(
        "errors",
        partial(plotting.errors, relative=bounds.relative, sines=bounds.sines, mixed=bounds.pairs, tolerance=tolerance),
    )
    alt = (
        f"Bounds of the errors of {words.plural(len(bounds.relative), 'component')}: of eigenvalues and of directions. "
        f"The largest bound of an eigenvalue is {words.share(_largest(bounds.relative))}"
    )
    largest_sine = _largest(bounds.sines)
    alt += f", of the sine of an angle {largest_sine:.2g}." if largest_sine else "."
    return Chart("How far off each one can be", svg, alt)


def _proven(bounds: Bounds, spectrum: ReportedSpectrum) -> tuple[str, ...]:
    """Return what holds for certain, up to rounding."""
    if not bounds.certified:
        return ()
    certificate, sentences = bounds.certificate, []
    sentences.append("No eigenvalue of the data is smaller than the lower end of its interval.")
    left = words.number(certificate.get("nuclear_error"))
    if left is not None:
        sentences.append(
            f"Everything outside the sketch sums to {words.share(left)} of the variance: the total is counted exactly, not sampled."
        )
    sentences.append(f"Together the components carry {carried(bounds, spectrum)} of the variance.")
    sentences.append("The numbers of components for 90, 95 and 99 % of the variance lie between those below.")
    if not bounds.statistical:
        sentences.append("Upper ends and angles follow from that sum alone, so they are wide.")
    trusted = words.number(certificate.get("trusted_above"))
    if trusted:
        sentences.append(f"All of it up to rounding of {words.figure(trusted, 1)} of the first eigenvalue.")
    return tuple(sentences)


def _statistical(bounds: Bounds) -> tuple[str, ...]:
    """Return what rests on an estimate."""
    if not bounds.certified or not bounds.statistical:
        return ()
    sentences = [
        "Upper ends of the intervals rest on an estimate of the largest eigenvalue left out, from random directions that had "
        "no say in the answer, times a factor for safety: intervals hold the truth in at least 99 of 100 runs."
    ]
    if np.isfinite(bounds.sines).any():
        sentences.append("Angles rest on the same estimate.")
    ends = _list(bounds.certificate.get("relative_residual_interval"))
    low = words.number(ends[0]) if ends else None
    if low is not None:
        sentences.append(f"Together the components carry at most {words.share(1 - low)} of the variance.")
    if bounds.certificate.get("eigen_solver") == "incremental":
        sentences.append("Intervals of a single incremental pass are of first order: a further pass narrows them.")
    return tuple(sentences)


def _table(bounds: Bounds, spectrum: ReportedSpectrum) -> ReportTable:
    k = len(spectrum.values)
    group_of = {i: (first, last, sine) for first, last, sine in bounds.groups for i in range(first, last + 1)}
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
                _direction(float(bounds.sines[i]), group_of.get(i), converted=bounds.converted),
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


def _counts(bounds: Bounds) -> ReportTable:
    """Return between which numbers of components 90, 95 and 99 % of the variance are reached."""
    rows = []
    for percent, key in _SHARES:
        ends = _list(field(bounds.certificate, "components_for", key))
        low, high = [*ends, None, None][:2]
        most = words.count(high) if words.whole(high) is not None else "more than were found"
        rows.append((f"{percent}{words.SPACE}%", words.count(low), most))
    return ReportTable("Components that carry so much of the variance", ("", "at least", "at most"), tuple(rows))


def _facts(run: RunFiles, bounds: Bounds) -> words.Facts:
    """Return how the answer came about: passes, pilot, columns."""
    sizes, passes = field(run.manifest, "approximation"), words.whole(field(run.manifest, "passes"))
    tolerance, most = words.number(field(sizes, "tolerance")), words.whole(field(sizes, "passes"))
    pilot, taken = words.whole(field(sizes, "pilot_rows")), words.number(field(sizes, "pilot_bytes"))
    from_what = {"nystrom": "Nyström", "incremental": "incremental updates", "conversion": "conversion"}
    read = words.count(passes)
    if passes is not None and most is not None and most > passes:
        read += f" of at most {most:,}"
    pairs = [
        ("passes over the data", read),
        ("asked for", words.share(tolerance) if tolerance else words.MISSING),
        ("reached", words.share(_largest(bounds.relative)) if bounds.certified else words.MISSING),
        (
            "rows read beforehand",
            f"{pilot:,} ({words.size(taken)})" if pilot else "none" if pilot == 0 else words.MISSING,
        ),
        ("columns of the sketch", words.count(field(sizes, "columns"))),
        ("columns held out", words.count(field(sizes, "held_out"))),
        ("recovered by", from_what.get(str(bounds.certificate.get("eigen_solver")), words.MISSING)),
        ("span of all components", _span(bounds)),
    ]
    return words.facts("How it came about", pairs)


def _span(bounds: Bounds) -> str:
    sine = words.number(bounds.certificate.get("subspace_angle_bound"))
    return words.MISSING if sine is None else f"within {words.angle(sine)}"
