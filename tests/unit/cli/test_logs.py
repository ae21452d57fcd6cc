"""Log lines of commands: levels, the file, the progress bar, and no secrets."""

from __future__ import annotations

import io
import json
import logging
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import StopSignalError, blocks_of, run_command
from stores import Command, config_text, write_store
from web import Web

import streampca as sp

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) +streampca[.\w]*: .+")


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "x.zarr")
    (tmp_path / "job.yaml").write_text(config_text("x.zarr", "job", output="overwrite: true, report: false"))
    return Command(capsys)


def test_the_file_has_the_phases_whatever_stderr_shows(call: Command) -> None:
    called = call("run", "job.yaml", "--quiet", "--log-file", "a.log")
    assert (called.status, called.err) == (0, "")
    lines = Path("a.log").read_text().splitlines()
    assert all(map(LINE.fullmatch, lines)), lines
    text = "\n".join(lines)
    for words in (
        "streampca run, version",
        "plan: <Plan covariance",
        "fit: pass over 400 samples",
        "fit: done",
        "run written",
    ):
        assert words in text
    assert "DEBUG" not in text
    call("run", "job.yaml", "--quiet", "--log-file", "a.log")
    assert Path("a.log").read_text().splitlines()[: len(lines)] == lines  # a later run appends
    assert Path("a.log").read_text().count("run written") == 2


@pytest.mark.slow
def test_levels_of_stderr(call: Command) -> None:
    assert "streampca." not in call("run", "job.yaml").err
    phases = call("run", "job.yaml", "-v").err
    assert " INFO    streampca.execution.drive: fit: done" in phases
    assert "DEBUG" not in phases
    assert " DEBUG   streampca.execution.leaf: leaf 0: block 0" in call("run", "job.yaml", "-vv").err
    call("run", "job.yaml", "-v", "--quiet").refused(
        2, "--quiet and --verbose contradict each other", "streampca run --help"
    )
    assert logging.getLogger("streampca").level == logging.NOTSET


def test_warnings_of_a_run_are_logged_and_printed_once(call: Command) -> None:
    called = call("run", "job.yaml", "-v", "--log-file", "a.log", "--set", "model.n_components=8", "--json")
    manifest = json.loads(called.out)
    text = Path("a.log").read_text()
    for level, sentences in (("WARNING", manifest["warnings"]), ("INFO   ", manifest["notes"])):
        for sentence in sentences:
            assert f" {level} streampca.logs: {manifest['name']}: {sentence}" in text
            assert sentence not in called.err


def test_the_error_that_ends_a_command_is_the_last_line(call: Command) -> None:
    call("run", "job.yaml", "--set", "source.path=gone.zarr", "--log-file", "a.log").refused(5, "gone.zarr")
    assert re.search(r" ERROR   streampca\.cli\.session: .*gone\.zarr", Path("a.log").read_text().splitlines()[-1])


def test_a_defect_leaves_its_traceback_in_the_file(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("https://me:hunter2@host/x")

    monkeypatch.setattr("streampca.runs.inspection.inspect_path", broken)
    assert call("inspect", "x.zarr", "--log-file", "a.log").status == 1
    text = Path("a.log").read_text()
    assert "    Traceback (most recent call last):" in text
    assert "hunter2" not in text


@pytest.mark.parametrize("name", ["x.zarr", "job.yaml", "x.zarr/zarr.json", "no/such/a.log"])
def test_a_file_that_is_no_log_is_left_alone(call: Command, name: str) -> None:
    before = Path(name).read_bytes() if Path(name).is_file() else None
    called = call("check", "job.yaml", "--log-file", name)
    assert called.status in (2, 6)
    assert called.err.count("\n") == 1
    assert (Path(name).read_bytes() if Path(name).is_file() else None) == before


def test_secrets_of_addresses_are_in_no_line(call: Command) -> None:
    with Web(Path()) as web:
        address = web.url.replace("://", "://me:hunter2@")
        called = call("inspect", f"{address}/gone.zarr?sig=tok3n", "-vv", "--log-file", "a.log")
    text = called.err + Path("a.log").read_text()
    assert "/gone.zarr" in text
    assert "hunter2" not in text
    assert "tok3n" not in text


def test_a_name_cannot_forge_a_line(call: Command) -> None:
    name = "a\n2026-01-01T00:00:00.000Z ERROR   streampca: lost\x1b[31m"
    called = call("inspect", name, "-v", "--log-file", "a.log")
    assert "\x1b" not in called.err + Path("a.log").read_text()
    assert not [line for line in Path("a.log").read_text().splitlines() if line.startswith("2026-01-01T00:00:00.000Z")]
    assert not [line for line in called.err.splitlines() if line.startswith("2026-01-01T00:00:00.000Z")]


class Terminal(io.StringIO):
    """A terminal that knows carriage return and line feed."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        lines: list[str] = []
        for text in self.getvalue().split("\n"):
            line = ""
            for part in text.split("\r"):
                line = part + line[len(part) :]
            lines.append(line.rstrip())
        return lines


def test_log_lines_stand_above_the_progress_bar(call: Command) -> None:
    terminal = Terminal()
    with redirect_stderr(terminal):
        assert run_command("run", "job.yaml", "-vv") == 0
    screen = terminal.screen()
    lines = [line for line in screen if " streampca." in line]
    assert len(lines) > 3
    assert all(re.match(r"\S+ (DEBUG|INFO|WARNING) +streampca\.[\w.]+: ", line) for line in lines), screen
    assert not [line for line in lines if "reading:" in line]
    assert re.search(r"reading: .* 25\.0[kK]/25\.0[kK] .*[KMG]?iB/s", terminal.getvalue()), "in binary units"


def test_progress_counts_features_where_wide_data_are_read_by_features(call: Command, tmp_path: Path) -> None:
    store = write_store(tmp_path / "wide.zarr", np.random.default_rng(0).standard_normal((30, 600)), chunks=(30, 200))
    seen: list[Any] = []
    pca = sp.PCA(2, progress=seen.append).fit(store)
    assert pca.solver_ == "gram"
    assert {(step.phase, step.n_samples, step.unit) for step in seen} == {
        ("fit", 600, "features"),
        ("components", 600, "features"),
    }
    called = call("run", "job.yaml", "--set", f"source.path={store}", "--set", "model.n_components=2")
    assert "600 of 600 features (100%)" in called.err


def test_rate_and_rest_of_a_resumed_fit_are_those_of_its_own_process(tmp_path: Path, all_checkpoints: None) -> None:
    rows, seen = np.random.default_rng(0).standard_normal((400, 5)), []

    def stop(progress: Any) -> None:
        if progress.rows >= 300:
            raise StopSignalError(15)

    with blocks_of(20):
        with pytest.raises(StopSignalError):
            sp.PCA(2, checkpoint=tmp_path / "kept", progress=stop).fit(rows)
        sp.PCA(2, checkpoint=tmp_path / "kept", progress=seen.append).fit(rows)
    last = seen[-1]
    assert 0 < last.rows_before < last.rows == 400
    assert last.bytes_before == last.rows_before * 40
    assert last.bytes_per_second == pytest.approx((400 - last.rows_before) * 40 / last.seconds)
    assert all(each.seconds_left == 0 for each in seen if each.rows in (last.rows_before, 400))
