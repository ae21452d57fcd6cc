"""Numbers as small pictures: PNG files inside the page, one pixel for each number."""

from __future__ import annotations

import base64
import io

import numpy as np

from streampca.typing import FloatArray

SIGNED, RISING, GREYS = "RdBu_r", "viridis", "gray"
"""Colour maps of matplotlib: blue to red around white, dark to light, and black to white."""
MASKED = "#969696"
"""Colour of places that are masked or missing."""


def picture(values: FloatArray, low: float, high: float, colours: str) -> str:
    """Return the ``data:`` address of the picture of values, ``(height, width)`` or red, green and blue, ``(height, width, 3)``.

    What lies outside of `low` to `high` has the colour of the nearest end; NaN is `MASKED`.
    """
    import matplotlib as mpl
    from PIL import Image

    unit = np.clip((values - low) / (high - low), 0.0, 1.0) if high > low else np.where(np.isnan(values), np.nan, 0.5)
    if values.ndim == 3:
        pixels = np.round(255 * np.nan_to_num(unit)).astype(np.uint8)
    else:
        shades = mpl.colormaps[colours].with_extremes(bad=MASKED)
        pixels = np.ascontiguousarray(shades(np.ma.masked_invalid(unit), bytes=True)[..., :3])
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
