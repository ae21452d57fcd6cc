"""What came out of a run in words and charts: summary, tiles, spectrum, the number of components, and how sure it is."""

from __future__ import annotations

from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.errors import ModelError
from streampca.models import certificate_sentences as sentences
from streampca.models.certificates import ApproximateCertificate
from streampca.models.sampling_errors import SamplingErrors
from streampca.runs.report.figures import (
    Chart,
    ReportTable,
    centres_of_classes,
    inline,
    shares_of_components,
    spread_of_points,
    sums_of_components,
)
from streampca.runs.report.run_files import ReportedSpectrum, RunFiles, field
from streampca.runs.report.samples import Scores
from streampca.typing import FloatArray, Json

Tile = tuple[str, str, str]
"""One number at the top of the page: what it counts, the number with its unit, and a few words more."""


def spectrum_of(run: RunFiles) -> ReportedSpectrum:
    """Return the spectrum: values from the model, shares from the manifest, or worked out from its total variance."""
    values = np.nan_to_num(run.explained_variance, nan=0.0, posinf=0.0, neginf=0.0)
    ratios = np.array(
        words.numbers(field(run.manifest, "result", "explained_variance_ratio"), len(values)), dtype=np.float64
    )
    if len(ratios) != len(values):
        total = words.number(field(run.manifest, "result", "total_variance")) or float(values.sum())
        ratios = values / total if total > 0 else np.zeros_like(values)
    return ReportedSpectrum(values, np.clip(ratios, 0.0, None))


def summary(run: RunFiles, spectrum: ReportedSpectrum, carried: str | None = None) -> str:
    """Return the result in one sentence of plain words; `carried` is the share of variance where it has bounds."""
    k, d, n = len(spectrum.values), run.n_features, sample_count(run)
    possible = min(d, n) if n else d
    subject = f"All {k:,} components" if 1 < k == possible else f"First {k:,} of {possible:,} components"
    if k == 1:
        subject = "The only component" if possible == 1 else f"First of {possible:,} components"
    if field(run.manifest, "result", "rotation") is not None:
        subject = words.plural(k, "rotated component")
    verb = "carries" if k == 1 else "carry"
    if carried is None or spectrum.values.max() <= 0:
        carried = words.share(float(spectrum.ratios.sum())) if spectrum.values.max() > 0 else "none"
    sentence = f"{subject} {verb} {carried} of the variance of {words.plural(n, 'row')}"
    passes, memory = words.whole(field(run.manifest, "passes")), field(run.manifest, "memory")
    if passes:
        sentence += f"; computed out of core in {words.times(passes)} of the data"
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    if peak and allowed:
        sentence += f", peak {words.size(peak)} of {words.size(allowed)} allowed"
    return sentence + "."


def sample_count(run: RunFiles) -> int | None:
    """Return the number of rows of the source, or None."""
    shape = field(run.manifest, "source", "shape")
    first = shape[0] if isinstance(shape, list) and shape else None
    n_samples = words.whole(field(run.plan, "n_samples"))
    return n_samples if n_samples is not None else words.whole(first)


def scores_note(run: RunFiles, scores: Scores | None) -> str:
    """Return which rows the scores are of; rows that a fit left out, because values were missing, are not drawn."""
    if scores is None:
        return ""
    m, n, certificate = len(scores.values), sample_count(run), run.model.certificate
    if certificate.get("rows_left_out"):
        among = "" if n is None else f" of the {n:,}"
        return f"{m:,} complete row{'' if m == 1 else 's'}{among}, each a point at its scores; rows with missing values are not drawn."
    filled = ""
    if certificate.get("missing_values"):
        filled = f"; missing values are {'as the components give them' if run.model.conditional else 'the means of their features'}"
    if n is None or m >= n:
        return f"All {words.plural(m, 'row')}, each a point at its scores{filled}."
    return f"{words.plural(m, 'row')} spread evenly over the {n:,}, each a point at its scores{filled}."


