"""What a page is made of, seen in its figures and sentences; matplotlib is left as it was found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from pages import MIB, audit, certify, change, make_run, marks_of, written

import streampca as sp


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_figures_leave_the_settings_and_the_state_of_matplotlib_alone(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=40, d=5, k=3, samples=False)
    with mpl.rc_context({"font.size": 31.0, "axes.grid": True, "text.usetex": True}):
        before = mpl.rcParams.copy()
        html = written(run)
        assert mpl.rcParams.copy() == before
    assert written(run) == html
    code = f"import sys; from streampca.cli import main; main(['report', {str(run)!r}])"
    done = subprocess.run(
        [sys.executable, "-c", f"try:\n    {code}\nexcept SystemExit:\n    print('matplotlib.pyplot' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_the_scale_of_eigenvalues_is_logarithmic_beyond_a_factor_of_100(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for largest, logarithmic in ((300.0, True), (4.0, False)):
        rows = random.standard_normal((80, 3)) * [largest, 2.0, 1.0]
        run = make_run(tmp_path / str(largest), rows=rows, k=3, samples=False)
        heights = -marks_of(written(run))["Eigenvalues"][:, 1]
        values = sp.load(run / "model.zarr").explained_variance_
        expected = np.log(values) if logarithmic else values
        assert np.corrcoef(heights, expected)[0, 1] == pytest.approx(1, abs=1e-6)


@pytest.mark.deep(keep=4)
@pytest.mark.parametrize(
    "shape", ["44", [4], [4, 4, 4], [2, 8, 1, 1], [4, -4], [4.0, 4.0], [True, 16], [1, 16], {}, 16], ids=str
)
def test_shapes_that_are_no_picture_are_drawn_as_bars(tmp_path: Path, shape: Any) -> None:
    run = change(make_run(tmp_path / "run", n=30, d=16, k=1, samples=False), source__feature_shape=shape)
    _, page = audit(run)
    assert not [tag for tag, _ in page.tags if tag == "img"]


def test_small_residuals_are_powers_of_ten(tmp_path: Path) -> None:
    run = certify(make_run(tmp_path / "run", n=40, samples=False), {"eigen_residual": 3.21e-16})
    assert "3.2 × 10⁻¹⁶" in audit(run)[1].text.replace("\u00a0", " ")


@pytest.mark.deep(keep=5)
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory__allowed_bytes": 3.5 * 2**40, "memory__peak_bytes": 301 * MIB}, ["301 MiB", "3.50 TiB"]),
        ({"seconds__total": 0.4}, ["0.40 s"]),
        ({"seconds__total": 59.96}, ["1 min 00 s"]),
        ({"seconds__total": 185}, ["3 min 05 s"]),
        ({"seconds__total": 7620}, ["2 h 07 min"]),
        ({"passes": 7}, ["in 7 passes"]),
        ({"result__explained_variance_ratio": [0.99996, 0, 0, 0, 0]}, ["99.996 %"]),
        ({"result__explained_variance_ratio": [1 - 1e-8, 0, 0, 0, 0]}, ["over 99.9999 %"]),
        ({"result__explained_variance_ratio": [1.0, 0, 0, 0, 0]}, ["100 %"]),
    ],
    ids=lambda value: str(value)[:24],
)
def test_numbers_are_read_as_words(tmp_path: Path, changes: dict[str, Any], said: list[str]) -> None:
    _, page = audit(change(make_run(tmp_path / "run", n=40, samples=False), **changes))
    text = " ".join(page.text.replace("\u00a0", " ").split())
    for words in said:
        assert words in text
