"""A few of the fits of scripts/fuzz, and what that script makes of fits that hang, die or are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import analyses
import cases
import cell_programs
import judging
import kernel_fits
import labelled_stores
import numpy as np
import pytest

pytestmark = pytest.mark.numerical

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "fuzz.py"


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("start", [23, 41])
def test_random_fits_are_right_or_refused_by_name(start: int) -> None:
    failures = []
    for seed in range(start, start + 18):
        verdict = judging.judge(cases.draw(seed))
        if verdict.kind not in ("right", "refused"):
            failures.append(f"seed {seed}: {verdict.kind}: {verdict.detail}")
    assert not failures, "\n".join(failures)


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("start", [300, 900])
def test_random_fits_on_a_device_are_right_or_refused_by_name(start: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "DEVICE", "array_api_strict:device1")
    verdicts = {seed: judging.judge(cases.draw(seed)) for seed in range(start, start + 25)}
    assert not {seed: verdict for seed, verdict in verdicts.items() if verdict.kind not in ("right", "refused")}


def test_random_kernel_fits_are_right_or_refused_by_name() -> None:
    verdicts = {seed: kernel_fits.judge(kernel_fits.draw(seed)) for seed in range(13)}
    failures = {seed: verdict for seed, verdict in verdicts.items() if verdict.kind not in ("right", "refused")}
    assert not failures


def test_random_labelled_stores_are_those_of_numpy() -> None:
    verdicts = {seed: labelled_stores.judge(labelled_stores.draw(seed)) for seed in range(20)}
    assert not {seed: verdict for seed, verdict in verdicts.items() if verdict.kind != "right"}


def test_random_programs_on_anndata_are_right_or_refused_by_name() -> None:
    verdicts = {seed: cell_programs.judge(cell_programs.draw(seed)) for seed in range(16)}
    failures = {seed: verdict for seed, verdict in verdicts.items() if verdict.kind not in ("right", "refused")}
    assert not failures


def test_random_analyses_are_those_of_numpy() -> None:
    verdicts = {seed: analyses.judge(analyses.draw(seed)) for seed in range(40)}
    assert not {seed: verdict for seed, verdict in verdicts.items() if verdict.kind not in ("right", "refused")}


def test_same_seed_draws_same_case() -> None:
    one, other = cases.draw(7), cases.draw(7)
    assert one.line() == other.line()
    np.testing.assert_array_equal(one.rows, other.rows)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda pca: pca.explained_variance_ * (1 + 1e-9), "explained_variance_"),
        (lambda pca: pca.components_[::-1], "components_"),
        (lambda pca: pca.mean_ + 1e-9, "mean_"),
        (lambda pca: pca.singular_values_ * 1.001, "singular_values_"),
        (lambda pca: pca.noise_variance_ * 1.001, "noise_variance_"),
    ],
)
def test_wrong_attribute_is_noticed(monkeypatch: pytest.MonkeyPatch, change: Any, expected: str) -> None:
    rows = np.random.default_rng(0).standard_normal((60, 6)) * np.arange(1, 7) + 3
    case = cases.Case(0, rows, "numpy", (60, 6), {"solver": "covariance", "n_components": 3}, None)
    assert judging.judge(case).kind == "right"
    fit = judging.PCA.fit

    def changed(self: Any, *given: Any, **named: Any) -> Any:
        fit(self, *given, **named)
        value = change(self)
        monkeypatch.setattr(judging.PCA, expected, property(lambda _: value))
        return self

    monkeypatch.setattr(judging.PCA, "fit", changed)
    verdict = judging.judge(case)
    assert verdict.kind == "wrong"


@pytest.mark.deep
def test_script_counts_fits_and_writes_them(tmp_path: Path) -> None:
    out = tmp_path / "counts.json"
    command = [sys.executable, SCRIPT, "--only", "pca", "--count", "3", "--jobs", "1", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    counts = json.loads(out.read_text())["pca"]
    assert counts["fits"] == 3
    assert counts["statistical"] <= counts["right"]
    assert done.returncode == int(counts["wrong"] + counts["hangs"] + counts["bare"] > 0)
    assert "| `PCA` | 3 |" in done.stdout


@pytest.mark.slow
def test_fit_beyond_the_time_limit_counts_as_hang() -> None:
    command = [sys.executable, SCRIPT, "--only", "pca", "--count", "1", "--jobs", "1", "--limit", "0.001"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "hangs: more than 0 s: scripts/fuzz --only pca --count 1 --seed 0" in done.stdout


@pytest.mark.parametrize(("statistical", "clean"), [(60_000, True), (30_000, False)])
def test_missed_statistical_bounds_are_a_share_of_the_answers_that_have_one(statistical: int, clean: bool) -> None:
    """One in 10,000 of these may miss, and three deviations more; all other fits do not count."""
    counts = {"fits": 90_000, "right": 90_000, "statistical": statistical, "notes": 12}
    command = [sys.executable, SCRIPT, "--merge"]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"pca": counts}, file)
        file.flush()
        assert subprocess.run([*command, file.name], capture_output=True, check=False).returncode == int(not clean)
