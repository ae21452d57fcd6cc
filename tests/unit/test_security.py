"""What is read is data, never a program, and is checked: no pickle, models that were changed, names that hold commands."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from stores import Command, config_text, make_values, write_store

import streampca as sp
from streampca.errors import DataError, ModelError

PACKAGE = Path(sp.__file__).parent
_MODULES = {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal", "jsonpickle"}
_MESSAGES_OF_A_CLUSTER = {"execution/distributed/cluster.py", "execution/distributed/plugins.py"}
"""Messages of Dask are pickles and cannot be otherwise; files never are."""


@cache
def _modules() -> list[tuple[str, ast.Module]]:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 80
    return [(file.relative_to(PACKAGE).as_posix(), ast.parse(file.read_text())) for file in files]


def _imported(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".")}
        elif isinstance(node, ast.ImportFrom):
            found |= {*(node.module or "").split("."), *(alias.name for alias in node.names)}
    return found


def _dotted(function: ast.expr) -> str:
    """Return the name that is called, such as ``np.load``; what is called otherwise has none."""
    if isinstance(function, ast.Attribute):
        return f"{_dotted(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


@pytest.mark.lint
@pytest.mark.slow
def test_no_module_takes_pickles_or_programs_from_files():
    users = {name for name, tree in _modules() if _imported(tree) & _MODULES}
    assert users <= _MESSAGES_OF_A_CLUSTER
    for name, tree in _modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = _dotted(node.func)
            where = f"{name}:{node.lineno}: {called}"
            assert called not in ("eval", "exec", "compile", "__import__", "os.system", "os.popen"), where
            assert called not in ("yaml.load", "yaml.unsafe_load", "yaml.full_load", "np.loadtxt", "np.fromfile"), where
            options = {keyword.arg: keyword.value for keyword in node.keywords}
            if called in ("np.load", "numpy.load"):
                assert "allow_pickle" in options, where
            assert not ("allow_pickle" in options and ast.unparse(options["allow_pickle"]) != "False"), where
            assert not ("shell" in options and ast.unparse(options["shell"]) != "False"), where


class _Marks:
    """Makes a directory when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def _as_objects(path: Path, content: bytes) -> None:
    """Make the components of a model an array of objects that are unpickled when they are read."""
    components = path / "components"
    for file in sorted(components.rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    told = {"shape": [2, 4], "chunks": [2, 4], "dtype": "|O", "fill_value": None, "order": "C", "zarr_format": 2}
    (components / ".zarray").write_text(json.dumps({**told, "compressor": None, "filters": [{"id": "pickle"}]}))
    (components / "0.0").write_bytes(content)


def test_a_model_that_would_run_a_program_does_not(tmp_path, capsys):
    marker, command = tmp_path / "marker", Command(capsys)
    content = pickle.dumps(_Marks(marker))
    path = Path(sp.PCA(2).fit(make_values(30, 4)).save(tmp_path / "m.zarr"))
    _as_objects(path, content)
    (tmp_path / "m.pkl").write_bytes(content)
    np.save(tmp_path / "x.npy", np.array([_Marks(marker)], dtype=object), allow_pickle=True)
    for place in (path, tmp_path / "m.pkl"):
        with pytest.raises(ModelError):
            sp.load(place)
        command("inspect", place)
        command.quietly("transform", place, tmp_path / "x.npy", tmp_path / "out").refused(5)
    with pytest.raises(DataError, match=r"x\.npy"):
        sp.PCA(1).fit(tmp_path / "x.npy")
    command("report", tmp_path).refused(5)
    assert not marker.exists()
    pickle.loads(content)
    assert marker.exists()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(sp.PCA(3).fit(make_values(60, 5)).save(tmp_path / "m.zarr"))


SEAL = "seal"


def seal_of(attributes: dict[str, Any]) -> str:
    """Return the seal of the attributes of a model."""
    return hashlib.sha256(json.dumps(attributes, sort_keys=True).encode()).hexdigest()


def _digest(values: NDArray[Any], by_rows: bool) -> str:
    """Return the digest of an array of a model; that of components is of the digests of their rows."""
    if by_rows:
        rows = (hashlib.sha256(np.ascontiguousarray(row).data).digest() for row in values)
        return "rows:" + hashlib.sha256(b"".join(rows)).hexdigest()
    return hashlib.sha256(np.ascontiguousarray(values).data).hexdigest()


def _replace(path: Path, name: str, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Write an array of a model anew, with the digests and the seal that go with it, as whoever means harm would."""
    group = zarr.open_group(path, mode="r+")
    values = change(np.asarray(group[name][...]))
    del group[name]
    shape = tuple(max(1, n) for n in values.shape)
    group.create_array(name, shape=values.shape, dtype=values.dtype, chunks=shape)[...] = values
    told = dict(group.attrs)
    rows = name == "components" and values.ndim == 2 and values.dtype.kind == "f"
    told["sha256"] = {**told["sha256"], name: _digest(values, rows)}
    told.pop(SEAL)
    group.attrs.update({**told, SEAL: seal_of(told)})


def _turned(values: NDArray[Any]) -> NDArray[Any]:
    values[0] += 1e-6
    return values


CHANGES: dict[str, tuple[str, Callable[[NDArray[Any]], NDArray[Any]], str]] = {
    "components that are not orthonormal": ("components", _turned, "not orthonormal"),
    "components of half precision": ("components", lambda v: v.astype(np.float16), "right type"),
    "whole numbers for components": ("components", lambda v: np.eye(3, 5, dtype=np.int64), "right type"),
    "complex components": ("components", lambda v: v.astype(np.complex128), "right type"),
    "NaN": ("components", lambda v: np.where(np.eye(3, 5) > 0, np.nan, v), "not finite"),
    "one component less": ("components", lambda v: v[:2], "shapes do not agree"),
    "one feature less": ("components", lambda v: np.eye(3, 4), "does not agree"),
    "more components than features": ("components", lambda v: np.eye(7, 5), "shapes do not agree"),
    "no components": ("components", lambda v: v[:0], "shapes do not agree"),
    "components in one row": ("components", lambda v: v.ravel(), "shapes do not agree"),
    "variances upside down": ("explained_variance", lambda v: v[::-1].copy(), "descending"),
    "negative variance": ("explained_variance", lambda v: v * [1, 1, -1], "descending"),
    "infinite variance": ("explained_variance", lambda v: v * [np.inf, 1, 1], "not finite"),
    "variances beyond the total": ("explained_variance", lambda v: 10 * v, "total_variance"),
    "a mean of NaN": ("mean", lambda v: v * np.nan, "not finite"),
    "a mean of another length": ("mean", lambda v: v[:4], "shape of mean"),
    "a feature that does not exist": ("constant_features", lambda v: np.array([5]), "constant_features"),
    "truth values for a mean": ("mean", lambda v: v > 0, "right type"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_models_are_checked_even_where_their_digests_agree(saved, name):
    array, change, words = CHANGES[name]
    _replace(saved, array, lambda values: values)
    assert sp.load(saved).n_components_ == 3
    _replace(saved, array, change)
    with pytest.raises(ModelError, match=words) as caught:
        sp.load(saved)
    assert len(str(caught.value).splitlines()) == 1
    assert str(saved) in str(caught.value)


def test_components_of_single_precision_are_orthonormal_to_single_precision(saved):
    _replace(saved, "components", lambda values: values.astype(np.float32))
    assert sp.load(saved).components_.dtype == np.float32
    _replace(
        saved, "components", lambda values: _turned(values.astype(np.float64)).astype(np.float32) * np.float32(1.001)
    )
    with pytest.raises(ModelError, match="not orthonormal"):
        sp.load(saved)


@pytest.mark.parametrize("change", ["source", "certificate", "more"])
def test_attributes_are_sealed(saved, change):
    place = saved / "zarr.json"
    document = json.loads(place.read_text())
    seal = document["attributes"][SEAL]
    others = {name: value for name, value in document["attributes"].items() if name != SEAL}
    assert seal == seal_of(others)
    document["attributes"].setdefault(change, {})["path"] = "elsewhere"
    place.write_text(json.dumps(document))
    with pytest.raises(ModelError, match="attributes do not have the SHA-256"):
        sp.load(saved)
    del document["attributes"][SEAL]  # as a model of an early version, which has none
    place.write_text(json.dumps(document))
    assert sp.load(saved).n_components_ == 3


def test_a_model_larger_than_memory_or_incomplete_is_refused(saved, tmp_path):
    place = saved / "mean/zarr.json"
    whole = place.read_text()
    for shape, chunk, words in (
        ([2**45], 2**45, "bytes"),
        ([2**31], 1, "chunks"),
        ([2**20], 1, "does not exist"),
        ([2**42], 2**27, "are available"),
    ):
        told = json.loads(whole)
        told["shape"], told["chunk_grid"]["configuration"]["chunk_shape"] = shape, [chunk]
        place.write_text(json.dumps(told))
        with pytest.raises(ModelError, match=words):
            sp.load(saved)
    place.write_text(whole)
    chunk = saved / "mean/c/0"
    chunk.rename(tmp_path / "away")
    with pytest.raises(ModelError, match="does not exist"):
        sp.load(saved)
    chunk.symlink_to(tmp_path / "away")
    assert sp.load(saved).n_components_ == 3


def test_names_of_features_are_texts(tmp_path):
    rows = make_values(40, 4)
    path = write_store(tmp_path / "x.zarr", rows, chunks=(20, 4), attributes={"feature_names": [*"abcd"]})
    saved = Path(sp.PCA(2).fit(path).save(tmp_path / "m.zarr"))
    assert list(sp.load(saved).feature_names_in_) == [*"abcd"]
    place = saved / "zarr.json"
    document = json.loads(place.read_text())
    for names in ([*"abc"], [1, 2, 3, 4], [["a"], ["b"], ["c"], ["d"]], "abcd"):
        document["attributes"]["source"]["feature_names"] = names
        told = {name: value for name, value in document["attributes"].items() if name != SEAL}
        document["attributes"] = {**told, SEAL: seal_of(told)}
        place.write_text(json.dumps(document))
        with pytest.raises(ModelError, match="feature names"):
            sp.load(saved)


NASTY = "a\x1b[31m<script>alert(1)\x07"


@pytest.mark.slow
def test_names_that_hold_commands_reach_no_terminal_and_no_page(tmp_path, capsys, monkeypatch):
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    options = {"chunks": (20, 4), "config": {"write_empty_chunks": True}}
    group.create_array(
        NASTY, data=make_values(40, 4), attributes={"feature_names": [NASTY + "</script>"] * 4}, **options
    )
    (tmp_path / "g.zarr" / (NASTY + "2")).mkdir()  # nothing that zarr knows, of which it warns
    (tmp_path / "c.yaml").write_text(config_text("g.zarr", "out", output="report: true"))
    # In a process of its own warnings go to standard error too.
    command = [sys.executable, "-m", "streampca", "inspect", "g.zarr"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    said = [done.stdout + done.stderr]
    command = Command(capsys)
    monkeypatch.chdir(tmp_path)
    called = command("run", "c.yaml")
    assert called.status == 0, called.err
    said.append(called.out + called.err)
    for arguments in (("inspect", "g.zarr", "--json"), ("plan", "c.yaml"), ("inspect", "out")):
        called = command(*arguments)
        assert called.status == 0, called.err
        said.append(called.out + called.err)
    said.append(command("inspect", f"g.zarr/{NASTY}2").refused(5))
    (tmp_path / f"g.zarr/{NASTY}/c/1/0").unlink()
    called = command("run", "--quiet", "c.yaml", "--set", "output.directory=out2")
    called.refused(5, "1 of 2 chunks")
    page = (tmp_path / "out/report.html").read_text()
    for text in (*said, called.err, page):
        assert "\x1b" not in text
        assert "\x07" not in text
    assert "<script>alert" not in page
    assert "<script>alert(1)".replace("<", "&lt;").replace(">", "&gt;") in page
