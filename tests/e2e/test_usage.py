"""The command used wrongly, or on things of another kind: one line, the status of the table, and nothing on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from facade import run_command
from stores import make_values

import streampca as sp


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a directory with one of each: array, group, model, kernel model, scores, run, configuration, text."""
    directory = tmp_path_factory.mktemp("usage")
    rows = make_values(40, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        np.save("x.npy", rows)
        group = zarr.open_group("group.zarr", mode="w")
        group.create_array("x", data=rows, chunks=(10, 4))
        group.create_array("y", data=rows.astype(np.float32), chunks=(20, 2))
        group.create_array("deep/time", data=np.arange(40), chunks=(40,))
        pca = sp.PCA(2).fit(rows)
        pca.save("model.zarr")
        pca.transform_to(rows, "scores.zarr")
        sp.KernelPCA(2).fit(rows).save("kernel.zarr")
        Path("text.txt").write_text("hello")
        Path("texts").mkdir()
        Path("texts", "text.txt").write_text("hello")
        Path("run.yaml").write_text(
            "source: {path: x.npy}\nmodel: {n_components: 2}\noutput: {directory: run, report: false}\n"
        )
        Path("bad.yaml").write_text("source: {pth: x.npy}\n")
        sp.run("run.yaml")
        yield directory


@pytest.fixture(autouse=True)
def _here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("foo", 2, "No such command 'foo'; see streampca --help"),
        ("run", 2, "Missing argument 'CONFIG'; see streampca run --help"),
        ("run gone.yaml", 2, "gone.yaml: No such file"),
        ("run .", 2, "Is a directory"),
        ("run x.npy", 2, "not UTF-8 text"),
        ("run model.zarr", 2, "Is a directory"),
        ("run run", 2, "Is a directory"),
        ("run bad.yaml", 2, "did you mean path"),
        ("plan text.txt", 2, "found the text 'hello'"),
        ("check --bogus run.yaml", 2, "No such option"),
        ("inspect gone", 5, "gone: no such file or directory"),
        ("inspect gone.npy", 5, "gone.npy: no such file"),
        ("inspect text.txt", 5, "text.txt is a file that cannot be read as data: it is text, which is not supported"),
        ("inspect texts", 5, "is not a zarr store"),
        ("inspect bad.yaml", 2, "did you mean path"),
        ("inspect group.zarr --array z", 5, "has no array 'z'"),
        ("inspect builtin:nothing", 5, "expected one of photo-patches"),
        ("transform gone x.npy out", 5, "gone: no such model"),
        ("transform x.npy x.npy out", 5, "x.npy is a file: expected a model"),
        ("transform scores.zarr x.npy out", 5, "is not a streampca model"),
        ("transform group.zarr x.npy out", 5, "is not a streampca model"),
        ("transform model.zarr gone out", 5, "gone: no such file"),
        ("transform model.zarr model.zarr out", 5, "model.zarr is a model of streampca: expected data"),
        ("transform model.zarr run out", 5, "is not a zarr store"),
        ("transform model.zarr x.npy model.zarr", 6, "is not a store of scores of streampca"),
        ("transform model.zarr x.npy scores.zarr", 6, "holds a finished store of scores already"),
        ("fingerprint model.zarr", 5, "is a model of streampca"),
        ("verify model.zarr", 5, "is not a finished run"),
        ("verify gone", 5, "is not a finished run"),
        ("report model.zarr", 5, "is not a finished run"),
        ("report text.txt", 5, "is not a finished run"),
        ("merge model.zarr --out out", 2, "holds no state"),
        ("merge kernel.zarr --out out", 2, "found KernelPCA"),
        ("merge gone --out out", 5, "gone: no such model"),
        ("publish model.zarr s3://a/b", 2, "No such command 'publish': it was removed; copy the directory"),
    ],
)
def test_wrong_usage_is_one_line_and_a_status(
    command: str, status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(*command.split()) == status
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("streampca: error: ")
    assert err.count("\n") == 1
    assert words in err
    assert not Path("out").exists()


def test_bare_command_prints_its_help_and_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command() == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("Usage: streampca")
    assert "5    input missing, damaged or not finite" in [line.strip() for line in lines]
    assert not any(line.endswith("...") for line in lines[1:])  # no sentence is cut off
    assert run_command("--help") == 0
    assert capsys.readouterr().out == err


@pytest.mark.parametrize(
    "command",
    [
        "check run.yaml",
        "plan run.yaml",
        *(f"inspect {name}" for name in ("x.npy", "group.zarr", "model.zarr", "kernel.zarr", "scores.zarr", "run")),
        *("inspect run.yaml", "inspect run/model.zarr", "inspect group.zarr --array deep/time"),
    ],
)
def test_json_alone_is_on_stdout(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(*command.split(), "--json") == 0
    out, err = capsys.readouterr()

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    assert isinstance(json.loads(out, parse_constant=refuse), dict)
    assert err == ""


def test_inspect_lists_the_arrays_of_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("inspect", "group.zarr", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "group"
    assert found["arrays"] == [
        {"name": "deep/time", "shape": [40], "dtype": "int64", "chunks": [40]},
        {"name": "x", "shape": [40, 4], "dtype": "float64", "chunks": [10, 4]},
        {"name": "y", "shape": [40, 4], "dtype": "float32", "chunks": [20, 2]},
    ]
    assert run_command("inspect", "group.zarr") == 0
    assert "x: 40 x 4, float64, chunks 10 x 4" in capsys.readouterr().out


def test_inspect_says_what_a_named_array_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("inspect", "group.zarr", "--array", "y", "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert (table["kind"], table["array"], table["shape"], table["dtype"]) == ("source", "y", [40, 4], "float32")
    assert run_command("inspect", "group.zarr", "--array", "deep/time", "--json") == 0
    axis = json.loads(capsys.readouterr().out)
    assert (axis["kind"], axis["shape"], axis["chunks"]) == ("array", [40], [40])
    assert "it cannot be read as a table" in axis["meaning"]
