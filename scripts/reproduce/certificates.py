"""How often the certificates of approximate answers hold, and how wide they are.

Each trial draws rows of one of six spectra, identically distributed or drifting in ten segments whose variances along
every axis differ, as they are or scaled by factors between 0.01 and 100 and taken as z-scores; every second trial in
float32. It fits them four times: with one sketch that a pilot informs, with a second pass after it, with incremental
updates (of a tenth of the rows each, in two leaves, as data too large for a trial would have them), and with a second
pass after those. A trial is covered if every bound that the certificate gives holds for
the eigenpairs of LAPACK, in float64, of the same rows: the intervals of all eigenvalues (and those proven from the
trace), of the residual, the residuals of the eigenpairs, the angles of axes, clusters and of the whole span, and the
range of how many components carry 90, 95 and 99 % of the variance.

The width of a certificate is the largest over the components of (upper − lower) / upper; it is compared with the largest
|λ̂ − λ| / λ, in those trials in which that is more than the rounding that the certificate claims.

The part ``transforms`` has 1,512 certificates of every transform with and without a pilot, in one, two and four passes, of rows
that rounding treats badly, and counts how often a bound that is called proven does not hold: never, beyond the rounding of LAPACK.

The part ``widths`` has the certificates of 2,160 fits of twelve spectra, three shapes, with and without weights, in one to three passes: how
wide intervals are beside true errors, which bound gave their upper ends, and how many eigenvalues lie outside.

    .venv/bin/python scripts/reproduce/certificates.py --quick
    .venv/bin/python scripts/reproduce/certificates.py --json data/certificates.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from _proven import proven
from _report import Part, Report, main, note
from _widths import fitted
from _widths import widths as measured_widths
from numpy.typing import NDArray

from streampca.models.pca import PCAModel
from streampca.random import generator
from streampca.solvers.fit import Parameters

FloatArray = NDArray[np.float64]

N_ROWS, N_FEATURES, N_COMPONENTS, N_COLUMNS = 4000, 200, 10, 40
N_SEGMENTS = 10
_INDEX = np.arange(1, N_FEATURES + 1.0)
SPECTRA = {
    "i^-0.5": _INDEX**-0.5,
    "i^-1": 1 / _INDEX,
    "i^-2": _INDEX**-2,
    "10^-0.1i": 10 ** (-0.1 * _INDEX),
    "rank 10 + noise": np.where(_INDEX <= 10, 1.0, 0.01),
    "clusters": np.where(_INDEX <= 5, 4.0, np.where(_INDEX <= 20, 1.0, 0.05)),
}
METHODS: dict[str, dict[str, Any]] = {
    "sketch, one pass": {"solver": "sketch", "pilot": 400},
    "sketch, two passes": {"solver": "sketch", "pilot": 400, "max_passes": 2, "tolerance": 0},
    "adaptive, one pass": {"solver": "adaptive"},
    "adaptive, two passes": {"solver": "adaptive", "max_passes": 2, "tolerance": 0},
}
SHARES = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Case:
    """What kind of rows a trial has."""

    spectrum: str
    """Name of the eigenvalues, one of `SPECTRA`."""
    drifting: bool
    """Whether variances change from one tenth of the rows to the next."""
    scaled: bool
    """Whether features have scales between 0.01 and 100 and are taken as z-scores."""


@dataclass(frozen=True)
class Trial:
    """What one certificate came to."""

    case: Case
    """The rows."""
    method: str
    """How they were fitted, one of `METHODS`."""
    seed: int
    """Of the rows and of the fit."""
    failed: tuple[str, ...]
    """Names of the bounds that did not hold; none if the trial is covered."""
    width: float
    """Largest relative width of an interval."""
    error: float
    """Largest relative error of an eigenvalue."""
    rounding: float
    """Largest relative rounding of an eigenvalue, as claimed."""
    resolved: float
    """Share of the axes that have a bound of their angle."""


CASES = tuple(Case(*parts) for parts in product(SPECTRA, (False, True), (False, True)))


def rows_of(case: Case, seed: int) -> NDArray[Any]:
    """Return the rows of a trial, ``(N_ROWS, N_FEATURES)``, float32 for odd seeds."""
    draw = generator(seed, f"coverage {case}")
    axes = np.linalg.qr(draw.standard_normal((N_FEATURES, N_FEATURES)))[0]
    length = N_ROWS // N_SEGMENTS if case.drifting else N_ROWS
    rows = np.empty((N_ROWS, N_FEATURES))
    for start in range(0, N_ROWS, length):
        variances = SPECTRA[case.spectrum]
        if case.drifting:
            variances = variances * np.exp(draw.standard_normal(N_FEATURES))
        drawn = draw.standard_normal((length, N_FEATURES)) * np.sqrt(variances)
        np.matmul(drawn, axes.T, out=rows[start : start + length])
    rows += draw.standard_normal(N_FEATURES)
    if case.scaled:
        rows *= 10 ** draw.uniform(-2, 2, N_FEATURES)
    return rows.astype(np.float32) if seed % 2 else rows


def exact(rows: NDArray[Any], scaled: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the covariance (of z-scores if `scaled`) in float64, its eigenvalues, largest first, and axes in rows."""
    centred = rows.astype(np.float64)
    centred -= centred.mean(axis=0)
    covariance = centred.T @ centred / (len(rows) - 1)
    if scaled:
        deviation = np.sqrt(np.diagonal(covariance))
        covariance = covariance / deviation[:, None] / deviation
    values, vectors = np.linalg.eigh(covariance)
    return covariance, values[::-1], vectors[:, ::-1].T


