"""Sampling errors of runs that write scores: from the reading that writes them, with the same bits however it is divided."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import StopSignalError
from stores import config_text, write_store

import streampca as sp
from streampca.errors import OutputError
from streampca.solvers.covariance import CovarianceSolver

pytestmark = pytest.mark.numerical

N, D, CHUNK = 20_000, 6, 500
GROUPS = "statistics: {sampling_errors: 20}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(3)
    turn = np.linalg.qr(rng.standard_normal((D, D)))[0]
    rows = rng.standard_normal((N, D)) * np.sqrt([32.0, 12.0, 4.0, 1.0, 0.3, 0.1]) @ turn + 5.0
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "w.npy", rng.integers(0, 4, N).astype(float))
    return write_store(folder / "x.zarr", rows, chunks=(CHUNK, D))


@pytest.fixture(autouse=True)
def small_blocks(blocks_of: Any) -> None:
    """Divide the rows into 40 blocks, which scores are written in ten leaves of."""
    blocks_of(CHUNK)


def configured(store: Path, folder: Path, *lines: str, output: str = "report: false") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "c.yaml"
    path.write_text(config_text(store, folder / "run", GROUPS, *lines, output=f"{output}, overwrite: true"))
    return path


def errors_of(run: Any) -> dict[str, Any]:
    errors: dict[str, Any] = run.model.sampling_error_.to_dict()
    return errors


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    ("lines", "output"),
    [
        (["model: {n_components: 3}"], "report: false"),
        (["model: {n_components: 3}"], "report: false, diagnostics: true"),
        (["model: {n_components: 6, whiten: true}", "preprocess: {scale: true}"], "report: false"),
        (["model: {n_components: 3, solver: adaptive}", "preprocess: {sample_weight: WEIGHTS}"], "report: false"),
        (
            [
                "model: {kind: kernel_pca, n_components: 3, method: nystrom, n_landmarks: 30, kernel: {name: rbf, gamma: 0.01}}"
            ],
            "report: false",
        ),
    ],
)
def test_errors_are_those_of_a_reading_of_their_own(
    store: Path, tmp_path: Path, lines: list[str], output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CovarianceSolver, "plan_with_groups", lambda *_, **options: None)
    lines = [line.replace("WEIGHTS", str(store.parent / "w.npy")) for line in lines]
    written = errors_of(sp.run(configured(store, tmp_path / "a", *lines, output=output)))
    read = errors_of(sp.run(configured(store, tmp_path / "b", *lines, output="report: false, scores: false")))
    assert (written.pop("method"), read.pop("method")) == ("scores", "reading")
    for name, values in written.items():
        assert np.allclose(values, read[name], rtol=1e-8), name


def test_the_source_is_read_as_often_as_without_sampling_errors(
    store: Path, tmp_path: Path, opened: Counter[str]
) -> None:
    run = sp.run(configured(store, tmp_path, "model: {n_components: 3}"))
    counts = {count for path, count in opened.items() if "/c/" in path and str(store) in path}
    assert counts == {2}
    assert run.manifest["passes"] == 1
    assert "sampling errors by 20 groups of rows: from the reading that writes the scores" in run.manifest["notes"]


@pytest.mark.deep
@pytest.mark.slow
def test_threads_change_no_bit(store: Path, tmp_path: Path) -> None:
    one, four = (
        errors_of(sp.run(configured(store, tmp_path, f"resources: {{threads: {threads}, memory: 2GiB}}")))
        for threads in (1, 4)
    )
    assert one == four


@pytest.mark.slow
@pytest.mark.distributed
def test_workers_of_a_cluster_give_the_bits_of_threads(store: Path, tmp_path: Path, client: Any) -> None:
    lines = ("model: {n_components: 3}", f"preprocess: {{sample_weight: '{store.parent / 'w.npy'}'}}")
    expected = errors_of(sp.run(configured(store, tmp_path, *lines)))
    with client.as_current():
        assert errors_of(sp.run(configured(store, tmp_path, *lines))) == expected


@pytest.mark.slow
def test_a_run_that_was_stopped_while_scores_were_written_ends_with_the_same_bits(
    store: Path, tmp_path: Path, opened: Counter[str], stop_at_scores: Any
) -> None:
    expected = errors_of(sp.run(configured(store, tmp_path, "checkpoint: {every: 1ms}")))
    (tmp_path / "other").mkdir()
    config = configured(store, tmp_path / "other", "checkpoint: {every: 1ms}")

    def stop(progress: Any) -> None:
        if progress.phase == "scores" and progress.rows > N // 2:
            raise StopSignalError(15)

    with pytest.raises(StopSignalError):
        sp.run(config, progress=stop)
    opened.clear()
    assert errors_of(sp.run(config, resume=True)) == expected
    assert 0 < sum(count for path, count in opened.items() if "/c/" in path and str(store) in path) < N // CHUNK


def test_a_stopped_run_is_not_resumed_without_the_scores_that_its_errors_come_from(
    store: Path, tmp_path: Path, stop_at_scores: Any
) -> None:
    config = configured(store, tmp_path, "checkpoint: {every: 1ms}")
    with pytest.raises(StopSignalError):
        sp.run(config, progress=stop_at_scores)
    with pytest.raises(OutputError, match=r"output\.scores was true and is false"):
        sp.run(config, overrides=["output.scores=false"], resume=True)


@pytest.mark.slow
def test_models_from_one_reading_have_the_errors_of_single_runs(store: Path, tmp_path: Path) -> None:
    single = errors_of(sp.run(configured(store, tmp_path / "a", "preprocess: {scale: true}")))
    models = "models: {raw: {}, z: {preprocess: {scale: true}}}"
    many: Any = sp.run(configured(store, tmp_path / "b", models))
    assert errors_of(many.runs["z"]) == single
    assert many.manifest["passes"] == 1