def tiles(run: RunFiles, spectrum: ReportedSpectrum, carried: str | None = None) -> tuple[Tile, ...]:
    """Return the numbers for the top of the page; `carried` as in `summary`."""
    manifest, memory = run.manifest, field(run.manifest, "memory")
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    used = f"{words.share(peak / allowed)} of {words.size(allowed)} allowed" if peak and allowed else ""
    carrying = f"{carried or words.share(float(spectrum.ratios.sum()))} of the variance"
    rows_a_second, sides = "", words.dimensions(field(manifest, "source", "feature_shape"))
    fit, n = words.number(field(manifest, "seconds", "fit")), sample_count(run)
    if fit and n:
        rows_a_second = f"{float(f'{n / fit:.2g}'):,.0f} rows a second"
    return (
        ("Rows", words.count(n), words.clean(field(manifest, "source", "dtype")).replace(words.MISSING, "")),
        ("Features", words.count(run.n_features), sides.replace(words.MISSING, "")),
        ("Components", words.count(len(spectrum.values)), carrying),
        _reads_tile(manifest),
        ("Peak memory", words.size(peak), used),
        ("Time", words.duration(field(manifest, "seconds", "total")), rows_a_second),
    )


def _reads_tile(manifest: object) -> Tile:
    """Return how often the data were read, for the fit and for the scores, and how many bytes that were."""
    most, made = (words.whole(field(manifest, *path)) for path in (("approximation", "passes"), ("passes",)))
    fit, scores = (words.number(field(manifest, "reads", purpose, "bytes")) for purpose in ("fit", "scores"))
    notes = [f"at most {most:,} for the fit"] if most is not None and made is not None and most > made else []
    if made is not None and scores:
        notes.append(f"{made:,} for the fit, 1 for the scores")
        made += 1
    if fit:
        notes.append(f"{words.size(fit + (scores or 0))} in all")
    return ("Reads of the data", words.count(made), "; ".join(notes))


def spectrum_charts(
    run: RunFiles, spectrum: ReportedSpectrum, values: Chart | None = None, carried: str | None = None
) -> tuple[Chart, ...]:
    """Return the charts of eigenvalues, or `values` for it, and of their sums; `carried` as in `summary`."""
    k, total = len(spectrum.values), float(spectrum.ratios.sum())
    needed, certificate = {}, run.model.certificate
    shown = {}
    for level, key in ((0.9, "0.9"), (0.95, "0.95"), (0.99, "0.99")):
        given = words.whole(field(run.manifest, "result", "components_for", key))
        positions = np.flatnonzero(np.cumsum(spectrum.ratios) >= level * (1 - 1e-12))
        reached = given if given is not None else int(positions[0]) + 1 if len(positions) else None
        if reached is not None and 1 <= reached <= k:
            needed[level] = reached
        ends = certificate.components_for[key] if isinstance(certificate, ApproximateCertificate) else None
        number = _range_of(ends, needed.get(level))
        if number:
            shown[level] = number
    reaching = ", ".join(f"{100 * level:.0f}{words.SPACE}% with {number}" for level, number in shown.items())
    together = f"Together the components carry {carried or words.share(total)} of the variance."
    beyond = 0.0
    if isinstance(certificate, ApproximateCertificate) and not certificate.converted:
        beyond = certificate.nuclear_error or 0.0  # the sums are lower bounds
    marks = {f"{100 * level:.0f} %: {shown.get(level, number)}": number for level, number in needed.items()}
    errors = sampling_of(run, k)
    exact = _eigenvalue_chart(spectrum) if errors is None else sampling_chart(spectrum.values, errors)
    return (
        exact if values is None else values,
        Chart(
            "Share carried together",
            inline("cumulative", partial(plotting.cumulative, ratios=spectrum.ratios, marks=marks, beyond=beyond)),
            f"Chart of the cumulative share of variance. {sums_of_components(spectrum.ratios)} {together}{' It reaches ' + reaching + '.' if reaching else ''}",
            f"Reaches {reaching}." if reaching else together,
        ),
    )


