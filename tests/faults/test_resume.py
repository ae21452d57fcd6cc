"""Runs that are killed, stopped, damaged or changed: the bits of an undisturbed run, or a named error; little is read twice."""

from __future__ import annotations

import shutil
import signal
import time

import driver
import numpy as np
import psutil
import pytest
from facade import CheckpointDirectory, inspect_path
from forks import server
from slow_run import SlowRun, digest_of_run
from stores import Command, config_text, make_values, picture, write_store
from strategies import in_depth

import streampca as sp
from streampca.errors import OutputError


def _write(directory, solver="covariance", output="report: false"):
    if not (directory / "x.zarr").exists():
        driver.write_input(directory / "x.zarr")
    driver.write_config(directory, solver, output=output)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return, by solver, the digest of a run that nothing happened to, and how many reads it made."""
    found = {}

    def of(solver):
        if solver not in found:
            directory = tmp_path_factory.mktemp("undisturbed") / "job"
            directory.mkdir()
            _write(directory, solver)
            run = SlowRun(directory, delay=0.0)
            assert run.finish() == (0, "")
            assert driver.beside(directory) == ["out"]
            found[solver] = digest_of_run(directory / "out"), len(run.reads)
        return found[solver]

    return of


@pytest.mark.deep
@pytest.mark.parametrize("number", range(len(driver.MODELS)), ids=driver.MODELS)
def test_a_run_that_is_killed_again_and_again_has_the_bits_of_one_that_was_not(number):
    score = driver.run(3, seed=number)
    score.require_clean()
    assert score.survived == score.injected >= 3


@pytest.mark.slow
@pytest.mark.deep(keep=["nystrom"])
@pytest.mark.parametrize("solver", ["covariance", "qr", "adaptive", "nystrom"])
def test_an_undisturbed_run_reads_each_chunk_once_in_each_reading(tmp_path, solver):
    known = driver.Jobs(tmp_path, {}).undisturbed(solver)
    assert len(known.reads) == driver.N_ROWS // driver.CHUNK
    assert set(known.reads.values()) == {known.passes}
    assert sum(chunks for chunks, _ in known.told.values()) == known.reads.total()


@pytest.mark.slow
@pytest.mark.distributed
def test_a_driver_that_is_killed_leaves_no_worker_behind_and_its_run_goes_on(tmp_path):
    values = make_values(200_000, 32)
    write_store(tmp_path / "x.zarr", values, chunks=(1_000, 32), chain="gzip")
    lines = ["model: {n_components: 3, solver: covariance}"]
    cluster = "cluster: {kind: local, n_workers: 2, threads_per_worker: 1}"
    text = config_text("x.zarr", "out", *lines, cluster, output="scores: false, report: false")
    (tmp_path / "c.yaml").write_text(text)
    process = server().start("forks:command", tmp_path, arguments=["run", "c.yaml", "--quiet"])
    deadline = time.monotonic() + 60
    while not any(tmp_path.glob("out.part-*/plan.json")):  # written when the workers are there
        assert process.wait(0.02) is None, process.said
        assert time.monotonic() < deadline
    workers = psutil.Process(process.pid).children(recursive=True)
    assert len(workers) >= 2
    assert process.end() == -signal.SIGKILL
    assert not psutil.wait_procs(workers, timeout=10)[1]
    (tmp_path / "c.yaml").write_text(text.replace(cluster, ""))  # where the work is done is not compared
    again = server().start("forks:command", tmp_path, arguments=["run", "c.yaml", "--quiet"])
    assert again.wait(120) == 0, again.said
    assert driver.beside(tmp_path) == ["out"]
    expected = sp.PCA(3, solver="covariance").fit(tmp_path / "x.zarr")
    found = sp.load(tmp_path / "out")
    assert np.array_equal(found.components_, expected.components_)
    assert np.array_equal(found.explained_variance_, expected.explained_variance_)


@pytest.mark.slow
def test_a_finished_reading_is_not_read_again_and_a_finished_run_reads_nothing(tmp_path, undisturbed):
    directory = tmp_path / "job"
    directory.mkdir()
    _write(directory)
    run = SlowRun(directory)
    digest, n_reads = undisturbed("covariance")
    assert run.kill_after(int(0.6 * n_reads))
    run.forget_reads()
    assert run.finish("--resume")[0] == 0
    assert len(run.reads) < 0.5 * n_reads  # what is left of the scores
    assert digest_of_run(directory / "out") == digest
    run.forget_reads()
    before = picture(directory)
    assert run.finish("--resume") == (0, "")
    assert run.reads == []
    assert picture(directory) == before
    status, said = run.finish()
    assert status == 6
    assert "finished run already" in said


@pytest.mark.deep
def test_what_is_left_of_a_chunk_that_was_being_written_does_not_get_into_the_result(tmp_path, undisturbed):
    directory = tmp_path / "job"
    directory.mkdir()
    _write(directory)
    digest, n_reads = undisturbed("covariance")
    run = SlowRun(directory)
    assert run.kill_after(int(0.8 * n_reads))
    (part,) = directory.glob("out.part-*")
    (part / "scores.zarr/scores/c/0/0.0123456789abcdef.partial").write_bytes(b"half a ch")
    assert run.finish("--resume")[0] == 0
    assert digest_of_run(directory / "out") == digest
    assert not list(directory.rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("part", [0.3, 0.8])
def test_a_signal_keeps_what_is_done_and_tells_the_command_that_goes_on(tmp_path, undisturbed, number, part):
    directory = tmp_path / "job"
    directory.mkdir()
    _write(directory)
    run = SlowRun(directory)
    digest, n_reads = undisturbed("covariance")
    process = run.until(int(part * n_reads))
    process.signal(number)
    assert process.wait(10) == 128 + number
    (line,) = process.said.splitlines()
    assert f"stopped by {number.name}: progress is kept in out.checkpoint" in line
    assert line.endswith("streampca -c --resume") or "--resume" in line
    assert [name.split("-")[0] for name in driver.beside(directory)] in (
        ["out.checkpoint"],
        ["out.checkpoint", "out.part"],
    )
    assert run.finish("--resume")[0] == 0
    assert digest_of_run(directory / "out") == digest
    assert len(run.reads) - n_reads <= 6  # blocks in hand, and those read ahead of them


@pytest.fixture
def stopped(tmp_path):
    """Return a directory in which a run was killed midway through its first reading, and the run."""
    directory = tmp_path / "job"
    directory.mkdir()
    _write(directory)
    run = SlowRun(directory)
    assert run.kill_after(80)
    assert (directory / "out.checkpoint").is_dir()
    return directory, run


@pytest.mark.slow
def test_damage_costs_a_checkpoint_or_all_of_them_and_never_the_numbers(stopped, undisturbed, tmp_path):
    directory, run = stopped
    digest, _ = undisturbed("covariance")
    whole = tmp_path / "whole"
    shutil.copytree(directory, whole)
    place = whole / "out.checkpoint"
    told = inspect_path(str(place))
    assert told["kind"] == "checkpoint"
    assert "fit" in told["readings"]
    found, damaged = CheckpointDirectory(place).newest()
    assert found is not None
    assert damaged == []
    ledgers = sorted(place.glob("ledger-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    assert len(ledgers) == 2
    states = sorted(place.glob("state-*.bin"))
    damages = ([ledgers[-1]], [states[-1]], ledgers, [*states])
    for number, victims in in_depth([*enumerate(damages)][1::2], [*enumerate(damages)]):
        shutil.rmtree(directory)
        shutil.copytree(whole, directory)
        for victim in victims:
            path = directory / "out.checkpoint" / victim.name
            data = bytearray(path.read_bytes())
            data[len(data) * (number + 1) // 6] ^= 4
            path.write_bytes(data[: len(data) - (number == 1)])
        status, said = run.finish()
        assert status == 0, said
        assert "passed over" in said, (number, said)
        assert ("starting over" in said) == (len(victims) > 1)
        assert digest_of_run(directory / "out") == digest, number
        assert driver.beside(directory) == ["out"]


@pytest.mark.slow
def test_what_changed_is_named_and_fresh_starts_over(stopped, undisturbed):
    directory, run = stopped
    kept = picture(directory / "out.checkpoint")
    for words, change in (
        ("preprocess.scale was false and is true", ["--set", "preprocess.scale=true"]),
        ("seed was 0 and is 1", ["--set", "seed=1"]),
        ("model.n_components was 3 and is 4", ["--set", "model.n_components=4"]),
    ):
        status, said = run.finish(*change)
        assert status == 6
        assert words in said
        assert "--fresh" in said
        assert picture(directory / "out.checkpoint") == kept
    chunk = directory / "x.zarr/c/3/0"
    content = chunk.read_bytes()
    chunk.write_bytes(content)  # the same bytes at another time: not to be told from others without reading them
    status, said = run.finish("--resume")
    assert status == 6
    assert "the input has changed" in said
    # Where and by how many it is done does not matter, and is not compared; this input has changed all the same.
    assert "resources" not in run.finish("--set", "resources.threads=1")[1]
    status, said = run.finish("--fresh")
    assert (status, said) == (0, "")
    assert digest_of_run(directory / "out") == undisturbed("covariance")[0]
    assert driver.beside(directory) == ["out"]


@pytest.mark.slow
def test_threads_may_change_and_versions_may_not(stopped, undisturbed):
    directory, run = stopped
    shutil.copytree(directory / "out.checkpoint", directory / "kept")
    assert run.finish("--set", "resources.threads=1")[0] == 0
    assert digest_of_run(directory / "out") == undisturbed("covariance")[0]
    place = CheckpointDirectory(directory / "kept")
    data = place.newest()[0]
    data["identity"]["version of numpy"] = "1.0"
    data["generation"] += 1
    place.write(data, {})
    shutil.rmtree(directory / "out")
    (directory / "kept").rename(directory / "out.checkpoint")
    status, said = run.finish()
    assert status == 6
    assert "version of numpy was 1.0 and is" in said


def test_resuming_needs_a_checkpoint_and_nothing_foreign_is_touched(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _write(tmp_path)
    command = Command(capsys)
    command.quietly("run", "c.yaml", "--resume").refused(2, "out.checkpoint", "without --resume")
    foreign = tmp_path / "out.checkpoint"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    before = picture(tmp_path)
    for flag in ((), ("--fresh",), ("--resume",)):
        command.quietly("run", "c.yaml", *flag).refused(6, "not a checkpoint of streampca")
        assert picture(tmp_path) == before


class _PowerCutError(Exception):
    """Stops a fit midway, as a power cut would."""


@pytest.mark.slow
def test_a_fit_in_python_goes_on_from_its_directory(tmp_path, all_checkpoints, blocks_of):

    blocks_of(100)
    values = make_values(120_000, 16)
    expected = sp.PCA(3, solver="covariance").fit(values)
    seen = []

    def stop_late(step):
        seen.append(step.rows)
        if step.rows > 90_000:
            raise _PowerCutError

    place = tmp_path / "kept"
    with pytest.raises(_PowerCutError):
        sp.PCA(3, solver="covariance", checkpoint=place, progress=stop_late).fit(values)
    assert place.is_dir()
    other = values.copy()
    other[7, 7] += 1
    with pytest.raises(OutputError, match="the input has changed"):
        sp.PCA(3, solver="covariance", checkpoint=place).fit(other)
    with pytest.raises(OutputError, match="scale was False and is True"):
        sp.PCA(3, solver="covariance", scale=True, checkpoint=place).fit(values)
    seen.clear()
    again = sp.PCA(3, solver="covariance", checkpoint=place, progress=lambda step: seen.append(step.rows)).fit(values)
    assert seen[0] > 40_000  # counted from where it stopped
    assert seen[-1] == 120_000
    assert np.array_equal(again.components_, expected.components_)
    assert np.array_equal(again.explained_variance_, expected.explained_variance_)
    assert again.bytes_read_ == expected.bytes_read_
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="checkpoint=7"):
        sp.PCA(3, checkpoint=7).fit(values[:50])


@pytest.mark.slow
def test_both_readings_of_wide_data_go_on(tmp_path, all_checkpoints, blocks_of):

    blocks_of(2000)
    write_store(tmp_path / "x.zarr", make_values(30, 200_000), chunks=(30, 2000))
    expected = sp.PCA(4, solver="gram").fit(tmp_path / "x.zarr")
    stops, seen = [("fit", 100_000), ("components", 100_000), ("components", 150_000)], []

    def stop_late(step):
        seen.append((step.phase, step.rows))
        if stops and step.phase == stops[0][0] and step.rows > stops[0][1]:
            raise _PowerCutError

    while stops:
        with pytest.raises(_PowerCutError):
            sp.PCA(4, solver="gram", checkpoint=tmp_path / "kept", progress=stop_late).fit(tmp_path / "x.zarr")
        stops.pop(0)
    kept = [entry["key"] for entry in CheckpointDirectory(tmp_path / "kept").newest()[0]["readings"]]
    assert kept == ["fit", "components"]
    seen.clear()
    again = sp.PCA(4, solver="gram", checkpoint=tmp_path / "kept", progress=stop_late).fit(tmp_path / "x.zarr")
    assert seen[0] == ("fit", 200_000)
    assert seen[1][0] == "components"
    assert seen[1][1] > 50_000
    assert np.array_equal(again.components_, expected.components_)
    assert np.array_equal(again.explained_variance_, expected.explained_variance_)
    assert again.bytes_read_ == expected.bytes_read_


@pytest.mark.slow
def test_a_matrix_on_disk_goes_on_between_and_within_its_groups(tmp_path, monkeypatch, all_checkpoints):

    values = make_values(600, 2100)
    write_store(tmp_path / "x.zarr", values, chunks=(20, 2100))
    monkeypatch.setattr("streampca.solvers.fit.process_bytes", lambda: 150 * 2**20)
    made = {"n_components": 3, "solver": "covariance", "memory": 220 * 2**20}
    plan = sp.PCA(**made).plan(tmp_path / "x.zarr")
    assert plan.tile_groups >= 2
    expected = sp.PCA(**made).fit(tmp_path / "x.zarr")
    rows = plan.n_samples * plan.tile_groups

    def stop_late(step):
        if step.rows > 0.6 * rows:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.PCA(**made, checkpoint=tmp_path / "kept", progress=stop_late).fit(tmp_path / "x.zarr")
    assert (tmp_path / "kept").is_dir()
    again = sp.PCA(**made, checkpoint=tmp_path / "kept").fit(tmp_path / "x.zarr")
    assert np.array_equal(again.components_, expected.components_)
    assert again.bytes_read_ == expected.bytes_read_
