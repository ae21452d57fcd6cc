"""What happens to the output when a write fails, the disk is full, a signal comes, or something foreign stands there."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import trees
from facade import run_command
from hypothesis import given, settings
from stores import Command, config_text, make_values, picture, write_store
from strategies import in_depth
from writes import Faults

import streampca as sp
from streampca.errors import NoSpaceError, OutputError, StreamPCAError


@pytest.fixture(scope="module")
def _faults():
    faults = Faults()
    yield faults
    faults.remove()


@pytest.fixture
def faults(_faults):
    yield _faults
    _faults.disarm()


@pytest.fixture
def config(tmp_path, no_checkpoints):
    write_store(tmp_path / "x.zarr", make_values(30, 3), chunks=(10, 3))
    path = tmp_path / "c.yaml"
    path.write_text(config_text(tmp_path / "x.zarr", tmp_path / "out", output="overwrite: true, report: false"))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "kind", "step"), [(errno.EIO, OutputError, in_depth(9, 1)), (errno.ENOSPC, NoSpaceError, in_depth(17, 5))]
)
def test_writes_of_a_run_fail_once(config, tmp_path, faults, code, kind, step):
    sp.run(config)
    before = picture(tmp_path)
    assert _fail_each(lambda: sp.run(config), faults, tmp_path, before, code, kind, step) > 40
    assert sp.load(tmp_path / "out").n_components_ == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "kind", "step"), [(errno.EIO, OutputError, in_depth(4, 1)), (errno.ENOSPC, NoSpaceError, in_depth(7, 3))]
)
def test_writes_of_a_model_and_of_scores_fail_once(config, tmp_path, faults, code, kind, step):
    model = sp.PCA(2).fit(make_values(30, 3))
    model.save(tmp_path / "m.zarr")
    model.transform_to(tmp_path / "x.zarr", tmp_path / "s.zarr")
    for act in (
        lambda: model.save(tmp_path / "m.zarr", overwrite=True),
        lambda: model.transform_to(tmp_path / "x.zarr", tmp_path / "s.zarr", overwrite=True),
    ):
        assert _fail_each(act, faults, tmp_path, picture(tmp_path), code, kind, step) > 8


def _fail_each(act, faults, directory, before, code, kind, step):
    """Fail the first write of `act`, then one further on, …, until it meets none; return about how many there are."""
    for number in range(1, 1000, step):
        faults.arm(directory, number, code)
        error = None
        try:
            act()
        except StreamPCAError as raised:
            error = raised
        faults.disarm()
        if error is None:
            assert not faults.failed, f"write {number} ({faults.failed}) failed unnoticed"
            return number - 1
        where = (number, faults.failed, str(error))
        assert type(error) is kind, where
        assert str(directory) in str(error), where
        assert picture(directory) == before, where
    raise AssertionError("it never ends")


@pytest.mark.slow
def test_a_disk_that_stays_broken_leaves_the_old_run_whole(config, tmp_path, faults):
    sp.run(config)
    old = picture(tmp_path / "out")
    for number in range(1, 1000, in_depth(11, 2)):
        faults.arm(tmp_path, number, errno.EIO, persistent=True)
        error = None
        try:
            sp.run(config)
        except OutputError as raised:
            error = raised
        faults.disarm()
        if error is None:
            break
        where = (number, faults.failed, str(error))
        # Where not even the way back could be gone, the old run has another name, and the message says which.
        moved = [path for path in tmp_path.iterdir() if ".old-" in path.name]
        assert all(str(path) in str(error) for path in moved), where
        place = moved[0] if moved else tmp_path / "out"
        assert picture(place) == old, where
        if moved:
            shutil.rmtree(tmp_path / "out", ignore_errors=True)
            place.rename(tmp_path / "out")
        assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", "x.zarr", "out"}, where
    assert number > 40


def test_room_is_checked_before_anything_is_read(config, tmp_path, monkeypatch, capsys):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 500, 500))
    before = picture(tmp_path)
    line = Command(capsys)("run", config).refused(4, str(tmp_path / "out"), "500 B are free", "will be written")
    assert "reading" not in line
    assert picture(tmp_path) == before


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("limit", [3_000, 100_000])
def test_a_limit_on_file_size_is_no_space(tmp_path, monkeypatch, no_checkpoints, limit):
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "x.zarr", make_values(30_000, 8), chunks=(10_000, 8))
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out", output="overwrite: true, report: false"))
    assert run_command("run", "c.yaml", "--quiet") == 0
    before = picture(tmp_path)
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        "from streampca.cli import main; main(['run', 'c.yaml', '--quiet'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("streampca: error: ")
    assert ": no room to write (File too large)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert picture(tmp_path) == before


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    return trees.make_outputs(tmp_path_factory.mktemp("outputs"))


@pytest.mark.slow
@given(**trees.CASES)
@settings(max_examples=60)
def test_nothing_foreign_is_removed_or_changed(outputs, tree, kind, overwrite, ends):
    trees.check(outputs, tree, kind, overwrite, ends)


def test_places_that_no_output_replaces(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/papers").mkdir(parents=True)
    (tmp_path / "home/papers/thesis").write_text("years of work")
    write_store(tmp_path / "data/x.zarr", make_values(30, 3), chunks=(10, 3))
    text = config_text(tmp_path / "data/x.zarr", tmp_path / "earlier", output="overwrite: true, report: false")
    (tmp_path / "c.yaml").write_text(text)
    sp.run(tmp_path / "c.yaml")
    (tmp_path / "link").symlink_to(tmp_path / "earlier")
    before = picture(tmp_path)
    for place in ("data/x.zarr", "data", "data/x.zarr/c", "data/x.zarr/new", "link", "c.yaml", "c.yaml/new", "."):
        with pytest.raises(OutputError):
            sp.run(tmp_path / "c.yaml", overrides=[f"output.directory={tmp_path / place}"])
        assert picture(tmp_path) == before, place
    for place in ("/", "~/papers", "~/papers/..", "/proc"):
        with pytest.raises(OutputError):
            sp.run(tmp_path / "c.yaml", overrides=[f"output.directory={place}"])
        assert picture(tmp_path) == before, place


def test_something_foreign_that_comes_while_the_run_goes_is_left_alone(config, tmp_path):
    sp.run(config)
    kept = picture(tmp_path)
    with pytest.raises(OutputError, match="thesis"):
        sp.run(config, progress=lambda _: (tmp_path / "out/thesis").write_text("years of work"))
    assert picture(tmp_path) == kept | {"out/thesis": b"years of work"}


def test_parents_made_for_an_output_go_with_it_unless_used(config, tmp_path):
    before = picture(tmp_path)

    def use_and_fail(progress):
        (tmp_path / "a/mine").write_text("")
        raise KeyError

    with pytest.raises(KeyError):
        sp.run(config, overrides=[f"output.directory={tmp_path / 'a/b/out'}"], progress=use_and_fail)
    assert picture(tmp_path) == before | {"a": "directory", "a/mine": b""}


def test_the_record_is_written_last_and_after_everything_is_on_the_disk(tmp_path, monkeypatch):
    happened = []
    flush, rename = os.fsync, os.rename
    monkeypatch.setattr(
        os, "fsync", lambda handle: (happened.append(os.readlink(f"/proc/self/fd/{handle}")), flush(handle))
    )
    monkeypatch.setattr(os, "rename", lambda a, b, **k: (happened.append(f"rename {Path(b).name}"), rename(a, b, **k)))
    sp.PCA(2).fit(make_values(30, 3)).save(tmp_path / "m.zarr")
    at = happened.index("rename m.zarr")
    flushed = {Path(name).name for name in happened[:at]}
    assert {"zarr.json", "streampca.json", "components", "mean"} <= flushed
    assert happened[at + 1 :] == [str(tmp_path)]
    assert np.isfinite(sp.load(tmp_path / "m.zarr").components_).all()


@pytest.mark.parametrize("ending", [".npy", ".parquet", ".csv", ".H5", ".nc", ".onnx"])
def test_outputs_that_are_directories_have_no_names_of_files(tmp_path, ending):
    rows = np.random.default_rng(0).normal(size=(30, 4))
    pca, place = sp.PCA(2).fit(rows), tmp_path / f"x{ending}"
    scores = pca.transform(rows)
    for write in (
        lambda: pca.transform_to(rows, place),
        lambda: pca.inverse_transform_to(scores, place),
        lambda: pca.save(place),
    ):
        with pytest.raises(OutputError, match=rf"is a directory, and {ending} is the ending of files: .* x\.zarr"):
            write()
    assert list(tmp_path.iterdir()) == []
