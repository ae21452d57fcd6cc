"""Widths of certificates beside true errors, over spectra, shapes, weights and methods, against LAPACK in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from _report import Report, brief, note
from numpy.typing import NDArray

from streampca.execution.readings import run_fit
from streampca.models.pca import PCAModel
from streampca.random import generator
from streampca.solvers.fit import Parameters, plan_fit, readings_of_fit
from streampca.sources import open_source

FloatArray = NDArray[np.float64]

SHAPES = ((4000, 200), (2000, 500), (6000, 800))
N_COMPONENTS = 10
_LEAST_ERROR = 1e-10
"""Errors relative to the first eigenvalue from which widths are compared with them: above rounding."""
METHODS: Mapping[str, Mapping[str, Any]] = {
    "sketch, one pass": {"solver": "sketch", "max_passes": 1},
    "sketch without a pilot, one pass": {"solver": "sketch", "pilot": 0, "max_passes": 1},
    "adaptive, one pass": {"solver": "adaptive", "max_passes": 1},
    "sketch, two passes": {"solver": "sketch", "max_passes": 2, "tolerance": 0},
    "adaptive, two passes": {"solver": "adaptive", "max_passes": 2, "tolerance": 0},
    "sketch, three passes": {"solver": "sketch", "max_passes": 3, "tolerance": 0},
}


@dataclass(frozen=True)
class Width:
    """What one certificate came to; lists have an entry for each component."""

    spectrum: str
    """Name of the eigenvalues, one of those that `spectra` returns."""
    shape: tuple[int, int]
    """Samples and features."""
    weighted: bool
    """Whether samples had weights."""
    method: str
    """One of `METHODS`."""
    error: list[float]
    """λ − λ̂ relative to the first eigenvalue."""
    width: list[float]
    """Upper less lower end, likewise."""
    outside: int
    """Eigenvalues outside their interval."""
    beyond_proven: int
    """Eigenvalues outside the interval that is proven."""
    bounded_by: list[str]
    """What gave each upper end."""


def spectra(d: int) -> dict[str, FloatArray]:
    """Return eigenvalues of `d` features by name, largest first."""
    i = np.arange(1, d + 1.0)
    spikes = np.concatenate([np.linspace(20, 5, 8), np.ones(d - 8)])
    return {
        "i^-0.5": i**-0.5,
        "i^-1": 1 / i,
        "i^-2": i**-2,
        "i^-3": i**-3,
        "exp(-i/8)": np.exp(-i / 8) + 1e-6,
        "10^-0.1i": 10 ** (-0.1 * i),
        "rank 10 + noise": np.where(i <= 10, 1.0, 0.01),
        "clusters": np.where(i <= 5, 4.0, np.where(i <= 20, 1.0, 0.05)),
        "plateau": np.where(i <= 40, 1.0, 1e-3),
        "factors": np.where(i <= 5, 10.0 / i, 0.1 / i**0.5),
        "steps of four": 2.0 ** -(i // 4),
        "spikes in noise": spikes,
    }


def fitted(rows: NDArray[Any], parameters: Parameters, **changed: int) -> PCAModel:
    """Return the model of `rows`, with several incremental updates where the plan would take all rows at once.

    Settings of the sketch are `changed` as if memory had asked for it.
    """
    source = open_source(rows)
    plan = plan_fit(source, parameters)
    if plan.solver == "adaptive":
        per_update = min(plan.sketch["rows_per_update"] or len(rows), len(rows) // 10)
        plan = plan.replace(n_leaves=2, sketch=plan.sketch | {"rows_per_update": per_update})
    plan = plan.replace(sketch=plan.sketch | changed)
    model: PCAModel = run_fit(readings_of_fit(source, parameters, plan), None, None).model
    return model


def widths_of(name: str, shape: tuple[int, int], weighted: bool, seed: int) -> list[Width]:
    """Return what each method comes to on the same rows."""
    (n, d), draw = shape, generator(seed, f"widths {name} {shape} {weighted}")
    axes = np.linalg.qr(draw.standard_normal((d, d)))[0]
    rows = (draw.standard_normal((n, d)) * np.sqrt(spectra(d)[name])) @ axes + draw.standard_normal(d)
    weights = draw.integers(1, 5, n).astype(np.float64) if weighted else None
    values = np.linalg.eigvalsh(np.cov(rows, rowvar=False, fweights=None if weights is None else weights.astype(int)))
    exact = values[::-1][:N_COMPONENTS]
    found = []
    for method, options in METHODS.items():
        model = fitted(rows, Parameters(N_COMPONENTS, sample_weight=weights, seed=seed, **options))
        said: dict[str, Any] = model.certificate.to_dict()
        lower, upper = np.array(said["eigenvalue_intervals"]).T
        room = d * np.finfo(np.float64).eps * exact[0]
        below = exact < lower - room
        found.append(
            Width(
                spectrum=name,
                shape=shape,
                weighted=weighted,
                method=method,
                error=(np.abs(exact - model.explained_variance) / exact[0]).tolist(),
                width=((upper - lower) / exact[0]).tolist(),
                outside=int((below | (exact > upper + room)).sum()),
                beyond_proven=int((below | (exact > np.array(said["proven_upper_bounds"]) + room)).sum()),
                bounded_by=list(said["bounded_by"]),
            )
        )
    return found


def widths(quick: bool) -> Report:
    """Run 144 fits, or 2,160."""
    found: list[Width] = []
    for shape in SHAPES[: 1 if quick else None]:
        for name in spectra(shape[1]):
            for weighted in (False, True):
                for seed in range(1 if quick else 5):
                    found += widths_of(name, shape, weighted, 1000 + seed)
            note(f"{shape}, {name}: done")
    report = Report({"fits": [asdict(each) for each in found]})
    _add_tables(report, found)
    return report


def _add_tables(report: Report, found: Sequence[Width]) -> None:
    """Add the table of methods, and that of methods by spectrum."""
    lines = []
    for method in METHODS:
        own = [each for each in found if each.method == method]
        ratios = [ratio for each in own for ratio in _ratios(each)]
        by = [end for each in own for end in each.bounded_by]
        shares = ", ".join(
            f"{end} {by.count(end) / len(by):.0%}" for end in sorted(set(by), key=by.count, reverse=True)
        )
        errors = [error for each in own for error in each.error]
        outside = f"{sum(each.outside for each in own)} of {len(errors):,}"
        proven = str(sum(each.beyond_proven for each in own))
        middle = [
            brief(float(np.median(errors))),
            brief(float(np.median([width for each in own for width in each.width]))),
        ]
        median = brief(float(np.median(ratios))) if ratios else "rounding"
        lines.append([method, str(len(own)), *middle, median, f"{len(ratios):,}", outside, proven, shares])
    head = [
        "method",
        "fits",
        "error",
        "width",
        "width / error",
        "of intervals",
        "outside",
        "outside the proven",
        "upper ends from",
    ]
    report.table("widths of certificates: medians over twelve spectra", head, lines)
    lines = []
    for name in spectra(SHAPES[0][1]):
        cells = []
        for method in METHODS:
            ratios = [
                ratio for each in found if (each.spectrum, each.method) == (name, method) for ratio in _ratios(each)
            ]
            cells.append(brief(float(np.median(ratios))) if ratios else "rounding")
        lines.append([name, *cells])
    report.table("medians of width / error by spectrum", ["spectrum", *METHODS], lines)


def _ratios(each: Width) -> list[float]:
    """Return width over error of the components whose error is above `_LEAST_ERROR`."""
    return [width / error for width, error in zip(each.width, each.error, strict=True) if error > _LEAST_ERROR]
