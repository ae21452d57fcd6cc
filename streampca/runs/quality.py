"""Figures of data quality in the manifest of a run, and sentences about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import zarr

from streampca.accumulators.quality import MOST_LISTED, Namer, Quality, QualityState, steady
from streampca.formatting import plural
from streampca.models.pca import Model
from streampca.runs.manifest import Manifest
from streampca.solvers.result import FitResult, QualityFound
from streampca.sources.base import Source
from streampca.sources.zarr.strictness import strict
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Array, BoolArray, FloatArray, IntArray, Json

COMMON_SHARE = 0.99
"""Minimum share of rows with the same value for a nearly constant feature."""
_RELATIVE_DEVIATION = 1e-6
"""Maximum standard deviation of a nearly constant feature, relative to the mean: a few roundings of float32."""
_LEAST_VALUES = 8
"""Minimum number of examined values of a feature in a part of the file for comparing its mean."""
_STUCK_VALUES, _VARYING_PARTS = 32, 0.75
"""Minimum number of values of a constant feature in a part of the file, and the share of parts in which it must vary."""
_MOST_TAILS = 100
_BLOCK_ROWS = 2**13

HEAVY = 5.0
"""Excess kurtosis above which tails are called heavy; it is 3 for the Laplace distribution, and 6 for t with 5 degrees of freedom."""
LARGE_SHIFT, LARGE_RATIO = 2.0, 3.0
"""Shift in standard deviations, and ratio of standard deviations, that are worth a warning."""
_CONCENTRATED = 3.0
"""Ratio of the share of missing values in a part of the file to the overall share, above which they are concentrated."""


def record_quality(manifest: Manifest, result: FitResult, source: Source, scores: Path | None) -> None:
    """Add figures and sentences about the quality of the data to `manifest`, if it was examined.

    `scores` is the group of scores; None if no scores were written.
    """
    if result.quality is None:
        return
    figures = quality_figures(result.quality, source, result.model, scores)
    concerns, notes = findings(figures)
    for statistic, _ in result.quality.statistics():
        more = statistic.findings(figures[statistic.name])
        concerns, notes = concerns + more[0], notes + more[1]
    manifest["quality"] = figures
    manifest["warnings"] += concerns
    manifest["notes"] += notes


def quality_figures(found: QualityFound, source: Source, model: Model, scores: Path | None) -> Json:
    """Return the figures of data quality as plain data.

    Parameters
    ----------
    found : QualityFound
        Findings of the pass.
    source : Source
        The data.
    model : PCAModel or KernelModel
        The model, which knows the features that never vary.
    scores : Path, optional
        The group of scores, for their kurtosis; None if no scores were written.
    """
    quality, state, name = found.quality, found.states[0], _names(source, model)
    pca = model.linear
    known = pca is not None and pca.removal is None
    never = pca.constant_features if pca is not None and known else _constant_in(quality, state)
    return {
        "examined": _examined(quality, state),
        "constant": {
            "count": len(never),
            "features": _listed(never, name),
            "rows": "all" if known else "examined",
        },
        "nearly_constant": _nearly_constant(quality, state, never, name),
        "drift": _drift(quality, state, name),
        "missing": _missing(quality, state, name) if quality.missing else None,
        "never_written": _never_written(state, source),
        "tails": None if scores is None else tails(scores),
        **{statistic.name: statistic.figures(sums, name) for statistic, sums in found.statistics()},
    }


def _names(source: Source, model: Model) -> Namer:
    """Return a function from the number of a feature to its name, or None if it has no name."""
    names, labels = source.feature_names, model.labels

    def name(feature: int) -> str | None:
        return names[feature] if names else None if labels is None else labels.known_name(feature)

    return name


def _examined(quality: Quality, state: QualityState) -> Json:
    """Return which rows and features were examined."""
    return {
        "rows": -(-quality.n_samples // quality.every),
        "every": quality.every,
        "features": len(quality.followed),
        "every_feature": quality.every_feature,
        "parts": quality.n_parts,
        "missing": quality.missing,
        "edges": quality.edges.tolist(),
    }


def _listed(features: IntArray, name: Namer, shares: FloatArray | None = None, least: float = 0.0) -> list[Json]:
    """Return the first of the `features` with names and shares; a share is None if it is below `least` and depends on blocks."""
    listed = [{"feature": int(feature), "name": name(int(feature))} for feature in features[:MOST_LISTED]]
    if shares is None:
        return listed
    known = [float(share) if share >= least else None for share in shares[:MOST_LISTED]]
    return [one | {"share": share} for one, share in zip(listed, known, strict=True)]


def _total(state: QualityState) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return count, mean, and sums of squared deviations within and between parts for each followed feature."""
    counts = state.counts.sum(axis=0)
    means = (state.counts * state.means).sum(axis=0) / np.maximum(counts, 1)
    between = (state.counts * np.square(state.means - means)).sum(axis=0)
    return counts, means, state.scatter.sum(axis=0), between


