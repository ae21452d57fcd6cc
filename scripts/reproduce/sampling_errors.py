"""How often 95 % intervals of eigenvalues hold the eigenvalue of the population, and sampling errors beside a bootstrap.

``coverage``: 500 tables are drawn from each of four populations with known eigenvalues (normal; Student's t with five degrees of freedom;
a factor model with noise of unequal variances; normal rows with autocorrelation 0.6 from one to the next), with 200, 2,000 and
20,000 rows of 20 features. ``bootstrap``: three tables are resampled 500 times, row by row, and fitted again; standard
deviations of eigenvalues and shares, and root mean square angles, are compared with those of the jackknife. ``cost``: processor
seconds of runs that write scores, with and without sampling errors.

    .venv/bin/python scripts/reproduce/sampling_errors.py --quick
    .venv/bin/python scripts/reproduce/sampling_errors.py
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from _report import Part, Report, main, note
from numpy.typing import NDArray

import streampca as sp
from streampca.linalg.cross_validation import group_edges, pieces
from streampca.models.sampling_errors import GroupMoments, Population, SamplingErrors, sampling_errors

FloatArray = NDArray[np.float64]

N_FEATURES, N_COMPONENTS, N_GROUPS, AUTOCORRELATION = 20, 4, 20, 0.6
SPECTRUM = np.array([16.0, 8.0, 4.0, 2.0] + [0.5] * 16)
POPULATIONS = ("normal", "t, 5 degrees", "factor model", "autocorrelated")


def factors() -> tuple[FloatArray, FloatArray]:
    """Return loadings, ``(n_features, 4)``, and variances of noise, ``(n_features,)``."""
    rng = np.random.default_rng(5)
    loadings = np.linalg.qr(rng.standard_normal((N_FEATURES, N_COMPONENTS)))[0] * np.sqrt(SPECTRUM[:N_COMPONENTS])
    return loadings, rng.uniform(0.2, 0.8, N_FEATURES)


def population_values(population: str) -> FloatArray:
    """Return the leading eigenvalues of the covariance of the population."""
    if population != "factor model":
        return SPECTRUM[:N_COMPONENTS]
    loadings, noise = factors()
    return np.linalg.eigvalsh(loadings @ loadings.T + np.diag(noise))[::-1][:N_COMPONENTS]


def drawn(population: str, n: int, rng: np.random.Generator) -> FloatArray:
    """Return `n` rows of the population."""
    rows = rng.standard_normal((n, N_FEATURES))
    if population == "factor model":
        loadings, noise = factors()
        return rng.standard_normal((n, N_COMPONENTS)) @ loadings.T + rows * np.sqrt(noise)
    if population == "t, 5 degrees":
        rows /= np.sqrt(rng.chisquare(5, n) / 3)[:, None]
    if population == "autocorrelated":
        for i in range(1, n):
            rows[i] = AUTOCORRELATION * rows[i - 1] + np.sqrt(1 - AUTOCORRELATION**2) * rows[i]
    return rows * np.sqrt(SPECTRUM)


def fitted(rows: FloatArray, n_groups: int) -> tuple[SamplingErrors, FloatArray, FloatArray]:
    """Return the sampling errors of the leading components of `rows`, the components and the shares, by LAPACK."""
    n, d = rows.shape
    centred = rows - rows.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred / (n - 1))
    values, components = values[::-1], vectors.T[::-1][:N_COMPONENTS]
    scores, lengths = centred @ components.T, np.einsum("ij,ij->i", centred, centred)
    moments = GroupMoments.empty(N_COMPONENTS, 0)
    for group, start, stop in pieces(group_edges(n, n_groups), 0, n):
        rows_of_group = scores[start:stop], lengths[start:stop]
        moments = moments.absorb(GroupMoments.of(group, start, *rows_of_group, None, np.zeros(0)))
    leading = values[:N_COMPONENTS]
    population = Population(leading, 1, True, float(values.sum()), d - N_COMPONENTS, others=values[N_COMPONENTS:])
    return sampling_errors(moments, population, "known scores"), components, leading / values.sum()


def coverage(quick: bool, pictures: Path | None) -> Report:
    """Return how often the intervals hold the eigenvalues of the population."""
    report, n_tables = Report(), 20 if quick else 500
    rows = []
    for population in POPULATIONS:
        truth = population_values(population)
        for n in (200, 2000) if quick else (200, 2000, 20_000):
            note(f"coverage: {population}, {n:,} rows")
            rng = np.random.default_rng([POPULATIONS.index(population), n])
            held = np.zeros(N_COMPONENTS)
            for _ in range(n_tables):
                low, high = fitted(drawn(population, n, rng), N_GROUPS)[0].interval(0.95).T
                held += (low <= truth) & (truth <= high)
            report.figures[f"{population}, {n}"] = (held / n_tables).tolist()
            rows.append([population, f"{n:,}", *(f"{100 * share:.1f} %" for share in held / n_tables)])
    names = [f"component {i + 1}" for i in range(N_COMPONENTS)]
    report.table(f"Coverage of 95 % intervals, {n_tables} tables each", ["population", "rows", *names], rows)
    return report


def bootstrap(quick: bool, pictures: Path | None) -> Report:
    """Return ratios of the errors by the jackknife to those by resampled rows."""
    report, n_refits, n = Report(), 50 if quick else 500, 2000
    rows = []
    for population in POPULATIONS[:3]:
        note(f"bootstrap: {population}")
        rng = np.random.default_rng(7)
        table = drawn(population, n, rng)
        _, components, _ = fitted(table, N_GROUPS)
        found: list[tuple[FloatArray, FloatArray, FloatArray]] = []
        for _ in range(n_refits):
            errors, other, shares = fitted(table[rng.integers(0, n, n)], 2)
            turned = 1 - np.square(np.einsum("ij,ij->i", components, other))
            found.append((errors.estimates, shares, np.maximum(turned, 0.0)))
        values, shares, turns = (np.array(each) for each in zip(*found, strict=True))
        truth = {"eigenvalues": values.std(axis=0), "shares": shares.std(axis=0), "angles": np.sqrt(turns.mean(axis=0))}
        for n_groups in (20, 200):
            errors = fitted(table, n_groups)[0]
            for name, expected in truth.items():
                ratio = getattr(errors, name) / expected
                report.figures[f"{population}, {name}, {n_groups}"] = ratio.tolist()
                rows.append([population, str(n_groups), name, *(f"{each:.2f}" for each in ratio)])
    names = [f"component {i + 1}" for i in range(N_COMPONENTS)]
    title = f"Errors by the jackknife over those of {n_refits} refits of resampled rows, {n:,} rows"
    report.table(title, ["population", "groups", "error of", *names], rows)
    return report


def cost(quick: bool, pictures: Path | None) -> Report:
    """Return processor seconds of runs with scores, without and with sampling errors in pairs; medians of several pairs."""
    report, times = Report(), 1 if quick else 5
    rows = []
    for n, d, k in ((4000, 100, 5),) if quick else ((200_000, 200, 10), (50_000, 1000, 20)):
        note(f"cost: {n:,} x {d:,}")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "x.zarr"
            values = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32) * np.geomspace(
                5, 0.5, d, dtype="f4"
            )
            zarr.create_array(path, shape=(n, d), chunks=(min(n, 10_000), d), dtype="f4")[:] = values
            del values
            pairs = [[_seconds_of_run(path, k, n_groups) for n_groups in (0, N_GROUPS)] for _ in range(times + 1)][1:]
            without, with_errors = np.median(pairs, axis=0).tolist()
            ratio = float(np.median([after / before for before, after in pairs]))
            report.figures[f"{n} x {d}"] = {"without": without, "with": with_errors, "ratio": ratio, "pairs": pairs}
            more = f"{100 * (ratio - 1):+.1f} %"
            rows.append([f"{n:,} x {d:,}", str(k), f"{without:.2f} s", f"{with_errors:.2f} s", more])
    title = "Processor time of a run with scores"
    report.table(title, ["rows x features", "components", "without", "with", "more"], rows)
    return report


def _seconds_of_run(path: Path, n_components: int, n_groups: int) -> float:
    """Return the processor seconds of a run on the store at `path` that writes scores."""
    config: dict[str, Any] = {"source": {"path": str(path)}, "model": {"n_components": n_components}}
    config["statistics"] = {"sampling_errors": n_groups}
    config["output"] = {"directory": str(path.parent / "run"), "report": False, "overwrite": True}
    file = path.parent / "c.yaml"
    file.write_text(_yaml(config))
    began = time.process_time()
    sp.run(file)
    return time.process_time() - began


def _yaml(config: dict[str, Any]) -> str:
    """Return a configuration of two levels as YAML."""
    lines = []
    for section, entries in config.items():
        lines += [
            f"{section}:",
            *(f"  {key}: {str(value).lower() if isinstance(value, bool) else value}" for key, value in entries.items()),
        ]
    return "\n".join(lines) + "\n"


PARTS: dict[str, Part] = {"coverage": coverage, "bootstrap": bootstrap, "cost": cost}

if __name__ == "__main__":
    main(PARTS, __doc__)
