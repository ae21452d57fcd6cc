"""What came out of a run, told: summary, tiles, spectrum, components, scores, samples rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampca.runs.report import figures, pictures, projection, words
from streampca.runs.report.parts import Bar, Bars, Chart, Components, Picture, Reconstruction, Tile
from streampca.runs.report.run_files import (
    RunFiles,
    blocks,
)
from streampca.typing import Array, FloatArray, IntArray

MAX_PICTURES = 32
"""So many components are drawn at most."""
MAP_COLUMNS, MAP_ROWS = 30, 20
"""Cells of the map of samples."""
_MAP_FEATURES = 64 * 64 * 3
_LINE_POINTS = 300


@dataclass(frozen=True)
class ReportedSpectrum:
    """Eigenvalues and shares as far as the files tell them."""

    values: FloatArray
    """Variance along each axis, shape ``(n_components,)``."""
    ratios: FloatArray
    """Share of the total variance, shape ``(n_components,)``; zeros where there is no variance."""

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
    """Return which rows the scores are of; of rows with missing values none are drawn."""
    if scores is None:
        return ""
    m, n, certificate = len(scores.values), sample_count(run), field(run.manifest, "certificate")
    if any(words.whole(field(certificate, key)) for key in ("missing_values", "rows_left_out")):
        among = "" if n is None else f" of the {n:,}"
        return f"{m:,} complete row{'' if m == 1 else 's'}{among}, each a point at its scores; rows with missing values are not drawn."
    if n is None or m >= n:
        return f"All {words.plural(m, 'row')}, each a point at its scores."
    return f"{words.plural(m, 'row')} spread evenly over the {n:,}, each a point at its scores."


def tiles(run: RunFiles, spectrum: ReportedSpectrum, carried: str | None = None) -> tuple[Tile, ...]:
    """Return the numbers for the top of the page; `carried` as in `summary`."""
    manifest, memory = run.manifest, field(run.manifest, "memory")
    peak, allowed = words.number(field(memory, "peak_bytes")), words.number(field(memory, "allowed_bytes"))
    used = f"{words.share(peak / allowed)} of {words.size(allowed)} allowed" if peak and allowed else ""
    read = words.number(field(manifest, "reads", "fit", "bytes"))
    carrying = f"{carried or words.share(float(spectrum.ratios.sum()))} of the variance"
    rows_a_second, sides = "", words.dimensions(field(manifest, "source", "feature_shape"))
    fit, n = words.number(field(manifest, "seconds", "fit")), sample_count(run)
    if fit and n:
        rows_a_second = f"{float(f'{n / fit:.2g}'):,.0f} rows a second"
    return (
        Tile("Rows", words.count(n), words.clean(field(manifest, "source", "dtype")).replace(words.MISSING, "")),
        Tile("Features", words.count(run.n_features), sides.replace(words.MISSING, "")),
        Tile("Components", words.count(len(spectrum.values)), carrying),
        Tile("Reads of the data", words.count(field(manifest, "passes")), _reads_note(manifest, read)),
        Tile("Peak memory", words.size(peak), used),
        Tile("Time", words.duration(field(manifest, "seconds", "total")), rows_a_second),
    )


def _reads_note(manifest: object, read: float | None) -> str:
    most, made = (words.whole(field(manifest, *path)) for path in (("approximation", "passes"), ("passes",)))
    allowed = f"of at most {most:,}; " if most is not None and made is not None and most > made else ""
    return f"{allowed}{words.size(read)} in all" if read else ""


def spectrum_charts(
    run: RunFiles, spectrum: ReportedSpectrum, values: Chart | None = None, carried: str | None = None
) -> tuple[Chart, ...]:
    """Return the charts of eigenvalues, or `values` for it, and of their sums; `carried` as in `summary`."""
    k, total = len(spectrum.values), float(spectrum.ratios.sum())
    needed, certificate = {}, field(run.manifest, "certificate")
    shown = {}
    for level, key in ((0.9, "0.9"), (0.95, "0.95"), (0.99, "0.99")):
        given = words.whole(field(run.manifest, "result", "components_for", key))
        positions = np.flatnonzero(np.cumsum(spectrum.ratios) >= level * (1 - 1e-12))
        reached = given if given is not None else int(positions[0]) + 1 if len(positions) else None
        if reached is not None and 1 <= reached <= k:
            needed[level] = reached
        number = _range_of(field(certificate, "components_for", key), needed.get(level))
        if number:
            shown[level] = number
    reaching = ", ".join(f"{100 * level:.0f}{words.SPACE}% with {number}" for level, number in shown.items())
    together = f"Together the components carry {carried or words.share(total)} of the variance."
    beyond = 0.0
    if field(certificate, "kind") == "approximate" and field(certificate, "eigen_solver") != "conversion":
        beyond = max(0.0, words.number(field(certificate, "nuclear_error")) or 0.0)  # the sums are lower bounds
    legend = (("accent", "proven"), ("hatch", "possible")) if beyond > figures.VISIBLE else ()
    return (
        _eigenvalue_chart(spectrum) if values is None else values,
        Chart(
            "Share carried together",
            figures.cumulative(spectrum.ratios, needed, shown, beyond),
            f"Chart of the cumulative share of variance. {together} {reaching}",
            f"Reaches {reaching}." if reaching else together,
            legend,
        ),
    )


def _range_of(ends: object, reached: int | None) -> str:
    """Return how many components reach a share: a number, or the range in which an approximate answer has it.

    `ends` are the least and the greatest number by the certificate, None for an exact answer; the greatest is None where
    it is more than were found. `reached` is the number by the eigenvalues that are reported.
    """
    if not isinstance(ends, list):
        return "" if reached is None else f"{reached:,}"
    low, high = (words.whole(end) for end in [*ends, None, None][:2])
    if low is None or (high is None and low <= 1):
        return ""
    if low == high:
        return f"{low:,}"
    return f"{low:,} or more" if high is None else f"{low:,} to {high:,}"


def _eigenvalue_chart(spectrum: ReportedSpectrum) -> Chart:
    k = len(spectrum.values)
    first, last = words.figure(spectrum.values[0]), words.figure(spectrum.values[-1])
    return Chart(
        "Variance along each axis",
        figures.eigenvalues(spectrum.values),
        f"Chart of {words.plural(k, 'eigenvalue')}, from {first} down to {last}.",
        f"From {first} for the first component down to {last} for component {k:,}." if k > 1 else f"{first}.",
    )


def components(run: RunFiles, spectrum: ReportedSpectrum, shape: pictures.PictureShape | None) -> Components:
    """Return the first components as pictures, or as bars of their largest loadings."""
    if shape is None:
        note = "The features that weigh most in each of the first components. The sign of a component as a whole "
        return Components((), _loadings(run, spectrum), note + "is a matter of choice; signs within it are not.")
    drawn = []
    if run.centred:
        eight_bit = field(run.manifest, "source", "dtype") == "uint8"
        low, high = (0.0, 255.0) if eight_bit else (float(np.min(run.mean)), float(np.max(run.mean)))
        drawn.append(
            Picture(pictures.data_uri(pictures.plain(run.mean, shape, low, high)), "The mean of all rows", "mean")
        )
    for start, rows in blocks(run.components, MAX_PICTURES):
        for i, row in enumerate(rows, start):
            uri = pictures.data_uri(pictures.signed(row.astype(np.float64), shape))
            drawn.append(Picture(uri, f"Component {i + 1}", f"{i + 1}", spectrum.share(i)))
    scale = "middle grey is zero" if shape.colour else "white is zero, red positive, blue negative"
    origin, left = "their mean" if run.centred else "zero", run.n_components - MAX_PICTURES
    note = f"Each picture is one direction in which the rows differ from {origin}, with its share of the variance; "
    note += f"{scale}, each scaled by its own largest entry."
    note += f" {left:,} more {'is' if left == 1 else 'are'} in the model." if left > 0 else ""
    return Components(tuple(drawn), (), note)


def _loadings(run: RunFiles, spectrum: ReportedSpectrum, most: int = 12) -> tuple[Bars, ...]:
    result = []
    for start, rows in blocks(run.components, 3):
        for i, row in enumerate(np.nan_to_num(rows), start):
            chosen = largest(row, most)
            result.append(loadings(run, spectrum, i, chosen, row[chosen]))
    return tuple(result)


def loadings(run: RunFiles, spectrum: ReportedSpectrum, component: int, chosen: IntArray, values: Array) -> Bars:
    """Return the largest loadings of a component, from 0: those of the features `chosen`, largest first."""
    names = field(run.manifest, "source", "feature_names")
    names = names if isinstance(names, list) and len(names) == run.n_features else None
    longest = float(abs(values[0])) or 1.0
    bars = tuple(
        Bar(
            words.clean(names[j], 60) if names else f"feature {j:,}",
            f"{value:+.3f}".replace("-", "−"),
            round(50 * float(abs(value)) / longest, 2),
            bool(value < 0),
        )
        for j, value in zip(chosen, values, strict=True)
    )
    caption = f"The {len(bars)} largest of {run.n_features:,} loadings."
    caption = caption if run.n_features > len(bars) else "All loadings."
    return Bars(f"Component {component + 1} · {spectrum.share(component)}", bars, caption)


def largest(row: Array, most: int, piece: int = 1 << 16) -> IntArray:
    """Return the places of the `most` largest moduli in `row`, largest first, with scratch for `piece` entries only."""
    places = np.empty(0, dtype=np.int64)
    for start in range(0, len(row), piece):
        places = np.concatenate([places, np.arange(start, min(len(row), start + piece))])
        places = places[np.lexsort((places, -np.abs(row[places])))[:most]]
    return places


def score_charts(spectrum: ReportedSpectrum, scores: projection.Scores) -> tuple[Chart, ...]:
    """Return the samples on the first two axes, and on the first and the last."""
    labels = [f"axis {axis + 1:,} ({spectrum.share(axis)} of the variance)" for axis in scores.axes]
    m = words.plural(len(scores.values), "sample")
    if len(scores.axes) == 1:
        return (Chart("Along the only axis", figures.histogram(scores.values[:, 0], labels[0]), f"Histogram of {m}."),)
    result = []
    for other in range(1, len(scores.axes)):
        svg = figures.plane(scores.values[:, 0], scores.values[:, other], (labels[0], labels[other]), f"plane-{other}")
        axis = scores.axes[other] + 1
        title = "First two axes" if other == 1 else "First and last axis"
        result.append(Chart(title, svg, f"{m} plotted on axis 1 against axis {axis:,}."))
    return tuple(result)


def sample_map(
    run: RunFiles, scores: projection.Scores, shape: pictures.PictureShape | None, limits: tuple[float, float]
) -> Picture | None:
    """Return the plane of the first two axes drawn with the samples themselves; None where they cannot fill it."""
    if (
        run.samples is None
        or shape is None
        or run.n_features > _MAP_FEATURES
        or len(scores.axes) < 2
        or len(scores.values) < 60
    ):
        return None
    pixels = max(shape.height, shape.width)
    thin = max(1.0, pixels / 16)
    columns, rows = max(8, int(MAP_COLUMNS / thin)), max(6, int(MAP_ROWS / thin))
    cells = pictures.nearest_to_cells(scores.values[:, 0], scores.values[:, 1], columns, rows)
    if len(cells) < 12:
        return None
    wanted = np.unique(scores.position[np.array(list(cells.values()))])
    small: dict[int, NDArray[np.uint8]] = {}
    for positions, values in projection.gather(run.samples, wanted):
        for position, row in zip(positions, values, strict=True):
            small[int(position)] = pictures.plain(row.astype(np.float64), shape, *limits)
    tiles = {cell: small[int(scores.position[sample])] for cell, sample in cells.items()}
    alt = "The plane of the first two axes, each place filled with a sample that lies there"
    return Picture(pictures.data_uri(pictures.mosaic(tiles, columns, rows)), alt, f"{len(tiles):,} of the samples")


def value_limits(run: RunFiles, scores: projection.Scores) -> tuple[float, float]:
    """Return which values are black and white in pictures of samples."""
    if run.samples is None or field(run.manifest, "source", "dtype") == "uint8":
        return 0.0, 255.0
    some = scores.position[np.unique(np.linspace(0, len(scores.position) - 1, 64).astype(np.int64))]
    edges: list[tuple[float, float]] = []
    for _, rows in projection.gather(run.samples, some):
        finite = rows[np.isfinite(rows)] if rows.dtype.kind == "f" else rows
        if finite.size:
            edges.append((float(finite.min()), float(finite.max())))
    return (min(low for low, _ in edges), max(high for _, high in edges)) if edges else (0.0, 1.0)


def reconstruction(
    run: RunFiles, scores: projection.Scores, shape: pictures.PictureShape | None, limits: tuple[float, float]
) -> Reconstruction | None:
    """Return a few samples rebuilt from more and more components, from plain samples to intricate ones."""
    if run.samples is None:
        return None
    wanted = projection.n_reconstructed(run.n_features, 6 if shape else 3)
    chosen = projection.easy_to_hard(scores, wanted)
    positions = scores.position[chosen]
    ascending = np.argsort(positions, kind="stable")
    original = np.concatenate([rows for _, rows in projection.gather(run.samples, positions[ascending])])
    original = original[np.argsort(ascending, kind="stable")]
    deviations = run.standardised(original)
    counts = projection.rising_counts(run.n_components)
    errors: list[tuple[str, ...]] = []
    drawn: list[list[str]] = [[] for _ in chosen]
    lines: list[FloatArray] = []
    shown = np.unique(np.linspace(0, run.n_features - 1, _LINE_POINTS).astype(np.int64))
    for _, rebuilt, left in projection.rebuild(run, deviations, counts):
        errors.append(tuple(words.share(float(error) if error > 1e-9 else 0.0) for error in left))
        for i, row in enumerate(rebuilt):
            if shape is not None:
                drawn[i].append(pictures.data_uri(pictures.plain(run.restored(row), shape, *limits)))
        lines.append(rebuilt[:, shown].copy() if shape is None else np.empty((0, 0)))
    names = tuple(_row_name(run, int(position)) for position in positions)
    if shape is not None:
        for i, row in enumerate(original):
            drawn[i].append(pictures.data_uri(pictures.plain(row.astype(np.float64), shape, *limits)))
    charts = () if shape is not None or len(shown) < 2 else _profiles(deviations[:, shown], lines, counts, shown, names)
    note = "A few rows, from plain to intricate, rebuilt from rising numbers of components. The percentage is what is "
    note += "still missing: the length of what is not rebuilt, over the row’s distance from "
    note += "the mean." if run.centred else "zero."
    heads = (
        (*(f"{count:,}" for count in counts), "original")
        if shape is not None
        else tuple(f"{count:,}" for count in counts)
    )
    return Reconstruction(
        heads, names, tuple(zip(*errors, strict=True)), tuple(map(tuple, drawn)) if shape else (), charts, note
    )


def _row_name(run: RunFiles, position: int) -> str:
    if run.sample_index is None:
        return f"sample {position:,}"
    return f"row {int(run.sample_index[position]):,}"


def _profiles(
    original: FloatArray,
    lines: Sequence[FloatArray],
    counts: Sequence[int],
    shown: IntArray,
    names: Sequence[str],
) -> tuple[Chart, ...]:
    few = max(0, len(counts) // 2 - 1) if len(counts) > 2 else 0
    result = []
    for i, name in enumerate(names):
        chosen = [lines[few][i], lines[-1][i]] if len(counts) > 1 else [lines[-1][i]]
        svg = figures.profile(original[i], chosen, shown.astype(np.float64), f"profile-{i}")
        legend = [("ink", "original"), ("accent", f"from {words.plural(counts[-1], 'component')}")]
        if len(counts) > 1:
            legend.insert(1, ("second", f"from {counts[few]:,}"))
        alt = f"{name}, original and rebuilt, feature by feature, as the model sees it."
        result.append(Chart(name.capitalize(), svg, alt, "", tuple(legend)))
    return tuple(result)
