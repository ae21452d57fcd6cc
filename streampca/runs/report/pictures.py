"""Numbers as colours, and pictures as PNG files inside the page."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from streampca.typing import FloatArray

# From blue through off-white to red, equally light on both sides, so that no sign looks larger than the other.
_STOPS = np.array(
    [(5, 48, 97), (33, 102, 172), (67, 147, 195), (146, 197, 222), (209, 229, 240), (247, 247, 245),
     (253, 219, 199), (244, 165, 130), (214, 96, 77), (178, 24, 43), (103, 0, 31)],
    dtype=np.float64,
)  # fmt: skip


# From dark blue through green to yellow, lighter with every step.
_RISING = np.array(
    [(68, 1, 84), (71, 39, 119), (62, 73, 137), (48, 103, 141), (37, 130, 142), (30, 157, 136),
     (53, 183, 120), (109, 206, 88), (181, 221, 43), (253, 231, 36)],
    dtype=np.float64,
)  # fmt: skip
MASKED = (150, 150, 150)
"""Colour of places that are masked or missing."""


def diverging(values: FloatArray, largest: float) -> NDArray[np.uint8]:
    """Return values from -`largest` to `largest` as colours: blue to red around white, NaN in `MASKED`.

    ``(height, width, 3)`` are red, green and blue already: they are put around middle grey.
    """
    unit = np.clip(values / largest, -1, 1) if largest > 0 else np.where(np.isfinite(values), 0.0, values)
    if values.ndim == 3:
        return _bytes(127.5 + 127.5 * np.nan_to_num(unit))
    return _coloured((unit + 1) / 2, _STOPS)


def rising(values: FloatArray, low: float, high: float, *, greys: bool = False) -> NDArray[np.uint8]:
    """Return values from `low` to `high` as colours: from dark to light, NaN in `MASKED`; in shades of grey if none is NaN.

    What lies outside has the colour of the nearest end. ``(height, width, 3)`` are red, green and blue already.
    """
    span = high - low
    unit = np.clip((values - low) / span, 0, 1) if span > 0 else np.where(np.isnan(values), np.nan, 0.5)
    if values.ndim == 3 or (greys and not np.isnan(unit).any()):
        return _bytes(255 * unit)
    return _coloured(unit, np.linspace(0.0, 255.0, 2)[:, np.newaxis].repeat(3, axis=1) if greys else _RISING)


def _bytes(values: FloatArray) -> NDArray[np.uint8]:
    rounded: NDArray[np.uint8] = np.round(np.nan_to_num(values)).astype(np.uint8)
    return rounded


def _coloured(unit: FloatArray, stops: FloatArray) -> NDArray[np.uint8]:
    """Return numbers from 0 to 1 as one of 255 colours between the `stops`, NaN as `MASKED`."""
    place = np.round(np.nan_to_num(unit) * 254) / 254 * (len(stops) - 1)
    below = np.minimum(place.astype(np.int64), len(stops) - 2)
    part = (place - below)[..., np.newaxis]
    colours = _bytes(stops[below] * (1 - part) + stops[below + 1] * part)
    colours[np.isnan(unit)] = MASKED
    return colours


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return ``(height, width)`` grey, ``(…, 3)`` colour or ``(…, 4)`` with opacity as a ``data:`` address.

    Up to 256 colours are stored as a palette.
    """
    pixels = np.ascontiguousarray(pixels)
    palette, kind = b"", {1: 0, 3: 2, 4: 6}[1 if pixels.ndim == 2 else pixels.shape[2]]
    if kind == 2:
        colours, places = np.unique(pixels.reshape(-1, 3).astype(np.int64) @ (65536, 256, 1), return_inverse=True)
        if len(colours) <= 256:
            kind, pixels = 3, places.astype(np.uint8).reshape(pixels.shape[:2])
            palette = _chunk(b"PLTE", (colours[:, np.newaxis] >> (16, 8, 0) & 255).astype(np.uint8).tobytes())
    height, width = pixels.shape[:2]
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))
    data = _chunk(b"IDAT", zlib.compress(_filtered(pixels, adaptive=kind != 3), 9))
    png = b"\x89PNG\r\n\x1a\n" + head + palette + data + _chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _chunk(name: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file: length, name, data and checksum."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def _filtered(pixels: NDArray[np.uint8], *, adaptive: bool) -> bytes:
    """Return rows of pixels as a PNG file stores them: each after the number of its filter.

    With `adaptive` the differences to the pixel on the left or above replace the values where the sum of their moduli, as signed
    bytes, is smaller (PNG specification, section 12.7).
    """
    rows = pixels.reshape(len(pixels), pixels.shape[1], -1)
    left, above = np.zeros_like(rows), np.zeros_like(rows)
    left[:, 1:], above[1:] = rows[:, :-1], rows[:-1]
    forms = np.stack([each.reshape(len(rows), -1) for each in (rows, rows - left, rows - above)])
    sizes = np.abs(forms.view(np.int8).astype(np.int64)).sum(axis=2)
    best = sizes.argmin(axis=0) if adaptive else np.zeros(len(rows), dtype=np.int64)
    chosen = forms[best, np.arange(len(rows))]
    return np.concatenate([best[:, np.newaxis].astype(np.uint8), chosen], axis=1).tobytes()


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
