"""Rows of features as small pictures: PNG files inside the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streampca.runs.report.words import whole
from streampca.typing import FloatArray

MAX_SIDE = 96
"""Pictures with more pixels along a side are thinned to this many."""

# From blue through off-white to red, equally light on both sides, so that no sign looks larger than the other.
_STOPS = np.array(
    [(5, 48, 97), (33, 102, 172), (67, 147, 195), (146, 197, 222), (209, 229, 240), (247, 247, 245),
     (253, 219, 199), (244, 165, 130), (214, 96, 77), (178, 24, 43), (103, 0, 31)],
    dtype=np.float64,
)  # fmt: skip


@dataclass(frozen=True)
class PictureShape:
    """How a row of features is a picture."""

    height: int
    """Pixels from top to bottom."""
    width: int
    """Pixels from left to right."""
    colour: bool
    """Whether each pixel holds red, green and blue, one after the other."""

    def pixels(self, row: FloatArray) -> FloatArray:
        """Return a row as ``(height, width)`` or ``(height, width, 3)``, thinned to `MAX_SIDE`."""
        picture = row.reshape((self.height, self.width, 3) if self.colour else (self.height, self.width))
        return picture[:: -(-self.height // MAX_SIDE), :: -(-self.width // MAX_SIDE)]


def picture_shape(feature_shape: object, n_features: int) -> PictureShape | None:
    """Return how rows are pictures, or None when `feature_shape` is not that of one, or not of `n_features` numbers."""
    if not isinstance(feature_shape, Sequence) or isinstance(feature_shape, str):
        return None
    sides = [whole(side) or 0 for side in feature_shape]
    colour = len(sides) == 3 and sides[2] == 3
    if not colour and len(sides) == 3 and sides[2] == 1:
        sides = sides[:2]
    if len(sides) not in (2, 3) or (len(sides) == 3 and not colour) or min(sides) < 1:
        return None
    product = sides[0] * sides[1] * (3 if colour else 1)
    slim = max(sides[:2]) > 8 * min(sides[:2])
    return None if product != n_features or slim else PictureShape(sides[0], sides[1], colour)


def signed(row: FloatArray, shape: PictureShape) -> NDArray[np.uint8]:
    """Return a component as a picture that is symmetric around 0: blue to red, or colours around middle grey."""
    pixels = np.nan_to_num(shape.pixels(row), nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(np.max(np.abs(pixels)))
    unit = pixels / largest if largest > 0 else np.zeros_like(pixels)
    if shape.colour:
        return np.round(127.5 + 127.5 * unit).astype(np.uint8)
    place = (unit + 1) / 2 * (len(_STOPS) - 1)
    below = np.minimum(place.astype(np.int64), len(_STOPS) - 2)
    part = (place - below)[..., np.newaxis]
    colours: NDArray[np.uint8] = np.round(_STOPS[below] * (1 - part) + _STOPS[below + 1] * part).astype(np.uint8)
    return colours


def plain(row: FloatArray, shape: PictureShape, low: float, high: float) -> NDArray[np.uint8]:
    """Return a row as a picture whose black is `low` and whose white is `high`; what lies outside is clipped."""
    pixels = np.nan_to_num(shape.pixels(row), nan=low, posinf=high, neginf=low)
    span = high - low
    unit = np.clip((pixels - low) / span, 0, 1) if span > 0 else np.full_like(pixels, 0.5)
    return np.round(255 * unit).astype(np.uint8)


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return ``(height, width)`` grey, ``(…, 3)`` colour or ``(…, 4)`` with opacity as a ``data:`` address."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, format="PNG", compress_level=9)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def nearest_to_cells(x: FloatArray, y: FloatArray, n_columns: int, n_rows: int) -> dict[tuple[int, int], int]:
    """Return, for each cell (row from the top, column) of a grid over the points, the point nearest to its centre.

    The grid spans the middle 99 % of each axis; cells without a point are left out.
    """
    places = []
    for values, n in ((x, n_columns), (-y, n_rows)):
        low, high = (float(edge) for edge in np.quantile(values, [0.005, 0.995]))
        if not high > low:
            return {}
        places.append((values - low) / (high - low) * n)
    across, down = places
    inside = np.flatnonzero((across >= 0) & (across <= n_columns) & (down >= 0) & (down <= n_rows))
    column = np.minimum(across[inside].astype(np.int64), n_columns - 1)
    row = np.minimum(down[inside].astype(np.int64), n_rows - 1)
    off_centre = (across[inside] - column - 0.5) ** 2 + (down[inside] - row - 0.5) ** 2
    nearest: dict[tuple[int, int], int] = {}
    for i in np.argsort(off_centre, kind="stable"):
        nearest.setdefault((int(row[i]), int(column[i])), int(inside[i]))
    return nearest


def mosaic(tiles: dict[tuple[int, int], NDArray[np.uint8]], n_columns: int, n_rows: int) -> NDArray[np.uint8]:
    """Return one picture with `tiles` in their cells, transparent elsewhere, shape ``(height, width, 4)``."""
    height, width = next(iter(tiles.values())).shape[:2]
    sheet = np.zeros((n_rows * height, n_columns * width, 4), dtype=np.uint8)
    for (row, column), tile in tiles.items():
        cell = sheet[row * height : (row + 1) * height, column * width : (column + 1) * width]
        cell[..., :3] = tile if tile.ndim == 3 else tile[..., np.newaxis]
        cell[..., 3] = 255
    return sheet