def _constant_in(quality: Quality, state: QualityState) -> IntArray:
    """Return the followed features that do not vary in the examined rows."""
    counts, _, within, between = _total(state)
    still = np.sqrt((within + between) / np.maximum(counts, 1)) <= _rounding(state)
    chosen: IntArray = quality.followed[(counts > 0) & still]
    return chosen


def _rounding(state: QualityState) -> FloatArray:
    """Return the standard deviation of each followed feature that rounding of equal values can cause."""
    rounding: FloatArray = 16 * np.finfo(np.float64).eps * np.abs(state.means).max(axis=0, initial=0.0)
    return rounding


def _nearly_constant(quality: Quality, state: QualityState, never: IntArray, name: Namer) -> Json:
    """Return the followed features, except those that `never` vary, with most examined values equal or near their mean."""
    counts, means, within, between = _total(state)
    shares = state.n_common / np.maximum(state.n_compared, 1)
    deviations = np.sqrt((within + between) / np.maximum(counts, 1))
    chosen = (
        ~np.isin(quality.followed, never)
        & (counts > 0)
        & ((shares >= COMMON_SHARE) | (deviations <= _RELATIVE_DEVIATION * np.abs(means)))
    )
    return {
        "count": int(chosen.sum()),
        "features": _listed(quality.followed[chosen], name, shares[chosen], COMMON_SHARE),
        "share": COMMON_SHARE,
    }


def _drift(quality: Quality, state: QualityState, name: Namer) -> Json | None:
    """Return differences of means and deviations between parts of the file and all rows; None for a file of one part.

    A shift is in standard deviations within parts. `noise` is about the largest shift of as many means of
    independent values that do not drift, √(2 ln(2 f p)) / √n with the n rows of a part.
    """
    if len(state.parts) < 2:
        return None
    counts, means, within, between = _total(state)
    n_parts = len(state.parts)
    enough = state.counts >= _LEAST_VALUES
    variance = within / np.maximum(counts - n_parts, 1)
    unit = np.sqrt(np.where(variance > 0, variance, between / np.maximum(counts, 1)))
    rounding = _rounding(state)
    shifts = np.divide(state.means - means, unit, out=np.zeros_like(state.means), where=enough & (unit > rounding))
    own = np.sqrt(state.scatter / np.maximum(state.counts - 1, 1))
    typical = state.n_common < 0.9 * state.n_compared
    comparable = enough & (own > rounding) & (variance > 0) & typical
    ratios = np.divide(own, np.sqrt(variance), out=np.ones_like(own), where=comparable)
    shifts, ratios = steady(_finite(shifts)), steady(_finite(ratios))
    noise = np.sqrt(2 * np.log(2 * shifts.size)) / np.sqrt(max(1.0, float(np.median(state.counts))))
    logs = np.abs(np.log(np.maximum(ratios, 1e-300)))
    worst, widest = (np.unravel_index(int(each.argmax()), each.shape) for each in (np.abs(shifts), logs))
    where = _places(quality, state, name)
    return {
        "mean": where(worst) | {"shift": float(shifts[worst])},
        "deviation": where(widest) | {"ratio": float(ratios[widest])},
        "noise": float(steady(noise)),
        "largest_shifts": np.abs(shifts).max(axis=1).tolist(),
        "shifts": shifts[:, worst[1]].tolist(),
        "largest_ratios": np.exp(steady(logs.max(axis=1))).tolist(),
        "stuck": _stuck(state, where, typical),
    }


