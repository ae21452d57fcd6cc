"""Eigenvectors of pictures from pictures of fewer pixels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from _data import SIDE, digits, patches
from _methods import FloatArray, compared, exact_fit
from _recovery import both_recoveries
from _report import Report, brief

import streampca as sp
from streampca.random import generator
from streampca.transforms import GaussianProjection, Grouping

FILTERS = ("BOX", "BILINEAR", "BICUBIC", "LANCZOS")


def resizing(shape: tuple[int, int, int], factor: int, kind: str) -> FloatArray:
    """Return the matrix of Pillow's resizing by 1/factor, times `factor` so that smooth pictures keep their length.

    Resizing is linear, and the same along both sides of a picture and for each channel: ``(h·w·c, h·w·c / factor²)``.
    """
    from PIL import Image

    sides = []
    for side in shape[:2]:
        unit = Image.fromarray(np.eye(side, dtype=np.float32))
        small = unit.resize((side // factor, side), getattr(Image.Resampling, kind))
        sides.append(np.asarray(small, dtype=np.float64) * np.sqrt(factor))
    return np.kron(np.kron(*sides), np.eye(shape[2]))


def anywhere(shape: tuple[int, int, int], factor: int) -> FloatArray:
    """Return the matrix of groups of as many pixels as a block has, of one channel but from anywhere in the picture."""
    pixels = shape[0] * shape[1]
    order = generator(0, "pixels anywhere").permutation(pixels)
    groups = Grouping(pixels, pixels // factor**2).matrix()
    return np.kron(groups[order], np.eye(shape[2]))


TRANSFORMS: dict[str, Callable[[tuple[int, int, int], int], FloatArray]] = {
    "blocks of pixels": lambda shape, factor: Grouping.of_pictures(shape, factor).matrix(),
    **{f"resized, {kind.lower()}": lambda shape, factor, kind=kind: resizing(shape, factor, kind) for kind in FILTERS},
    "runs of features": lambda shape, factor: Grouping(int(np.prod(shape)), int(np.prod(shape)) // factor**2).matrix(),
    "pixels from anywhere": anywhere,
    "Gaussian": lambda shape, factor: GaussianProjection(
        int(np.prod(shape)), int(np.prod(shape)) // factor**2
    ).matrix(),
}


def grouping(quick: bool, pictures: Path | None) -> Report:
    """Measure eigenvectors that come from pictures with a quarter of the pixels and less."""
    report = Report()
    tables = {
        "digits": (digits(1797), (8, 8, 1), (2,)),
        "patches": (patches(300 if quick else 4000).astype(np.float32), (SIDE, SIDE, 3), (8,) if quick else (2, 4, 8)),
    }
    for name, (rows, shape, factors) in tables.items():
        exact = exact_fit(rows, 10)
        some = rows[:500].astype(np.float64)
        figures: dict[str, dict[int, dict[str, dict[str, float]]]] = {}
        for label, make in TRANSFORMS.items():
            figures[label] = {}
            for factor in factors:
                test = make(shape, factor)
                errors = {"dot products": {"error": sp.metrics.dot_product_error(some, some @ test)}}
                for recovered, (values, axes) in both_recoveries(rows, test, 10).items():
                    errors[recovered] = compared(exact, values, axes)
                figures[label][factor] = errors
        report.figures[name] = figures
        for factor in factors:
            size = int(np.prod(shape)) // factor**2
            lines = [[label, *_cells(figures[label][factor])] for label in figures]
            title = (
                f"{name}, sides divided by {factor} (q = {size}): similarity / relative difference of the first 10 "
                "eigenvectors and eigenvalues"
            )
            head = ["features", "error of dot products", "conversion", "Nyström"]
            report.table(title, head, lines)
    return report


def _cells(found: dict[str, dict[str, float]]) -> list[str]:
    """Return the figures of one transform as they stand in a table."""
    cells = [brief(found["dot products"]["error"])]
    for recovered in ("conversion", "Nyström"):
        run = found.get(recovered)
        cells.append("" if run is None else f"{run['similarity']:.4f} / {run['difference']:.0e}")
    return cells
