"""The built-in data sets: small tables of scikit-learn, and the patches of its two photographs, cut out when they are read."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray
from typing_extensions import override

from streampca.errors import DataError
from streampca.labels import Dimension, Labels, Variable
from streampca.sources.base import ReadCount, Source
from streampca.sources.formats import ReadOptions
from streampca.sources.table import StoredVariable, table_of
from streampca.suggestions import nearest
from streampca.system.optional import not_installed, optional_module
from streampca.typing import Array

_PHOTOS = ("china.jpg", "flower.jpg")
_EXTRA = "examples"
_SIDE = 16
_CHANNELS = 3
# Steps (down, right) between neighbouring patches of a photograph of 427 x 640: 206 x 625 patches in each, 257,500 in
# both, 198 MB. A step of (2, 2) would give 128,956, and (1, 1) would give 515,000, which makes a first run slow.
_STEP = (2, 1)


_DESCRIPTIONS = {
    "photo-patches": f"Patches of {_SIDE} x {_SIDE} pixels (red, green, blue) of the photographs china.jpg and flower.jpg that "
    "scikit-learn ships (Creative Commons Attribution 2.0).",
    "digits": "Handwritten digits of 8 x 8 pixels with 17 grey levels (UCI, from scikit-learn).",
    "iris": "Sepals and petals of 150 irises, in cm (Fisher 1936, from scikit-learn).",
    "breast-cancer": "Cell nuclei of 569 breast tumours, 30 measures each (UCI Wisconsin, from scikit-learn).",
    "wine": "Chemical analysis of 178 Italian wines (UCI, from scikit-learn).",
    "diabetes": "Ten baseline measures of 442 diabetes patients, unscaled (Efron et al. 2004, from scikit-learn).",
}
BUILTIN_NAMES: tuple[str, ...] = tuple(_DESCRIPTIONS)
"""Every name that `open_builtin` knows."""


def open_builtin(path: str, options: ReadOptions) -> Source:
    """Return the built-in data set ``builtin:NAME``; nothing is written, and of photographs only the rows that are read are made.

    Raises
    ------
    DataError
        For an unknown name, or when scikit-learn does not hold the data.
    NotAvailableError
        For options about what is stored, or if scikit-learn, or for photographs Pillow, is not installed.
    """
    from streampca.sources.features import axes_of

    name = path.removeprefix("builtin:")
    if name not in BUILTIN_NAMES:
        near = nearest(name, BUILTIN_NAMES)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise DataError(f"builtin:{name} is not a built-in data set: expected one of {', '.join(BUILTIN_NAMES)}{hint}")
    label = f"builtin:{name}"
    options.require_only("built-in data", label)
    source: Source = PatchSource() if name == "photo-patches" else SmallTable(name)
    dimensions = ("patch", "pixel") if name == "photo-patches" else ("sample", "feature")
    dims = [Dimension(*each) for each in zip(dimensions, source.shape, strict=True)]
    (row,), (column,) = axes_of(dimensions, source.shape, options, label)
    source = source.by_features() if row == 1 else source
    variable = Variable(None, (dims[column].name,), source.shape[1:], {"description": _DESCRIPTIONS[name]})
    return table_of([StoredVariable(source)], Labels((dims[row],), (dims[column],), (variable,)), label, options.mask)


class SmallTable(Source):
    """A small table of scikit-learn, float64, in memory; every process makes it for itself."""

    portable = True

    def __init__(self, name: str):
        self.name, self.description = name, f"builtin:{name}"
        datasets = optional_module("sklearn.datasets", self.description, _EXTRA)
        options = {"scaled": False} if name == "diabetes" else {}
        bunch = getattr(datasets, f"load_{name.replace('-', '_')}")(**options)
        self._values = np.ascontiguousarray(bunch.data, dtype=np.float64)
        self._values.flags.writeable = False  # blocks are views
        self.shape, self.dtype = (self._values.shape[0], self._values.shape[1]), self._values.dtype
        self.feature_names = tuple(str(name) for name in bunch.feature_names)
        self.feature_shape = (8, 8) if name == "digits" else None

    def __reduce__(self) -> tuple[object, ...]:
        return SmallTable, (self.name,)

    @property
    @override
    def fingerprint(self) -> str:
        return xxhash.xxh3_128(self._values.data).hexdigest()

    @override
    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        rows = self._values[start:stop]
        return rows, ReadCount(0, rows.nbytes, rows.nbytes)


class PatchSource(Source):
    """Every patch of both photographs, uint8, in scan order, the first photograph first; every process makes them for itself."""

    portable = True

    def __init__(self) -> None:
        self.description = "builtin:photo-patches"
        self._photos = [_photo(file_name) for file_name in _PHOTOS]
        self._windows = [_windows(photo) for photo in self._photos]
        self._lines, self._columns = self._windows[0].shape[:2]
        self.shape = (len(_PHOTOS) * self._lines * self._columns, _SIDE * _SIDE * _CHANNELS)
        self.dtype, self.feature_shape = np.dtype(np.uint8), (_SIDE, _SIDE, _CHANNELS)

    def __reduce__(self) -> tuple[object, ...]:
        return PatchSource, ()

    @property
    @override
    def fingerprint(self) -> str:
        digest = xxhash.xxh3_128(f"{self.shape}".encode())
        for photo in self._photos:
            digest.update(photo.data)
        return digest.hexdigest()

    @override
    def read(self, start: int, stop: int, out: Array | None = None) -> tuple[Array, ReadCount]:
        out = np.empty((stop - start, self.shape[1]), dtype=self.dtype) if out is None else out
        row = start
        while row < stop:  # the patches of one line of a photograph
            photo, within = divmod(row, self._lines * self._columns)
            line, first = divmod(within, self._columns)
            n = min(stop - row, self._columns - first)
            patches = self._windows[photo][line, first : first + n]
            out[row - start : row - start + n] = patches.reshape(n, -1)
            row += n
        return out, ReadCount(0, out.nbytes, out.nbytes)


def _photo(file_name: str) -> NDArray[np.uint8]:
    """Return a photograph of scikit-learn, shape ``(height, width, 3)``."""
    open_image = optional_module("PIL.Image", "builtin:photo-patches", _EXTRA).open
    # scikit-learn's own loader would import its data sets, which costs a second and 75 MiB for two small files.
    specification = importlib.util.find_spec("sklearn")
    if specification is None or not specification.submodule_search_locations:
        raise not_installed("sklearn", "builtin:photo-patches", _EXTRA)
    path = Path(specification.submodule_search_locations[0]) / "datasets" / "images" / file_name
    if not path.is_file():
        raise DataError(f"builtin:photo-patches needs {path}, which this scikit-learn does not hold")
    with open_image(path) as image:
        return np.asarray(image.convert("RGB"), dtype=np.uint8)


def _windows(photo: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a view of all patches of a photograph, shape ``(down, right, 16, 48)``, each patch in C order."""
    height, width, channels = photo.shape
    # With a pixel's channels laid out side by side, a patch is a plain rectangle, and its copy runs along memory.
    flat = photo.reshape(height, width * channels)
    every: NDArray[np.uint8] = np.lib.stride_tricks.sliding_window_view(flat, (_SIDE, _SIDE * channels))
    return every[:: _STEP[0], :: _STEP[1] * channels]
