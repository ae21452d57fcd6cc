"""What came out of a run in words and charts: summary, tiles, spectrum, scores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.models.certificates import ApproximateCertificate
from streampca.runs.report import figures, projection, seen
from streampca.runs.report.parts import Chart
from streampca.runs.report.run_files import RunFiles
from streampca.runs.report.sampling import sampling_chart, sampling_of
from streampca.typing import FloatArray

Tile = tuple[str, str, str]
"""One number at the top of the page: what it counts, the number with its unit, and a few words more."""


@dataclass(frozen=True)
class ReportedSpectrum:
    """Eigenvalues and shares as far as the files tell them."""

    values: FloatArray
    """Variance along each axis, shape ``(n_components,)``."""
    ratios: FloatArray
    """Share of the total variance, shape ``(n_components,)``; zeros where there is no variance."""

    noun: str = "Component"
    """What an axis is called."""

    def share(self, component: int) -> str:
        """Return the share of a component, from 0, in words."""
        return words.share(float(self.ratios[component]))


def field(mapping: object, *path: str) -> object:
    """Return what stands at `path` in nested mappings, or None."""
    for key in path:
        mapping = mapping.get(key) if isinstance(mapping, dict) else None
    return mapping


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


def scores_note(run: RunFiles, scores: projection.Scores | None) -> str:
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
            figures.inline(
                "cumulative", partial(plotting.cumulative, ratios=spectrum.ratios, marks=marks, beyond=beyond)
            ),
            f"Chart of the cumulative share of variance. {seen.sums_of_components(spectrum.ratios)} {together}{' It reaches ' + reaching + '.' if reaching else ''}",
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
        figures.inline("eigenvalues", partial(plotting.scree, values=spectrum.values)),
        f"Chart of {words.plural(k, 'eigenvalue')}, from {first} down to {last}. {seen.shares_of_components(spectrum.ratios)}",
        f"From {first} for the first component down to {last} for component {k:,}." if k > 1 else f"{first}.",
    )


def score_charts(
    spectrum: ReportedSpectrum, scores: projection.Scores, classes: plotting.Classes | None = None
) -> tuple[Chart, ...]:
    """Return the samples on the first two axes, in the colours of their classes; along the only one where there is one."""
    labels = [f"axis {axis + 1:,} ({spectrum.share(axis)} of the variance)" for axis in scores.axes]
    m = words.plural(len(scores.values), "sample")
    if len(scores.axes) == 1:
        svg = figures.inline("histogram", partial(plotting.scores, values=scores.values, titles=labels))
        return (Chart("Along the only axis", svg, f"Histogram of {m}. {seen.spread_of_points(scores.values, [1])}"),)
    caption = ""
    if classes is not None and classes.others:
        caption = f"Samples of {words.plural(classes.others, 'other class', 'other classes')} are grey."
    points = scores.values[:, :2]
    draw = partial(plotting.scores, values=points, titles=labels, classes=classes)
    svg = figures.inline("plane", draw, height=3.9)
    alt = f"{m} plotted on axis 1 against axis 2"
    alt += "." if classes is None else f", coloured by class: {', '.join(classes.names)}."
    alt += f" {seen.spread_of_points(points, [1, 2])}"
    alt += "" if classes is None else f" {seen.centres_of_classes(points, classes.numbers, classes.names)}"
    return (Chart("First two axes", svg, alt, caption),)
