"""The JSON Schema of configuration files accepts the files that are accepted and refuses those that are refused."""

from __future__ import annotations

import inspect
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from facade import run_command
from stores import Command

import streampca as sp
from scripts import SCRIPTS, run

CONFIGS = sorted((SCRIPTS.parent / "configs").glob("*.yaml"))


def loaded(text: str) -> Any:
    """Return what a file of YAML 1.2 says, with a reader of 1.1, to which a power of ten has a sign."""
    return yaml.safe_load(re.sub(r"(\d\.\d+e)(\d)", r"\1+\2", text))


def _schema() -> dict[str, Any]:
    with redirect_stdout(io.StringIO()) as printed:
        assert run_command("schema") == 0
    found: dict[str, Any] = json.loads(printed.getvalue())
    return found


SCHEMA = _schema()
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "object": (dict,),
    "array": (list,),
}


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Tell whether `value` is valid; knows the keywords that the schema uses."""
    if "$ref" in schema:
        return fits(value, SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema or "oneOf" in schema:
        n_fitting = sum(fits(value, each) for each in schema.get("anyOf", schema.get("oneOf")))
        return n_fitting >= 1 if "anyOf" in schema else n_fitting == 1
    if "type" in schema and type(value) not in _TYPES[schema["type"]]:
        return False
    good = value in schema.get("enum", [value]) and value == schema.get("const", value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        good = good and schema.get("minimum", value) <= value <= schema.get("maximum", value)
        good = good and value > schema.get("exclusiveMinimum", value - 1)
        good = good and value < schema.get("exclusiveMaximum", value + 1)
    if isinstance(value, str):
        good = good and re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        good = good and len(value) >= schema.get("minItems", 0) and all(fits(v, schema["items"]) for v in value)
    if isinstance(value, dict) and "properties" in schema:
        good = good and set(schema.get("required", ())) <= set(value) <= set(schema["properties"])
        good = good and all(fits(each, schema["properties"][key]) for key, each in value.items())
    return good


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configurations_of_the_repository_fit(path: Path) -> None:
    assert fits(loaded(path.read_text()), SCHEMA)


@pytest.mark.parametrize(
    "text",
    [
        "source: {path: x}",
        "source: {path: x, variables: [u, v], samples: time, features: null, mask: observed, orientation: null}",
        "{source: {path: x}, model: {n_components: 0.95, pilot: auto, tolerance: null}, resources: {memory: 2GiB}}",
        "{source: {path: x}, model: {n_components: {threshold: 0.001}, sketch_size: 40, forgetting: 0.5}, seed: 3}",
        "{source: {path: x}, model: {kind: kernel_pca, kernel: rbf, sampling: [1, 2]}}",
        "{source: {path: x}, model: {kind: kernel_pca, kernel: [rbf, {name: poly, degree: 2}]}, cluster: {kind: local}}",
    ],
)
def test_valid_file_fits(text: str, tmp_path: Path) -> None:
    assert fits(yaml.safe_load(text), SCHEMA)
    (tmp_path / "c.yaml").write_text(text)
    assert run_command("check", tmp_path / "c.yaml") == 0


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "source: {path: x, samples: []}",
        "{source: {path: x}, modle: {}}",
        "{source: {path: x}, model: {solver: svd}}",
        "{source: {path: x}, model: {n_components: 0}}",
        "{source: {path: x}, model: {pilot: -1}}",
        "{source: {path: x}, model: {forgetting: 0.0}}",
        "{source: {path: x}, model: {method: nystrom}}",
        "{source: {path: x}, model: {kind: kernel_pca, kernel: []}}",
        "{source: {path: x}, preprocess: {center: 1}}",
        "{source: {path: x}, cluster: {kind: cloud}}",
    ],
)
def test_invalid_file_does_not_fit(text: str, tmp_path: Path) -> None:
    assert not fits(yaml.safe_load(text), SCHEMA)
    (tmp_path / "c.yaml").write_text(text)
    assert run_command("check", tmp_path / "c.yaml") == 2


@pytest.mark.parametrize("estimator", [sp.PCA, sp.KernelPCA])
def test_every_parameter_has_its_sentence_and_default(estimator: Any) -> None:
    model = SCHEMA["$defs"][f"{estimator.__name__}Config"]["properties"]
    preprocess = SCHEMA["$defs"]["PreprocessConfig"]["properties"]
    elsewhere = {"memory", "device", "random_state", "checkpoint", "progress", "sample_weight"}
    for name, parameter in inspect.signature(estimator).parameters.items():
        entry = model.get(name, preprocess.get(name))
        if entry is None:
            assert name in elsewhere | {"landmarks", "missing_value", "sampling_errors"}, name
            continue
        assert entry["description"].endswith(".")
        if name in ("kernel", "n_components"):
            continue
        assert entry["default"] == parameter.default, name


def test_command_prints_the_schema_or_writes_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = Command(capsys)
    assert call("schema", "--out", tmp_path / "schema.json").status == 0
    assert json.loads((tmp_path / "schema.json").read_text()) == SCHEMA
    assert call("schema", "--out", tmp_path / "nowhere" / "schema.json").status != 1


@pytest.mark.lint
def test_reference_page_is_up_to_date() -> None:
    done = run(SCRIPTS / "reference.py", "--check")
    assert done.status == 0, done.stderr
