"""The result of a run in words and charts: summary, tiles, spectrum, number of components, and error bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.errors import ModelError
from streampca.linalg.component_rules import RuleResult
from streampca.linalg.cross_validation import NOT_ASKED
from streampca.models import certificate_sentences as sentences
from streampca.models.certificate_sentences import carried_at_least
from streampca.models.certificates import ApproximateCertificate
from streampca.models.sampling_errors import SamplingErrors
from streampca.runs.report.figures import (
    Chart,
    ReportTable,
    Section,
    can_draw,
    centres_of_classes,
    inline,
    shares_of_components,
    spread_of_points,
    sums_of_components,
)
from streampca.runs.report.run_files import ReportedSpectrum, RunFiles, field
from streampca.runs.report.samples import Scores, Shown, along_samples
from streampca.typing import FloatArray, Json

Tile = tuple[str, str, str]
"""One number at the top of the page: what it counts, the number with its unit, and a few words more."""


def spectrum_of(run: RunFiles) -> ReportedSpectrum:
    """Return the spectrum: values from the model, shares from the manifest, or worked out from its total variance."""
    values = np.nan_to_num(run.model.score_variances, nan=0.0, posinf=0.0, neginf=0.0)
    ratios = np.array(
        words.numbers(field(run.manifest, "result", "explained_variance_ratio"), len(values)), dtype=np.float64
    )
    if len(ratios) != len(values):
        total = words.number(field(run.manifest, "result", "total_variance")) or float(values.sum())
        ratios = values / total if total > 0 else np.zeros_like(values)
    ratios, certificate = np.clip(ratios, 0.0, None), run.model.certificate
    carried = words.share(float(ratios.sum()))
    if isinstance(certificate, ApproximateCertificate):
        carried = carried_at_least(certificate)
    return ReportedSpectrum(values, ratios, carried)


def summary(shown: Shown) -> str:
    """Return the result in one sentence of plain words."""
    run, values = shown.run, shown.spectrum.values
    k, d, n, memory = len(values), run.model.n_features, sample_count(run), field(run.manifest, "memory")
    possible = min(d, n) if n else d
    subject = f"All {k:,} components" if 1 < k == possible else f"First {k:,} of {possible:,} components"
    if k == 1:
        subject = "The only component" if possible == 1 else f"First of {possible:,} components"
    if field(run.manifest, "result", "rotation") is not None:
        subject = words.plural(k, "rotated component")
    carried = shown.spectrum.carried if values.max() > 0 else "none"
    sentence = f"{subject} {'carries' if k == 1 else 'carry'} {carried} of the variance of {words.plural(n, 'sample')}"
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    used = f", peak {words.size(peak)} of {words.size(allowed)} allowed" if peak and allowed else ""
    return f"{sentence}{out_of_core(run)}{used}."


def out_of_core(run: RunFiles) -> str:
    """Return how often the data were read, as the end of a sentence."""
    passes = words.whole(field(run.manifest, "passes"))
    return f"; computed out of core in {words.times(passes)} over the data" if passes else ""


def sample_count(run: RunFiles) -> int | None:
    """Return the number of rows of the source, or None."""
    shape = field(run.manifest, "source", "shape")
    first = shape[0] if isinstance(shape, list) and shape else None
    n_samples = words.whole(field(run.plan, "n_samples"))
    return n_samples if n_samples is not None else words.whole(first)


def scores_note(run: RunFiles, scores: Scores | None) -> str:
    """Return of which samples the scores are drawn; samples that a fit left out, because values were missing, are not."""
    if scores is None:
        return ""
    m, n, certificate = len(scores.values), sample_count(run), run.model.certificate
    which, how = f"All {words.plural(m, run.sample_noun)}", ""
    if n is not None and m < n:
        which, how = f"{m:,} of the {n:,} {run.sample_noun}s", ", evenly spaced"
    if certificate.get("rows_left_out"):
        which = f"The {words.plural(m, f'complete {run.sample_noun}')}{'' if n is None else f' of {n:,}'}"
        return f"{which} are drawn. Samples with missing values are not."
    filled = ""
    if certificate.get("missing_values"):
        filled = " Missing values are replaced by "
        filled += (
            "what the components predict from the others." if run.model.conditional else "the means of their features."
        )
    return f"{which} {'is' if m == 1 else 'are'} drawn{how}.{filled}"


def tiles(shown: Shown) -> tuple[Tile, ...]:
    """Return the numbers for the top of the page."""
    run, spectrum = shown.run, shown.spectrum
    manifest, memory = run.manifest, field(run.manifest, "memory")
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    used = f"{words.share(peak / allowed)} of {words.size(allowed)} allowed" if peak and allowed else ""
    rows_a_second, sides = "", words.dimensions(field(manifest, "source", "feature_shape"))
    fit, n = words.number(field(manifest, "seconds", "fit")), sample_count(run)
    if fit and n:
        rows_a_second = f"{float(f'{n / fit:.2g}'):,.0f} samples per second"
    return (
        ("Samples", words.count(n), words.clean(field(manifest, "source", "dtype")).replace(words.MISSING, "")),
        ("Features", words.count(run.model.n_features), sides.replace(words.MISSING, "")),
        ("Components", words.count(len(spectrum.values)), f"{spectrum.carried} of the {spectrum.total}"),
        _reads_tile(manifest),
        ("Peak memory", words.size(peak), used),
        ("Time", words.duration(field(manifest, "seconds", "total")), rows_a_second),
    )


def tiles_of_several(manifest: Json) -> tuple[Tile, ...]:
    """Return the numbers for the top of the page of several models or groups."""
    shape, memory = field(manifest, "source", "shape"), field(manifest, "memory")
    n, d = shape if isinstance(shape, list) and len(shape) == 2 else (None, None)
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    models = field(manifest, "models")
    return (
        ("Samples", words.count(n), words.clean(field(manifest, "source", "dtype")).replace(words.MISSING, "")),
        ("Features", words.count(d), ""),
        ("Models", words.count(len(models) if isinstance(models, dict) else None), ""),
        _reads_tile(manifest),
        ("Peak memory", words.size(peak), f"of {words.size(allowed)} allowed" if peak and allowed else ""),
        ("Time", words.duration(field(manifest, "seconds", "total")), ""),
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


def spectrum_section(shown: Shown) -> Section | None:
    """Return the section of eigenvalues and of their sums; None without charts."""
    if not can_draw():
        return None
    run, spectrum, certificate = shown.run, shown.spectrum, shown.run.model.certificate
    approximate = certificate if isinstance(certificate, ApproximateCertificate) else None
    k, needed, levels = len(spectrum.values), {}, {}
    for level, key in ((0.9, "0.9"), (0.95, "0.95"), (0.99, "0.99")):
        given = words.whole(field(run.manifest, "result", "components_for", key))
        positions = np.flatnonzero(np.cumsum(spectrum.ratios) >= level * (1 - 1e-12))
        reached = given if given is not None else int(positions[0]) + 1 if len(positions) else None
        if reached is not None and 1 <= reached <= k:
            needed[level] = reached
        number = _range_of(None if approximate is None else approximate.components_for[key], needed.get(level))
        if number:
            levels[level] = number
    reaching = ", ".join(f"{100 * level:.0f}{words.SPACE}% with {number}" for level, number in levels.items())
    together = f"Together the components carry {spectrum.carried} of the {spectrum.total}."
    beyond = 0.0
    if approximate is not None and not approximate.converted:
        beyond = approximate.nuclear_error or 0.0  # the sums are lower bounds
    marks = {f"{100 * level:.0f} %: {levels.get(level, number)}": number for level, number in needed.items()}
    sums = Chart(
        "Cumulative explained variance",
        inline("cumulative", partial(plotting.cumulative, ratios=spectrum.ratios, marks=marks, beyond=beyond)),
        f"Chart of the cumulative share of variance. {sums_of_components(spectrum.ratios)} {together}{' It reaches ' + reaching + '.' if reaching else ''}",
        f"Reaches {reaching}." if reaching else together,
    )
    charts = (eigenvalue_chart(spectrum, sampling_of(run, k), approximate), sums)
    return Section("spectrum", "Explained variance", parts=(("pair", charts),))


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


def eigenvalue_chart(
    spectrum: ReportedSpectrum, errors: SamplingErrors | None, certificate: ApproximateCertificate | None
) -> Chart:
    """Return the eigenvalues, with error bars where there are sampling errors, in the intervals of an approximate answer."""
    values, k = spectrum.values, len(spectrum.values)
    first, last = words.figure(values[0]), words.figure(values[-1])
    bounds = None if certificate is None else Bounds(certificate)
    ends = None if bounds is None else (bounds.lower, bounds.upper)
    if errors is not None:
        return _sampling_chart(values, errors, ends)
    told = shares_of_components(spectrum.ratios)
    if certificate is None or bounds is None:
        svg = inline("eigenvalues", partial(plotting.scree, values=values))
        alt = f"Chart of {words.plural(k, 'eigenvalue')}, from {first} down to {last}. {told}"
        caption = f"From {first} for the first component down to {last} for component {k:,}." if k > 1 else f"{first}."
        return Chart(spectrum.title, svg, alt, caption)
    svg = inline("intervals", partial(plotting.scree, values=values, bounds=ends, mixed=bounds.pairs))
    alt = f"Chart of {words.plural(k, 'eigenvalue')} with the intervals that they lie in. {told}"
    if not certificate.bounded:
        return Chart(spectrum.title, svg, alt, "No interval is known for these.")
    caption = f"The widest interval is {words.share(certificate.largest_error)} of its upper end"
    alt += f" {caption}."
    caption += ": narrower than the dots." if certificate.largest_error < 0.02 else "."
    return Chart(f"{spectrum.title} with error bounds", svg, alt, caption)


def score_charts(
    scores: Scores,
    names: Sequence[str],
    labels: Sequence[str],
    classes: plotting.Classes | None = None,
    title: str = "First two components",
    salt: str = "",
) -> tuple[Chart, ...]:
    """Return the samples at the two scores, in the colours of their classes, or the histogram of the only score.

    `names` are those of the scores, `labels` the titles of the axes, and `title` is that of a chart of two scores, and
    `salt` the end of the names of charts, which no others of the page have.
    """
    m, told = words.plural(len(scores.values), "sample"), spread_of_points(scores.values, names)
    if len(scores.axes) == 1:
        svg = inline(f"histogram{salt}", partial(plotting.scores, values=scores.values, titles=labels))
        return (Chart(f"Scores on {names[0]}", svg, f"Histogram of {m}. {told}"),)
    points, alt = scores.values[:, :2], f"{m} plotted on {' against '.join(names)}"
    caption = "Each point is a sample."
    if plotting.is_density(points, classes):
        caption = "Hexagons count samples: the stronger the colour, the more samples, on a logarithmic scale."
    if classes is not None and classes.others:
        caption += f" Samples of {words.plural(classes.others, 'other class', 'other classes')} are grey."
    svg = inline(f"plane{salt}", partial(plotting.scores, values=points, titles=labels, classes=classes), height=3.9)
    alt += "." if classes is None else f", coloured by class: {', '.join(classes.names)}."
    alt += f" {told}"
    alt += "" if classes is None else f" {centres_of_classes(points, classes.numbers, classes.names)}"
    return (Chart(title, svg, alt, caption),)


def rows_section(shown: Shown, charts: tuple[Chart, ...], columns: Mapping[int, str]) -> Section | None:
    """Return the section of the scores, with those in some `columns` along the dimensions of the samples; None without charts."""
    if not can_draw():
        return None
    series, note = along_samples(shown.run, columns)
    if not (charts or series):
        return None
    n, scores = sample_count(shown.run), shown.scores
    thinned = scores is not None and len(scores.values) != n
    lead = f"{scores_note(shown.run, scores) if charts and (thinned or not series) else ''} {note}".strip()
    title = "Time series of the scores" if series and shown.run.of_times else "Scores of the samples"
    return Section("scores", title, lead, (("pair", series), ("pair", charts)))


def sampling_of(run: RunFiles, n_components: int) -> SamplingErrors | None:
    """Return the sampling errors in the manifest, None where there are none or they are damaged."""
    result = run.manifest.get("result")
    written = result.get("sampling_errors") if isinstance(result, dict) else None
    try:
        return SamplingErrors.from_dict(written, n_components) if isinstance(written, dict) else None
    except ModelError:
        return None


def _sampling_chart(
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
        caption += f" Error bars by North's rule overlap for components {named}: they are mixtures of components of the population."
    alt = f"Chart of {words.plural(k, 'eigenvalue')} with error bars" + (
        f"; {largest} neighbours overlap." if groups else "."
    )
    alt += f" The eigenvalues go from {words.figure(values[0])} down to {words.figure(values[-1])}; the largest standard error is {words.share(widest)} of its eigenvalue."
    return Chart(
        "Eigenvalues with sampling errors",
        inline("intervals", draw),
        alt,
        caption,
    )


_ROWS = 50


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


def accuracy_section(shown: Shown) -> Section | None:
    """Return the section on how sure an approximate answer is."""
    run, certificate = shown.run, shown.run.model.certificate
    if not isinstance(certificate, ApproximateCertificate):
        return None
    sizes, sine = field(run.manifest, "approximation"), certificate.subspace_angle_bound
    tolerance, pilot = words.number(field(sizes, "tolerance")), words.whole(field(sizes, "pilot_rows"))
    lead = sentences.how_sure(certificate)
    lead += f" The tolerance was {words.share(tolerance)}." if tolerance else ""
    lead += (
        "" if sine is None else f" The subspace of all components is at most {words.angle(sine)} from the exact one."
    )
    lead += (
        f" {words.plural(pilot, 'sample')} {'was' if pilot == 1 else 'were'} read before the first pass."
        if pilot
        else ""
    )
    if not certificate.bounded:
        return Section("sure", "Accuracy of the approximation", lead)
    told = (("Proven", sentences.proven(certificate)), ("Statistical", sentences.statistical(certificate)))
    bounds = Bounds(certificate)
    table = _bounds_table(bounds, shown.spectrum)
    parts = (("pair", _bound_charts(bounds)), ("card", table), ("lists", told))
    return Section("sure", "Accuracy of the approximation", lead, parts)


def _bound_charts(bounds: Bounds) -> tuple[Chart, ...]:
    """Return the bounds of the relative errors of eigenvalues and of the angles of components; without those of which none is known."""
    degrees, spans = np.degrees(np.arcsin(np.clip(bounds.sines, 0.0, 1.0))), bounds.pairs
    drawn = (
        ("errors", "Relative error of each eigenvalue, at most", 100 * bounds.relative, "relative error (%)", ()),
        ("angles", "Angle to the exact component, at most", degrees, "angle (degrees)", spans),
    )
    charts = []
    for name, title, values, axis, mixed in drawn:
        known = values[np.isfinite(values)]
        if not len(known):
            continue
        alt = f"Chart of {axis} by component, from {words.figure(known.min(), 2)} to {words.figure(known.max(), 2)}."
        caption = "Hatched components are not separated from a neighbour." if mixed else ""
        charts.append(
            Chart(title, inline(name, partial(plotting.bounds, values=values, title=axis, mixed=mixed)), alt, caption)
        )
    return tuple(charts)


def _bounds_table(bounds: Bounds, spectrum: ReportedSpectrum) -> ReportTable:
    """Return the interval of each eigenvalue, the bound of its relative error, of the angle of its component and of the residual."""
    k, residuals = len(spectrum.values), bounds.certificate.residual_bounds or ()
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
                *([words.figure(residuals[i], 3) if i < len(residuals) else words.MISSING] if residuals else []),
            )
        )
    heads = ["component", "eigenvalue", "lower bound", "upper bound", "proven upper bound", "relative error", "angle"]
    heads += ["residual"] if residuals else []
    note = "Relative error, angle to the exact component"
    note += " and residual ‖Cv − λv‖ are upper bounds." if residuals else " are upper bounds."
    note += f" The first {_ROWS} of {k:,} components; manifest.json has all under certificate." if k > _ROWS else ""
    return ReportTable("Eigenvalues and their bounds", tuple(heads), tuple(rows), note=note)


def _direction(sine: float, group: tuple[int, int, float | None] | None, *, converted: bool) -> str:
    """Return the bound of the angle of a component, or of the span of those that are not separated, in words."""
    if converted:
        return words.MISSING
    if np.isfinite(sine):
        return words.angle(sine)
    if group is None:
        return words.MISSING
    first, last, span = group
    if first == last or span is None:
        return "not separated"
    return f"{words.angle(span)} (span of {first + 1:,}–{last + 1:,})"


_FEWEST = 20
"""Eigenvalues that are drawn at least, if there are so many."""


_SAME = "The rule assumes that noise has the same variance in all features."
_WHY = {
    "cross_validation": "further components do not predict the left-out values better.",
    "parallel": "{threshold} is the largest eigenvalue that independent features with the same variances would have. The rule does not assume "
    "that noise has the same variance in all features, and tends to give too few components rather than too many.",
    "tracy_widom": f"noise has a larger eigenvalue than {{threshold}} in 1 % of all samples. {_SAME}",
    "gavish_donoho": f"of all thresholds, {{threshold}} gives the reconstruction with the least guaranteed error. {_SAME}",
    "marchenko_pastur": f"{{threshold}} is the upper edge of the spectrum of noise. {_SAME}",
    "mle": f"the probabilistic model with this number has the largest evidence. {_SAME}",
}
"""Why the components that a rule counts are more than noise; the first rule of these that gives a number decides."""
_OF_ONE_VARIANCE = frozenset({"tracy_widom", "marchenko_pastur", "mle"})
"""Rules that take nearly all components where noise differs between features."""
_MOST_OF_ALL = 0.75
"""A rule of these that takes this share of all components or more has found noise of one variance nowhere."""


def component_count(shown: Shown) -> Section | None:
    """Return how many components are more than noise, by which rule and why, and what other rules give; None where no rule applies."""
    run = shown.run
    applied, others = _sorted_rules(run)
    if not applied:
        return None
    asked = field(run.fit, "parameters", "n_components")
    order = [*([asked] if isinstance(asked, str) else []), *_WHY]
    decided = [applied[name] for name in order if name in applied and not applied[name].at_least]
    best = decided[0] if decided else next(applied[name] for name in order if name in applied)
    figures = {"threshold": words.figure(best.figures.get("threshold"))}
    count = best.count.capitalize() if best.n_components else "No"
    lead = f"{count} component{' is' if best.n_components == 1 else 's are'} above noise by {best.title}"
    lead += f": {_WHY[best.rule].format(**figures)}" if best.n_components else "."
    lead += f" The run has {run.model.n_components:,}."
    if others_applied := sorted((rule.n_components or 0, rule.count) for rule in applied.values() if rule is not best):
        ends = dict.fromkeys((others_applied[0][1], others_applied[-1][1]))
        agree = [*ends] == [best.count]
        lead += (
            " The other rules that apply agree." if agree else f" The other rules that apply give {' to '.join(ends)}."
        )
    if run.of_times:
        lead += " All rules assume independent samples. Neighbouring time steps often are not independent, and noise then has larger eigenvalues."
    rows, edges = [], {}
    for rule in (best, *(rule for rule in applied.values() if rule is not best)):
        noise, edge = (rule.figures.get(name) for name in ("noise_variance", "threshold"))
        levels = (words.figure(value) if value is not None else "" for value in (noise, edge))
        rows.append((rule.title, rule.count, *levels, rule.statement))
        if edge is not None:
            edges[rule.title] = edge
    listed = {
        why: "; ".join(f"{', '.join(titles)} ({reason})" for reason, titles in found.items())
        for why, found in others.items()
    }
    note = " ".join(f"{why}: {each}." for why, each in listed.items() if each)
    heads = ("rule", "components", "noise variance", "threshold", "")
    table = ReportTable("Number of components by rule", heads, tuple(rows), style="rules", note=note)
    charts = (_rules_chart(run, edges, best.n_components or 0),) if edges else ()
    return Section("how-many", "Number of components above noise", lead, (("pair", charts), ("card", table)))


def _sorted_rules(run: RunFiles) -> tuple[dict[str, RuleResult], dict[str, dict[str, list[str]]]]:
    """Return the rules that apply to a run, by name, and the titles of the others by why they give no number, and the reason."""
    rules, applied = run.pca.component_rules, dict[str, RuleResult]()
    n, d = sample_count(run), run.model.n_features - len(run.pca.constant_features)
    most = d if n is None else min(n - 1, d)
    others: dict[str, dict[str, list[str]]] = {"Not applicable": {}, "Not computed": {}}
    for name, rule in rules.items():
        reason, why = rule.statement.removeprefix("does not apply: "), "Not applicable"
        if reason == NOT_ASKED:
            reason, why = f"set n_components: {name}", "Not computed"
        elif rule.n_components is None and not rule.statement.startswith("does not apply"):
            reason, why = (
                f"set n_components: {name} and an exact solver, which computes all eigenvalues",
                "Not computed",
            )
        elif rule.n_components is not None:
            if name not in _OF_ONE_VARIANCE or rule.at_least or rule.n_components < _MOST_OF_ALL * most:
                applied[name] = rule
                continue
            reason = f"noise of one variance in all features is assumed, and {rule.n_components:,} of {most:,} components would be above it"
        others[why].setdefault(reason, []).append(rule.title)
    return applied, others


def _rules_chart(run: RunFiles, edges: dict[str, float], highest: int) -> Chart:
    """Return the first eigenvalues, some more than the `highest` number of components that is of interest, with the thresholds."""
    known = run.model.score_variances if run.pca.eigenvalues is None else run.pca.eigenvalues
    values = np.clip(known[: max(_FEWEST, 2 * highest, run.model.n_components)], 0.0, None)
    listed = ", ".join(f"{title} {words.figure(edge)}" for title, edge in edges.items())
    return Chart(
        "Eigenvalues and thresholds of noise",
        inline(
            "scree", partial(plotting.scree, values=values, n_kept=run.model.n_components, thresholds=edges), height=3.9
        ),
        f"Chart of the first {words.plural(len(values), 'eigenvalue')} with the thresholds of the rules: {listed}. The first is {words.figure(values[0])}, the last {words.figure(values[-1])}.",
        f"Thresholds: {listed}.",
    )