def _finite(values: FloatArray) -> FloatArray:
    finite: FloatArray = np.nan_to_num(values, nan=0.0, posinf=1e300, neginf=-1e300)
    return finite


def _places(quality: Quality, state: QualityState, name: Namer) -> Callable[[tuple[np.intp, ...]], Json]:
    """Return the description of an entry of a table by part and feature: the feature, and rows of the file."""

    def where(entry: tuple[np.intp, ...]) -> Json:
        part, feature = int(state.parts[entry[0]]), int(quality.followed[entry[1]])
        return {"feature": feature, "name": name(feature), "rows": quality.edges[part : part + 2].tolist()}

    return where


def _stuck(state: QualityState, where: Callable[[tuple[np.intp, ...]], Json], typical: BoolArray) -> Json:
    """Return the features that are constant in a part of the file but vary in most parts, such as a stuck sensor."""
    flat = state.scatter <= state.counts * _rounding(state) ** 2
    still = (state.counts >= _STUCK_VALUES) & flat
    varying = (~flat).mean(axis=0) >= _VARYING_PARTS
    entries = np.argwhere((still & varying & typical).T)
    first = np.unique(entries[:, 0], return_index=True)[1]
    return {"count": len(first), "features": [where((part, feature)) for feature, part in entries[first[:MOST_LISTED]]]}


def _missing(quality: Quality, state: QualityState, name: Namer) -> Json:
    """Return the shares of missing values by feature and by part of the file."""
    total, (n, d) = int(state.missing.sum()), (quality.n_samples, quality.n_features)
    order = np.argsort(-state.missing, kind="stable")[: int(np.count_nonzero(state.missing))]
    by_part = state.missing_by_part / np.maximum(np.diff(quality.edges) * d, 1)
    return {
        "count": total,
        "share": total / (n * d),
        "n_features": len(order),
        "features": _listed(order, name, state.missing[order] / n),
        "by_part": by_part.tolist(),
    }


def _never_written(state: QualityState, source: Source) -> Json:
    """Return the number of chunks that were never written, and of rows only in such chunks, by part of the file."""
    by_part = state.unwritten.tolist() if state.unwritten.any() else []
    return {"chunks": int(source.missing_chunks_filled), "rows": int(state.unwritten.sum()), "by_part": by_part}


def tails(scores: Path) -> Json | None:
    """Return the excess kurtosis of the stored scores of the first components, without rows of NaN; it is 0 for Gaussian scores.

    Moments are taken about the means of the first rows. Cost: one pass over the scores.
    """
    array = strict(zarr.open_array(scores / "scores", mode="r"))
    k = min(int(array.shape[1]), _MOST_TAILS)
    moments, shift, n_rows = np.zeros((4, k)), None, 0
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for values in _blocks(array, k):
            shift = values.mean(axis=0) if shift is None else shift
            values -= shift
            n_rows += len(values)
            power = values.copy()
            for order in range(4):
                moments[order] += power.sum(axis=0)
                power *= values
        if n_rows < 4:
            return None
        first, second, third, fourth = moments / n_rows
        variance = second - first**2
        central = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        excess = np.where(variance > 0, central / variance**2 - 3, 0.0)
    excess = steady(excess)
    component = int(excess.argmax())
    return {"excess_kurtosis": excess.tolist(), "component": component, "largest": float(excess[component])}


