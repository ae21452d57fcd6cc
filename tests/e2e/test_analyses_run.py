"""Runs of analyses of a covariance: the configuration, the directory, the page, what `verify` says, and the state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from stores import resealed

import streampca as sp
from streampca.errors import ConfigError, ParameterError
from tests.facade import main, verify_run

TITLES = {
    "mca": "Maximum covariance analysis",
    "cca": "Canonical correlation analysis",
    "factor_analysis": "Factor analysis",
}


OF_PCA = (
    "first table",
    "Component 1",
    "Eigenvalue",
    "Components",
    "eigenpair",
    "orthonormal to",
    "outside the components",
    "eigenvalues stand",
)
LINES = {
    "mca": r"mca: 2 pairs of patterns of 400 x 50 with 9\d\.\d% of the squared covariance",
    "cca": r"cca: 2 pairs of variates of 400 x 50, the first with a correlation of 0\.9\d*",
    "factor_analysis": r"factor_analysis: 2 factors of 400 x 50 with 6\d\.\d% of the variance",
}
WORDS = {
    "mca": ("Pairs of patterns of sst and precip", "Covariance between the tables", "variance of precip"),
    "cca": ("canonical variates of sst and precip", "Canonical correlations", "Pair 1, sst · r = 0.9", "95 % interval"),
    "factor_analysis": ("2 factors explain 6", "Loadings, communalities and uniquenesses"),
}
"""What is said of a run of each kind on a terminal, and on its page."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, NDArray[Any]]:
    """Return a store of two variables on the same times, and its rows."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("coupled") / "c.zarr"
    group, n = zarr.open_group(path, mode="w", zarr_format=3), 400
    shared = rng.normal(size=(n, 2))
    parts = []
    for name, shape in {"sst": (5, 6), "precip": (4, 5)}.items():
        d = int(np.prod(shape))
        values = shared @ rng.normal(size=(2, d)) + rng.normal(size=(n, d))
        dims = ("time", f"lat_{name}", f"lon_{name}")
        group.create_array(name, shape=(n, *shape), chunks=(50, *shape), dtype="f8", dimension_names=dims)[:] = (
            values.reshape(n, *shape)
        )
        parts.append(values)
    return path, np.hstack(parts)


def _config(path: Path, out: Path, kind: str, more: str = "") -> Path:
    config = out / f"{kind}.yaml"
    config.write_text(
        f"""source: {{path: {path}, variables: [sst, precip], samples: time}}
model: {{kind: {kind}, n_components: 2}}
output: {{directory: {out / kind}, state: true}}
{more}"""
    )
    return config


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(TITLES))
def test_a_run_has_scores_page_and_state_and_agrees_with_its_data(
    kind: str, store: tuple[Path, NDArray[Any]], tmp_path: Path
) -> None:
    path, rows = store
    more = "" if kind == "factor_analysis" else "statistics: {sampling_errors: 10}\n"
    finished = sp.run(_config(path, tmp_path, kind, more))
    model: Any = finished.model
    direct: Any = {"mca": sp.MCA, "cca": sp.CCA, "factor_analysis": sp.FactorAnalysis}[kind](2)
    direct.fit(sp.open(path, variables=["sst", "precip"], samples="time"))
    result = finished.manifest["result"]
    assert type(model) is type(direct)
    assert np.allclose(result["strengths"], direct._model.strengths, rtol=1e-10, atol=0)
    assert (result["analysis"], finished.manifest["passes"]) == (kind, 1)
    assert ("strength_errors" in result) == (kind != "factor_analysis")
    scores: Any = zarr.open_group(finished.directory / "scores.zarr", mode="r")["scores"]
    weights = np.asarray(model._model.components)
    assert np.abs(scores[:] - (rows - rows.mean(0)) @ weights.T).max() <= 1e-9
    page = (finished.directory / "report.html").read_text()
    assert TITLES[kind] in page
    assert ("Pair 1, sst" in page) == ("30 of sst, 20 of precip" in page) == (kind != "factor_analysis")
    assert not any(text in page for text in OF_PCA)
    assert all(text in page.replace("\u00a0", " ") for text in WORDS[kind])
    if kind == "factor_analysis":
        first = np.sort(np.argsort(-model._model.communalities)[:30])[0]
        explained, unique = model._model.communalities[first], model._model.uniquenesses[first]
        assert f"<td>{explained:.3f}</td><td>{unique:.3f}</td><td>{explained / (explained + unique):.3f}</td>" in page
    verify_run(finished.directory).require()
    again = type(model)(2).from_state(finished.directory)
    assert np.abs(again._model.strengths - model._model.strengths).max() <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(TITLES))
def test_the_command_says_what_was_found_and_another_run_takes_its_place(
    kind: str, store: tuple[Path, NDArray[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(store[0], tmp_path, kind, f"name: {kind}\n")
    quiet = ["--set", "output.report=false"]
    said = []
    for command in (
        ["run", str(config), *quiet],
        ["run", str(config), *quiet, "--set", "output.overwrite=true"],
        ["plan", str(config)],
    ):
        with pytest.raises(SystemExit, match="0"):
            main(command)
        said.append(capsys.readouterr().out)
    assert re.match(LINES[kind], said[0])
    plan = said[-1]
    assert f"{kind} is solved from it" in plan
    assert not re.search(r"^or |asked for by name", plan, re.MULTILINE)


@pytest.mark.slow
def test_a_run_rotates_factors_and_verify_agrees_with_them(store: tuple[Path, NDArray[Any]], tmp_path: Path) -> None:
    path, rows = store
    config = _config(path, tmp_path, "factor_analysis")
    finished = sp.run(config, overrides=["model.rotation=promax"])
    model: Any = sp.load(finished.directory)
    direct = sp.FactorAnalysis(2, rotation="promax").fit(rows)
    assert model.rotation == "promax"
    assert np.allclose(model.components_, direct.components_, atol=1e-8)
    assert np.allclose(model.correlation_, direct.correlation_, atol=1e-8)
    assert "Rotated by promax." in (finished.directory / "report.html").read_text()
    verify_run(finished.directory).require()


@pytest.mark.slow
def test_a_changed_result_is_noticed(store: tuple[Path, NDArray[Any]], tmp_path: Path) -> None:
    finished = sp.run(_config(store[0], tmp_path, "mca"))

    def change(attributes: dict[str, Any]) -> None:
        attributes["analysis"]["strengths"][0] *= 1.01

    resealed(finished.directory / "model.zarr", change)
    assert any(check.holds is False for check in verify_run(finished.directory).checks)


def test_what_is_not_for_these_kinds_is_refused(store: tuple[Path, NDArray[Any]], tmp_path: Path) -> None:
    config = _config(store[0], tmp_path, "mca")
    with pytest.raises(ConfigError, match="no T² and Q"):
        sp.run(config, overrides=["output.diagnostics=true"])
    with pytest.raises(ConfigError, match="whiten"):
        sp.run(config, overrides=["model.whiten=true"])
    with pytest.raises(ParameterError, match="variables that come first"):
        sp.run(config, overrides=["model.first=precip"])
