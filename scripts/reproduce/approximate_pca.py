"""Approximate PCA on photographs and digits, measured part by part.

``dot-products``: how far dot products are off after each transform, against its number of columns, as Marukatat (2023)
shows it for Gaussian projection and feature hashing. Hashing appears with entries ± 1/√l, as here, and with ± 1/l, as
published for l concatenated hash functions.

``aligned``: the leading subspace that is found through each transform when the eigenvectors are the axes of the
features, and when they point anywhere.

``recovery``: the first ten eigenvectors and eigenvalues that either recovery makes of the same products, against exact
PCA: the conversion of the literature, and the Nyström approximation.

``passes``: what a pilot, incremental updates and further passes make of as many columns.

``eigenvalues``: the leading eigenvalues themselves.

``grouping``: eigenvectors from pictures of fewer pixels, by blocks of pixels, by resizing, and by groups of pixels that
are not neighbours.

Data: digits of scikit-learn (64 features) and patches of 32 x 32 x 3 pixels (3,072 features) that are cut at random
places from the two photographs that scikit-learn ships; 500 of each for dot products, 1,797 and 4,000 for the rest.
Tables go to stdout and with ``--update`` into a page, the figures with ``--json`` to a file, pictures with
``--pictures`` to a directory.

    .venv/bin/python scripts/reproduce/approximate_pca.py --quick
    .venv/bin/python scripts/reproduce/approximate_pca.py --json data/accuracy.json --pictures docs/pictures/accuracy
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _data import DATA, rotation
from _grouping import grouping
from _methods import METHODS, FloatArray, Method
from _recovery import eigenvalues, passes, recovery
from _report import Part, Report, drawing, main, note

import streampca as sp
from streampca.transforms import SparseSign


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
    sizes = (500, 1000) if quick else (500, 1000, 1500, 2000, 2500, 3000)
    seeds = range(2 if quick else 20)
    report = Report()
    for name, load in DATA.items():
        rows = load()
        centred = rows - rows.mean(axis=0)
        errors: dict[str, dict[int, list[tuple[float, float]]]] = {method.name: {} for method in METHODS}
        for size in sizes:
            for method in METHODS:
                errors[method.name][size] = [_errors(method, rows, centred, size, seed) for seed in seeds]
            note(f"{name}, {size} columns: done")
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
    with drawing(path) as (axes,):
        for method in METHODS:
            means = [np.array(errors[method.name][size])[:, 0].mean() for size in sizes]
            axes.plot(sizes, means, method.style, marker="o", markersize=4, label=method.name)
        axes.set(xscale="log", yscale="log", xlabel="columns q", ylabel="mean of |error| / |dot product|", title=name)
        axes.set_xticks(sizes, [str(size) for size in sizes], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)


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
    turn = rotation(d, 0, "eigenvectors")
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


PARTS: dict[str, Part] = {
    "dot-products": dot_products,
    "aligned": aligned,
    "recovery": recovery,
    "passes": passes,
    "eigenvalues": eigenvalues,
    "grouping": grouping,
}

if __name__ == "__main__":
    main(PARTS, __doc__)