def violated(
    said: dict[str, Any], model: PCAModel, covariance: FloatArray, values: FloatArray, axes: FloatArray
) -> list[str]:
    """Return the names of the bounds in the certificate `said` of `model` that the exact eigenpairs break.

    They are themselves known to d·eps of the first eigenvalue, which is what every comparison leaves room for.
    """
    k, found = N_COMPONENTS, np.asarray(model.components)
    room = N_FEATURES * np.finfo(np.float64).eps * values[0]
    lower, upper = np.array(said["eigenvalue_intervals"]).T
    proven = np.array(said["proven_upper_bounds"])
    images = found @ covariance
    residual = np.linalg.norm(images - model.explained_variance[:, None] * found, axis=1).max()
    left = 1 - float(np.einsum("ij,ij->", images, found)) / values.sum()
    low, high = said["relative_residual_interval"]
    angles = [(i, i, bound) for i, bound in enumerate(said["angle_bounds"])]
    angles += [*said["unresolved_clusters"], (0, k - 1, said["subspace_angle_bound"])]
    counts = {
        share: int(np.searchsorted(np.cumsum(values), share * values.sum() * (1 - 1e-12))) + 1 for share in SHARES
    }
    ranges = {share: said["components_for"][str(share)] for share in SHARES}
    holds = {
        "eigenvalues": (lower <= values[:k] + room).all() and (values[:k] <= upper + room).all(),
        "proven eigenvalues": (values[:k] <= proven + room).all(),
        "residual": low - N_FEATURES * np.finfo(np.float64).eps <= left <= high + N_FEATURES * np.finfo(np.float64).eps,
        "eigenpairs": residual <= said["eigen_residual"] * values[0] + room,
        "angles": all(bound is None or _turned(values, axes, found, i, j) <= bound for i, j, bound in angles),
        "counts": all(
            least <= counts[share] and (most is None or counts[share] <= most)
            for share, (least, most) in ranges.items()
        ),
    }
    return [name for name, held in holds.items() if not held]


def _turned(values: FloatArray, axes: FloatArray, found: FloatArray, first: int, last: int) -> float:
    """Return the sine of the largest angle between components first … last and the exact ones, less its own rounding."""
    span, mine = axes[first : last + 1], found[first : last + 1]
    gap = values[last] - values[last + 1]
    if first:
        gap = min(gap, values[first - 1] - values[first])
    rounding = N_FEATURES * np.finfo(np.float64).eps * values[0] / gap
    return float(np.linalg.norm(mine - (mine @ span.T) @ span, 2)) - rounding