def _range_of(ends: tuple[int, int | None] | None, reached: int | None) -> str:
    """Return how many components reach a share: a number, or the range in which an approximate answer has it.

    `ends` are the least and the greatest number by the certificate, None for an exact answer; the greatest is None where
    it is more than were found. `reached` is the number by the eigenvalues that are reported.
    """
    if ends is None:
        return "" if reached is None else f"{reached:,}"
    low, high = ends
    if high is None and low <= 1:
        return ""
    if low == high:
        return f"{low:,}"
    return f"{low:,} or more" if high is None else f"{low:,} to {high:,}"


def _eigenvalue_chart(spectrum: ReportedSpectrum) -> Chart:
    k = len(spectrum.values)
    first, last = words.figure(spectrum.values[0]), words.figure(spectrum.values[-1])
    return Chart(
        "Variance along each axis",
        inline("eigenvalues", partial(plotting.scree, values=spectrum.values)),
        f"Chart of {words.plural(k, 'eigenvalue')}, from {first} down to {last}. {shares_of_components(spectrum.ratios)}",
        f"From {first} for the first component down to {last} for component {k:,}." if k > 1 else f"{first}.",
    )


def score_charts(
    spectrum: ReportedSpectrum, scores: Scores, classes: plotting.Classes | None = None
) -> tuple[Chart, ...]:
    """Return the samples on the first two axes, in the colours of their classes; along the only one where there is one."""
    labels = [f"axis {axis + 1:,} ({spectrum.share(axis)} of the variance)" for axis in scores.axes]
    m = words.plural(len(scores.values), "sample")
    if len(scores.axes) == 1:
        svg = inline("histogram", partial(plotting.scores, values=scores.values, titles=labels))
        return (Chart("Along the only axis", svg, f"Histogram of {m}. {spread_of_points(scores.values, [1])}"),)
    caption = ""
    if classes is not None and classes.others:
        caption = f"Samples of {words.plural(classes.others, 'other class', 'other classes')} are grey."
    points = scores.values[:, :2]
    draw = partial(plotting.scores, values=points, titles=labels, classes=classes)
    svg = inline("plane", draw, height=3.9)
    alt = f"{m} plotted on axis 1 against axis 2"
    alt += "." if classes is None else f", coloured by class: {', '.join(classes.names)}."
    alt += f" {spread_of_points(points, [1, 2])}"
    alt += "" if classes is None else f" {centres_of_classes(points, classes.numbers, classes.names)}"
    return (Chart("First two axes", svg, alt, caption),)


def sampling_of(run: RunFiles, n_components: int) -> SamplingErrors | None:
    """Return the sampling errors in the manifest, None where there are none or they are damaged."""
    result = run.manifest.get("result")
    written = result.get("sampling_errors") if isinstance(result, dict) else None
    try:
        return SamplingErrors.from_dict(written, n_components) if isinstance(written, dict) else None
    except ModelError:
        return None


