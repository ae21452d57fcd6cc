"""Numbers as colours, and pictures as PNG files inside the page."""

from __future__ import annotations

import base64
import io

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
    """Return ``(height, width)`` grey or ``(height, width, 3)`` colour as the ``data:`` address of a PNG file, one pixel for each."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
