"""Approximate PCA on photographs and digits, measured part by part.

``dot-products``: how far dot products are off after each transform, against its number of columns, as Marukatat (2023)
shows it for Gaussian projection and feature hashing. Hashing appears with entries ± 1/√l, as here, and with ± 1/l, as
published for l concatenated hash functions.

``aligned``: the leading subspace that is found through each transform when the eigenvectors are the axes of the
features, and when they point anywhere.

Data: 500 digits of scikit-learn (64 features) and 500 patches of 32 x 32 x 3 pixels (3,072 features) that are cut at
random places from the two photographs that scikit-learn ships. Tables go to stdout, the same figures with ``--json`` to
a file, pictures with ``--pictures`` to a directory.

    .venv/bin/python scripts/reproduce/approximate_pca.py --quick
    .venv/bin/python scripts/reproduce/approximate_pca.py --json data/accuracy.json --pictures docs/pictures/accuracy
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

import streampca as sp
from streampca.seeding import generator
from streampca.transforms import CountSketch, GaussianProjection, SparseSign, Transform

FloatArray = NDArray[np.float64]

N_ROWS = 500
SIDE = 32
PHOTOGRAPHS = ("china.jpg", "flower.jpg")


@dataclass(frozen=True)
class Method:
    """A transform by name."""

    name: str
    """Its name in tables and pictures."""
    make: Callable[[int, int, int], Transform]
    """From (n_features, size, seed) to the transform."""
    factor: float = 1.0
    """What its result is multiplied by: other than 1 for scales as published."""
    style: str = "-"
    """Line style in pictures."""


METHODS = (
    Method("Gaussian", GaussianProjection),
    Method("hashing, l = 1", lambda d, q, seed: CountSketch(d, q, 1, seed)),
    Method("hashing, l = 4", lambda d, q, seed: CountSketch(d, q, 4, seed)),
    Method("hashing, l = 5", lambda d, q, seed: CountSketch(d, q, 5, seed)),
    Method("sparse sign, 8 entries", lambda d, q, seed: SparseSign(d, q, 8, seed)),
    Method("hashing, l = 4, entries 1/l", lambda d, q, seed: CountSketch(d, q, 4, seed), 4**-0.5, "--"),
    Method("hashing, l = 5, entries 1/l", lambda d, q, seed: CountSketch(d, q, 5, seed), 5**-0.5, "--"),
)


@dataclass
class Report:
    """What a part has to tell."""

    figures: dict[str, Any] = field(default_factory=dict)
    """Everything measured, as plain numbers."""
    tables: list[str] = field(default_factory=list)
    """Tables in Markdown, each with its heading."""

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table."""
        lines = [f"### {title}", "", f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        self.tables.append("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]))


@cache
def digits() -> FloatArray:
    """Return the first digits, ``(500, 64)``."""
    return np.asarray(sp.sources.open_source("builtin:digits").read(0, N_ROWS)[0], dtype=np.float64)


@cache
def patches() -> FloatArray:
    """Return patches from random places of both photographs in turn, ``(500, 3072)``."""
    from sklearn.datasets import load_sample_image

    photographs = [load_sample_image(name) for name in PHOTOGRAPHS]
    draws = generator(0, "places of patches")
    rows = np.empty((N_ROWS, SIDE * SIDE * 3))
    for index in range(N_ROWS):
        photograph = photographs[index % len(photographs)]
        down, right = (int(draws.integers(0, side - SIDE + 1)) for side in photograph.shape[:2])
        rows[index] = photograph[down : down + SIDE, right : right + SIDE].ravel()
    return rows


DATA: dict[str, Callable[[], FloatArray]] = {"digits": digits, "patches": patches}


def scaled_error(before: FloatArray, after: FloatArray) -> float:
    """Return the root mean square of (⟨xᵢ, xⱼ⟩ − ⟨zᵢ, zⱼ⟩) / (‖xᵢ‖ ‖xⱼ‖) over pairs i ≤ j: defined for any angle."""
    lengths = np.linalg.norm(before, axis=1)
    wrong = (before @ before.T - after @ after.T) / np.outer(lengths, lengths)
    return float(np.sqrt((wrong[np.triu_indices(len(before))] ** 2).mean()))


def expected_errors(rows: FloatArray, centred: FloatArray, size: int) -> tuple[float, float]:
    """Return both errors of a Gaussian projection in expectation, from its variance (‖x‖² ‖y‖² + ⟨x, y⟩²) / size."""
    upper = np.triu_indices(len(rows))

    def cosines(table: FloatArray) -> FloatArray:
        lengths = np.linalg.norm(table, axis=1)
        return ((table @ table.T) / np.outer(lengths, lengths))[upper]

    plain = np.sqrt(2 / np.pi / size) * np.sqrt(1 + cosines(rows) ** -2.0).mean()
    return float(plain), float(np.sqrt((1 + cosines(centred) ** 2).mean() / size))


def dot_products(quick: bool, pictures: Path | None) -> Report:
    """Measure the errors of dot products against the number of columns."""
    sizes = (500, 2000) if quick else (500, 1000, 1500, 2000, 2500, 3000)
    seeds = range(2 if quick else 20)
    report = Report()
    for name, load in DATA.items():
        rows = load()
        centred = rows - rows.mean(axis=0)
        errors: dict[str, dict[int, list[tuple[float, float]]]] = {method.name: {} for method in METHODS}
        for size in sizes:
            for method in METHODS:
                errors[method.name][size] = [_errors(method, rows, centred, size, seed) for seed in seeds]
            print(f"{name}, {size} columns: done", file=sys.stderr, flush=True)
        expected = {size: expected_errors(rows, centred, size) for size in sizes}
        report.figures[name] = {"errors": errors, "expected_gaussian": expected}
        titles = ("mean of |error| / |dot product|, rows as they are", "rms of error / lengths, centred rows")
        for which, title in enumerate(titles):
            lines = [["Gaussian, by formula", *(f"{expected[size][which]:.4f}" for size in sizes)]]
            for method in METHODS:
                runs = [np.array(errors[method.name][size])[:, which] for size in sizes]
                power = 1 + which
                middles = [(run**power).mean() ** (1 / power) for run in runs]
                spreads = [run.std(ddof=1) for run in runs]
                cells = [f"{middle:.4f} ± {spread:.4f}" for middle, spread in zip(middles, spreads, strict=True)]
                lines.append([method.name, *cells])
            shape = f"{rows.shape[0]} x {rows.shape[1]}"
            heading = f"{name} ({shape}): {title}; over {len(seeds)} seeds, ± deviation of one"
            report.table(heading, ["transform", *(f"q = {size}" for size in sizes)], lines)
        if pictures is not None:
            _draw_errors(pictures / f"dot-products-{name}.png", name, errors, sizes)
    return report


def _errors(method: Method, rows: FloatArray, centred: FloatArray, size: int, seed: int) -> tuple[float, float]:
    """Return the proportional error on rows as they are and the scaled error on centred rows."""
    transform = method.make(rows.shape[1], size, seed)
    image = transform.transform(rows) * method.factor
    # Linear, so the centred rows need no transform of their own.
    return sp.metrics.dot_product_error(rows, image), scaled_error(centred, image - image.mean(axis=0))


def _draw_errors(path: Path, name: str, errors: dict[str, Any], sizes: Sequence[int]) -> None:
    """Draw the proportional error against the number of columns, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 4.4), layout="constrained")
    for method in METHODS:
        means = [np.array(errors[method.name][size])[:, 0].mean() for size in sizes]
        axes.plot(sizes, means, method.style, marker="o", markersize=4, label=method.name)
    axes.set(xscale="log", yscale="log", xlabel="columns q", ylabel="mean of |error| / |dot product|", title=name)
    axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def leading_vectors(spectrum: FloatArray, test: FloatArray, k: int) -> FloatArray:
    """Return the k leading eigenvectors of the Nyström approximation of diag(spectrum) from its product with `test`.

    ``C Ω (Ωᵀ C Ω)⁺ Ωᵀ C = C^½ P C^½`` with P the projection on the range of C^½ Ω, which needs no inverse.
    """
    root = np.sqrt(spectrum)[:, np.newaxis]
    left, values, _ = np.linalg.svd(root * test, full_matrices=False)
    basis = left[:, values > 1e-13 * values[0]]
    return np.linalg.svd(root * basis, full_matrices=False)[0][:, :k].T


def aligned(quick: bool, pictures: Path | None) -> Report:
    """Measure which share of trials keeps the 10 leading eigenvectors of 1,000 with eigenvalues 10^(-i/10), q = 40."""
    d, k, size = (300, 10, 40) if quick else (1000, 10, 40)
    n_trials = 20 if quick else 200
    spectrum = 10.0 ** (-0.1 * np.arange(d))
    turn = np.linalg.qr(generator(0, "eigenvectors").standard_normal((d, d)))[0]
    methods = [method for method in METHODS if method.factor == 1]
    methods.insert(-1, Method("sparse sign, 4 entries", lambda d, q, seed: SparseSign(d, q, 4, seed)))
    report, lines = Report(), []
    for method in methods:
        similarities: dict[str, list[float]] = {"axes": [], "anywhere": []}
        for seed in range(n_trials):
            omega = method.make(d, size, seed).matrix()
            for basis, test in (("axes", omega), ("anywhere", turn.T @ omega)):
                found = leading_vectors(spectrum, test, k)
                similarities[basis].append(sp.metrics.similarity(found, np.eye(k, d)))
        report.figures[method.name] = similarities
        quantiles = [np.quantile(similarities[basis], share) for basis in similarities for share in (0.05, 0.5)]
        lines.append([method.name, *(f"{value:.3f}" for value in quantiles)])
    title = (
        f"similarity of the {k} leading eigenvectors of {d}, q = {size}, one-pass Nyström, {n_trials} trials: "
        "5 % quantile and median"
    )
    head = ["transform", "axes: 5 %", "axes: median", "anywhere: 5 %", "anywhere: median"]
    report.table(title, head, lines)
    return report


PARTS: dict[str, Callable[[bool, Path | None], Report]] = {"dot-products": dot_products, "aligned": aligned}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="few sizes and seeds: seconds, and rough figures")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--pictures", type=Path, help="directory for pictures")
    options = parser.parse_args()
    unknown = sorted(set(options.parts) - set(PARTS))
    if unknown:
        parser.error(f"unknown part {unknown[0]}: expected any of {', '.join(PARTS)}")
    figures = {}
    with threadpool_limits(limits=1):
        for name in options.parts or PARTS:
            report = PARTS[name](options.quick, options.pictures)
            figures[name] = report.figures
            print("\n\n".join(report.tables), end="\n\n", flush=True)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
