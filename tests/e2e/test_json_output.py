"""Every command with --json prints one object with the documented keys, for results and for errors, and nothing else on stdout."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import cli, impatient
from stores import REPOSITORY, Command, make_values, write_store

PAGE = REPOSITORY / "docs" / "reference" / "json.md"
TYPES = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
ROW = re.compile(r"^\| (`.*?`) \| (.*?) \| .* \|$", re.MULTILINE)

Keys = dict[str, tuple[tuple[type, ...], bool]]


def documented() -> dict[str, Keys]:
    """Return the tables of the page: for each key its types, and whether it is always there."""
    tables = {}
    for name, text in re.findall(r"<!-- keys: (.*?) -->\n\n(.*?)(?=\n\n[^|]|\Z)", PAGE.read_text(), re.DOTALL):
        keys: Keys = {}
        for names, kind in ROW.findall(text):
            kinds, _, optional = kind.partition(", ")
            types = tuple(each for word in kinds.split(" or ") for each in TYPES[word])
            keys |= dict.fromkeys(re.findall(r"`(.*?)`", names), (types, optional != "optional"))
        tables[name] = keys
    return tables


TABLES = documented()


def require_documented(document: dict[str, Any], name: str) -> None:
    """Fail unless `document` has exactly the keys and types of a table."""
    keys = TABLES[name]
    assert document.keys() - {"format_version"} <= keys.keys()
    assert {key for key, (_, always) in keys.items() if always} <= document.keys()
    for key, value in document.items():
        if key in keys:
            assert type(value) in keys[key][0], (key, value)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a store, labels of groups and configurations."""
    directory = tmp_path_factory.mktemp("json")
    write_store(directory / "x.zarr")
    np.save(directory / "groups.npy", np.arange(len(make_values())) % 2)
    configurations = {
        "one": "model: {n_components: 2}",
        "kernel": "model: {kind: kernel_pca, n_components: 2, n_landmarks: 20}",
        "several": "models: {a: {n_components: 2}, b: {n_components: 3}}",
        "groups": "model: {n_components: 2, group_by: groups.npy}",
    }
    for name, model in configurations.items():
        output = f"output: {{directory: {name}, report: false, overwrite: true, state: {str(name == 'one').lower()}}}"
        (directory / f"{name}.yaml").write_text(f"source: {{path: x.zarr}}\n{model}\n{output}\n")
    return directory


@pytest.fixture
def call(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(place)
    return Command(capsys)


RESULTS = [
    ("run one.yaml", "run"),
    ("run kernel.yaml", "run"),
    ("run several.yaml", "run of several models"),
    ("run groups.yaml", "run of groups"),
    ("plan one.yaml", "plan"),
    ("plan one.yaml --set model.solver=sketch", "plan"),
    ("plan kernel.yaml", "plan"),
    ("plan several.yaml", "plan of several models"),
    ("plan groups.yaml", "plan"),
    ("check several.yaml", "check"),
    ("schema", "schema"),
    ("schema --out schema.json", "schema"),
    ("verify one", "verify"),
    ("verify kernel", "verify"),
    ("verify several", "verify of several models"),
    ("verify groups", "verify"),
    ("report one", "report"),
    ("update one", "update"),
    *(
        (f"inspect {path}", "inspect")
        for path in (
            *("x.zarr", "builtin:iris", "groups/models", "one.yaml", "one", "kernel", "several", "groups"),
            *("one/model.zarr", "kernel/model.zarr", "one/scores.zarr"),
        )
        if path != "groups/models"
    ),
    ("fingerprint x.zarr", "fingerprint"),
    ("transform one x.zarr scores.zarr", "transform"),
    ("merge one --out merged.zarr", "merge"),
    ("export one one.npz", "export"),
]
"""Calls in an order in which each finds what it needs."""


@pytest.mark.slow
def test_every_result_has_the_documented_keys(call: Command) -> None:
    for command, name in RESULTS:
        called = call(*shlex.split(command), "--json", "--quiet")
        assert (called.status, called.err) == (0, ""), command
        document = json.loads(called.out)
        assert document["format_version"] == 1, command
        require_documented(document, name)
    assert {command.split()[0] for command, _ in RESULTS} == set(cli.commands)
    assert set(TABLES) == {name for _, name in RESULTS} | {"error"}


ERRORS = [
    ("run bad.yaml", 2, "ConfigError"),
    ("run one.yaml --set resources.memory=64MiB", 7, "PlanError"),
    ("plan missing.yaml", 2, "ConfigError"),
    ("check one.yaml --set seed=-1", 2, "ConfigError"),
    ("schema --out /nowhere/schema.json", 6, "OutputError"),
    ("verify nothing", 5, "ModelError"),
    ("report nothing", 5, "ModelError"),
    ("update nothing", 5, "ModelError"),
    ("inspect nothing", 5, "DataError"),
    ("fingerprint nothing", 5, "DataError"),
    ("transform nothing x.zarr out", 5, "ModelError"),
    ("merge nothing --out out", 5, "ModelError"),
    ("export nothing out.npz", 5, "ModelError"),
    ("inspect", 2, "UsageError"),
    ("run one.yaml --fresh --resume", 2, "ConfigError"),
    ("run --sett a=b one.yaml", 2, "UsageError"),
    ("rnu one.yaml", 2, "UsageError"),
]


@pytest.mark.parametrize(("command", "status", "kind"), ERRORS)
def test_every_error_is_an_object_with_the_documented_keys(
    command: str, status: int, kind: str, call: Command, place: Path
) -> None:
    called = call(*shlex.split(command), "--json")
    document = json.loads(called.out)
    assert document.keys() == {"format_version", "error"}
    require_documented(document["error"], "error")
    error = document["error"]
    assert (called.status, error["exit_status"], error["kind"]) == (status, status, kind)
    assert called.err == f"streampca: error: {error['message']}\n"
    assert error["hint"]


def test_every_command_has_an_error_among_these() -> None:
    assert {command.split()[0] for command, _, _ in ERRORS} - {"rnu"} == set(cli.commands)


def test_verification_that_fails_prints_its_result_with_the_error(call: Command, place: Path) -> None:
    call("run", "one.yaml", "--quiet", "--set", "output.directory=changed")
    manifest = place / "changed" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["result"]["total_variance"] *= 1.5
    manifest.write_text(json.dumps(document))
    called = call("verify", "changed", "--quiet", "--json")
    result = json.loads(called.out)
    error = result.pop("error")
    require_documented(result, "verify")
    require_documented(error, "error")
    assert (called.status, error["exit_status"], result["holds"]) == (5, 5, False)


def test_a_defect_is_an_internal_error(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("something")

    monkeypatch.setattr("streampca.runs.inspection.inspect_path", broken)
    called = call("inspect", "x.zarr", "--json")
    error = json.loads(called.out)["error"]
    assert (called.status, error["exit_status"], error["kind"]) == (1, 1, "InternalError")


def test_secrets_of_urls_are_in_no_error(call: Command) -> None:
    with impatient():
        called = call("inspect", "http://me:hunter2@127.0.0.1:1/x.zarr?key=tok3n", "--json")
    assert called.status == 5
    assert "hunter2" not in called.out + called.err
    assert "tok3n" not in called.out + called.err
