"""What the page is made of: charts, pictures, numbers as words."""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from PIL import Image

from streampca.runs.report import figures, layouts, pictures, projection, words

MIB = 2**20


def test_figures_leave_the_settings_and_the_state_of_matplotlib_alone() -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 31.0, "axes.grid": True, "text.usetex": True}):
        before = mpl.rcParams.copy()
        svg = figures.eigenvalues(np.array([3.0, 2.0, 1.0]))
        assert mpl.rcParams.copy() == before
    assert svg == figures.eigenvalues(np.array([3.0, 2.0, 1.0]))
    assert "#0" not in svg.replace("url(#", "").replace('href="#', "")
    assert "var(--accent)" in svg
    code = "import sys, numpy; from streampca.runs.report import figures; figures.histogram(numpy.arange(9.0), 'x')"
    done = subprocess.run(
        [sys.executable, "-c", code + "; print('matplotlib.pyplot' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "False"


def test_the_scale_of_eigenvalues_is_logarithmic_beyond_a_factor_of_100() -> None:
    assert "10²" in figures.eigenvalues(np.array([1e4, 1e2, 1.0]))
    assert "10²" not in figures.eigenvalues(np.array([90.0, 40.0, 1.0]))
    assert "10⁻" not in figures.eigenvalues(np.array([0.0, 0.0]))


def test_pictures_are_symmetric_around_zero() -> None:
    drawn = pictures.diverging(np.array([[-0.5, 0.0, 0.25]]), 0.5)
    np.testing.assert_array_equal(drawn[0, 1], [247, 247, 245])
    assert drawn[0, 0, 2] > drawn[0, 0, 0]
    assert drawn[0, 2, 0] > drawn[0, 2, 2]
    colour = pictures.diverging(np.array([[[-0.5, 0.0, 0.25]]]), 0.5)
    np.testing.assert_array_equal(colour, [[[0, 128, 191]]])
    encoded = pictures.data_uri(drawn).partition(",")[2]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB")), drawn)


@pytest.mark.parametrize(
    "shape", [None, "44", [4], [4, 4, 4], [2, 8, 1, 1], [4, -4], [4.0, 4.0], [True, 16], [1, 16], {}, 16]
)
def test_shapes_that_are_no_picture(shape: Any) -> None:
    assert layouts.picture_layout(shape, 16) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (words.share(0.931), "93.1 %"),
        (words.share(0.99996), "99.996 %"),
        (words.share(1.0), "100 %"),
        (words.share(1 - 1e-13), "100 %"),
        (words.share(1 - 1e-8), "over 99.9999 %"),
        (words.share(0.00021), "0.02 %"),
        (words.share(None), "—"),
        (words.size(301 * MIB), "301 MiB"),
        (words.size(1000), "0.98 KiB"),
        (words.size(12), "12 bytes"),
        (words.size(3.5 * 2**40), "3.50 TiB"),
        (words.duration(0.4), "0.40 s"),
        (words.duration(59.96), "1 min 00 s"),
        (words.duration(185), "3 min 05 s"),
        (words.duration(7620), "2 h 07 min"),
        (words.figure(3.21e-16, 2), "3.2 × 10⁻¹⁶"),
        (words.figure(4524093.2, 7), "4,524,093"),
        (words.figure(True), "—"),
        (words.count(158000), "158,000"),
        (words.count(-1), "—"),
        (words.times(1), "one read"),
        (words.times(7), "7 reads"),
    ],
)
def test_numbers_as_words(given: str, said: str) -> None:
    assert given.replace("\u00a0", " ") == said


def test_rising_counts_keep_the_first_and_the_last() -> None:
    assert projection.rising_counts(1) == [1]
    assert projection.rising_counts(7) == [1, 2, 5, 7]
    assert projection.rising_counts(50) == [1, 2, 5, 10, 20, 50]
    long = projection.rising_counts(30_000)
    assert len(long) <= 7
    assert (long[0], long[-1]) == (1, 30_000)
    assert long == sorted(set(long))