def _blocks(array: ZarrArray, k: int) -> Iterator[FloatArray]:
    """Yield the rows without NaN of the first `k` columns of stored scores, a few rows of a chunk at a time."""
    step = int(array.chunks[0])
    for start in range(0, array.shape[0], step):
        chunk: Array = np.asarray(array[start : start + step, :k])
        for first in range(0, len(chunk), _BLOCK_ROWS):
            values = chunk[first : first + _BLOCK_ROWS].astype(np.float64)
            complete = np.isfinite(values).all(axis=1)
            if complete.any():
                yield values[complete]


def findings(figures: Json) -> tuple[list[str], list[str]]:
    """Return sentences about the figures of data quality: those that need attention, and others."""
    concerns = [*_of_drift(figures["drift"]), *_of_missing(figures)]
    notes = []
    constant, nearly = figures["constant"], figures["nearly_constant"]
    if nearly["count"]:
        notes.append(
            f"{plural(nearly['count'], 'feature hardly varies', 'features hardly vary')}: at least {nearly['share']:.0%} of the examined rows have the same value, or the "
            f"standard deviation is a millionth of the mean: {_some(nearly)}"
        )
    if constant["count"] and constant["rows"] == "examined":
        notes.append(
            f"{plural(constant['count'], 'feature never varies', 'features never vary')} in the examined rows: {_some(constant)}"
        )
    tails_of = figures["tails"]
    if tails_of is not None and tails_of["largest"] > HEAVY:
        notes.append(
            f"scores have heavy tails: the excess kurtosis of component {tails_of['component'] + 1} is {tails_of['largest']:.3g} (0 for "
            "Gaussian scores), so a few rows dominate it"
        )
    return concerns, notes


def _of_drift(drift: Json | None) -> Iterator[str]:
    if drift is None:
        return
    mean, deviation, stuck = drift["mean"], drift["deviation"], drift["stuck"]
    if abs(mean["shift"]) > max(LARGE_SHIFT, 2 * drift["noise"]):
        yield (
            f"the data drift: the mean of feature {_named(mean)} in rows {_span(mean['rows'])} differs from the mean of all rows "
            f"by {mean['shift']:+.3g} standard deviations within parts"
        )
    if not 1 / LARGE_RATIO < deviation["ratio"] < LARGE_RATIO:
        yield (
            f"the spread of the data changes: the standard deviation of feature {_named(deviation)} in rows {_span(deviation['rows'])} is "
            f"{deviation['ratio']:.3g} times that of other parts"
        )
    if stuck["count"]:
        first = stuck["features"][0]
        found = plural(
            stuck["count"],
            "feature is constant for a stretch and varies",
            "features are constant for a stretch and vary",
        )
        yield f"{found} elsewhere, for example {_named(first)} in rows {_span(first['rows'])}"


def _of_missing(figures: Json) -> Iterator[str]:
    missing, edges = figures["missing"], figures["examined"]["edges"]
    if not missing or not missing["count"]:
        return
    part = int(np.argmax(missing["by_part"]))
    share = missing["by_part"][part]
    if len(missing["by_part"]) > 1 and share > max(0.01, _CONCENTRATED * missing["share"]):
        yield (
            f"missing values are concentrated: {share:.1%} of values are missing in rows {_span(edges[part : part + 2])}, {missing['share']:.1%} overall"
        )


def _span(ends: list[int]) -> str:
    return f"{ends[0]:,} to {ends[1] - 1:,}"


def _named(place: Json) -> str:
    return f"{place['feature']}" + (f" [{place['name']}]" if place["name"] else "")


def _some(listed: Json, most: int = 5) -> str:
    """Return the first of some features as text."""
    names = ", ".join(_named(each) for each in listed["features"][:most])
    return names + (", …" if listed["count"] > most else "")