def sampling_chart(
    values: FloatArray, errors: SamplingErrors, numerical: tuple[FloatArray, FloatArray] | None = None
) -> Chart:
    """Return the eigenvalues with error bars; `numerical` are the ends of the intervals of the certificate, None for an exact answer."""
    groups = errors.degenerate_groups
    draw = partial(plotting.scree, values=values, bounds=numerical, sampling=errors.interval(0.95).T, mixed=groups)
    k, widest = len(values), float(np.max(errors.eigenvalues / np.maximum(values, np.finfo(float).tiny), initial=0.0))
    largest = max((last - first + 1 for first, last in groups), default=0)
    caption = f"Standard errors by leaving out each of {errors.n_blocks} groups of rows; the largest is {words.share(widest)} of its eigenvalue."
    if groups:
        named = ", ".join(f"{first + 1:,} to {last + 1:,}" for first, last in groups[:6]) + (
            " …" if len(groups) > 6 else ""
        )
        caption += f" Error bars by North's rule overlap for components {named}: these are mixtures of those of the population."
    alt = f"Chart of {words.plural(k, 'eigenvalue')} with error bars" + (
        f"; {largest} neighbours overlap." if groups else "."
    )
    alt += f" The eigenvalues go from {words.figure(values[0])} down to {words.figure(values[-1])}; the largest standard error is {words.share(widest)} of its eigenvalue."
    return Chart(
        "Variance along each axis, and its sampling error",
        inline("intervals", draw),
        alt,
        caption,
    )


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
    svg = inline("intervals", draw)
    k, widest = len(spectrum.values), bounds.certificate.largest_error
    alt = f"Chart of {words.plural(k, 'eigenvalue')} with the intervals that they lie in. {shares_of_components(spectrum.ratios)}"
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
        "table": _bounds_table(bounds, spectrum) if certificate.bounded else None,
        "counts": _counts(certificate) if certificate.bounded else None,
        "facts": _accuracy_facts(run, certificate),
    }


def _error_chart(run: RunFiles, bounds: Bounds) -> Chart:
    tolerance = words.number(field(run.manifest, "approximation", "tolerance"))
    svg = inline(
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


def _bounds_table(bounds: Bounds, spectrum: ReportedSpectrum) -> ReportTable:
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


def _accuracy_facts(run: RunFiles, certificate: ApproximateCertificate) -> words.Facts:
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


_FEWEST = 20
"""Eigenvalues that are drawn at least, if there are so many."""


def component_count(run: RunFiles) -> Json | None:
    """Return what the rules say of the model of a run; None where no rule applies."""
    rows, numbers, edges, others = [], [], {}, dict[str, list[str]]()
    for rule in run.pca.component_rules.values():
        number = rule.n_components
        if number is None:
            others.setdefault(rule.statement.removeprefix("does not apply: "), []).append(rule.title)
            continue
        noise, edge = (rule.figures.get(name) for name in ("noise_variance", "threshold"))
        shown = (words.figure(value) if value is not None else "" for value in (noise, edge))
        rows.append((rule.title, rule.count, *shown, rule.statement))
        numbers.append(number)
        if edge is not None:
            edges[rule.title] = edge
    if not numbers:
        return None
    table = ReportTable(
        "What each rule takes for more than noise",
        ("rule", "components", "noise variance", "threshold", ""),
        tuple(rows),
    )
    low, high = min(numbers), max(numbers)
    between = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    lead = f"{between} component{'' if high == 1 and low == 1 else 's'} by the rules that apply; the run has {run.n_components:,}."
    if others:
        listed = "; ".join(f"{', '.join(titles)} ({reason})" for reason, titles in others.items())
        lead += f" Does not apply: {listed}."
    chart = _rules_chart(run, edges, high) if edges else None
    return {"lead": lead, "chart": chart, "table": table}


def _rules_chart(run: RunFiles, edges: dict[str, float], highest: int) -> Chart:
    """Return the first eigenvalues, some more than the highest number of the rules, with the thresholds."""
    known = run.explained_variance if run.eigenvalues is None else run.eigenvalues
    values = np.clip(known[: max(_FEWEST, 2 * highest, run.n_components)], 0.0, None)
    listed = ", ".join(f"{title} {words.figure(edge)}" for title, edge in edges.items())
    return Chart(
        "Eigenvalues and the edges of noise",
        inline("scree", partial(plotting.scree, values=values, n_kept=run.n_components, thresholds=edges), height=3.9),
        f"Chart of the first {words.plural(len(values), 'eigenvalue')} with the thresholds of the rules: {listed}. The first is {words.figure(values[0])}, the last {words.figure(values[-1])}.",
        f"Thresholds: {listed}.",
    )