def trials_of(case: Case, seed: int) -> list[Trial]:
    """Return what each method comes to on the same rows."""
    rows = rows_of(case, seed)
    covariance, values, axes = exact(rows, case.scaled)
    trials = []
    for name, parameters in METHODS.items():
        model = fitted(
            rows, Parameters(N_COMPONENTS, sketch_size=N_COLUMNS, scale=case.scaled, seed=seed, **parameters)
        )
        said = model.certificate
        wrong = np.abs(model.explained_variance - values[:N_COMPONENTS]) / values[:N_COMPONENTS]
        rounding = said["trusted_above"] * values[0] / values[:N_COMPONENTS]
        trials.append(
            Trial(
                case=case,
                method=name,
                seed=seed,
                failed=tuple(violated(said, model, covariance, values, axes)),
                width=said["largest_relative_width"],
                error=float(wrong.max()),
                rounding=float(rounding.max()),
                resolved=float(np.mean([bound is not None for bound in said["angle_bounds"]])),
            )
        )
    return trials


def summary(trials: Sequence[Trial]) -> dict[str, dict[str, Any]]:
    """Return for each method the share of covered trials, what failed, and medians."""
    figures = {}
    for name in METHODS:
        own = [trial for trial in trials if trial.method == name]
        ratios = [trial.width / trial.error for trial in own if trial.error > trial.rounding]
        figures[name] = {
            "trials": len(own),
            "covered": sum(not trial.failed for trial in own) / len(own),
            "failed": dict(Counter(bound for trial in own for bound in trial.failed)),
            "width": float(np.median([trial.width for trial in own])),
            "error": float(np.median([trial.error for trial in own])),
            "above_rounding": len(ratios),
            "width_over_error": float(np.median(ratios)) if ratios else None,
            "resolved": float(np.mean([trial.resolved for trial in own])),
        }
    return figures


def add_tables(report: Report, trials: Sequence[Trial]) -> None:
    """Add the table over all trials, and the widths of each kind of rows."""
    lines = []
    for name, own in summary(trials).items():
        failed = ", ".join(f"{bound}: {count}" for bound, count in own["failed"].items()) or "nothing"
        cells = [f"{own['error']:.1e}", f"{own['width']:.1e}", _ratio(own), str(own["above_rounding"])]
        lines.append([name, str(own["trials"]), f"{own['covered']:.1%}", failed, *cells, f"{own['resolved']:.0%}"])
    shape = f"{N_ROWS:,} x {N_FEATURES}, {N_COMPONENTS} components, {N_COLUMNS} columns"
    head = [
        "method",
        "trials",
        "covered",
        "what failed",
        "error",
        "width",
        "width / error",
        "of trials",
        "axes bounded",
    ]
    report.table(f"certificates of {shape}: medians over all kinds of rows", head, lines)
    lines = []
    for case in CASES:
        own = summary([trial for trial in trials if trial.case == case])
        cells = [f"{own[name]['error']:.0e} → {own[name]['width']:.0e} ({_ratio(own[name])})" for name in METHODS]
        kind = [case.spectrum, "drifting" if case.drifting else "iid", "z-scores" if case.scaled else "as they are"]
        lines.append([*kind, *cells])
    title = "medians of error → width (width / error) by kind of rows"
    report.table(title, ["spectrum", "rows", "features", *METHODS], lines)


def _ratio(figures: dict[str, Any]) -> str:
    ratio = figures["width_over_error"]
    return "rounding" if ratio is None else f"{ratio:.2g}" if ratio < 100 else f"{ratio:,.0f}"


def certificates(quick: bool, pictures: Path | None) -> Report:
    """Run 2 or 21 trials of each kind of rows."""
    trials = []
    for case in CASES:
        for seed in range(2 if quick else 21):
            trials += trials_of(case, seed)
        note(f"{case}: done")
    report = Report({"summary": summary(trials), "trials": [asdict(trial) for trial in trials]})
    add_tables(report, trials)
    return report


def transforms(quick: bool, pictures: Path | None) -> Report:
    """Run one or 42 trials of each transform, pilot and number of passes (see `_proven`)."""
    return proven(quick)


def widths(quick: bool, pictures: Path | None) -> Report:
    """Run the 144 or 2,160 fits of `_widths`."""
    return measured_widths(quick)


PARTS: dict[str, Part] = {"certificates": certificates, "transforms": transforms, "widths": widths}

if __name__ == "__main__":
    main(PARTS, __doc__)
