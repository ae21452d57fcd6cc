"""What happens to the output when a write fails, the disk is full, a signal comes, or something foreign stands there."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from stores import Command, call_apart, config_text, make_values, picture, write_store

import streampca as sp
from streampca.engine.output import Aside
from streampca.errors import NoSpaceError, OutputError, StreamPCAError


class Faults:
    """Fails the k-th opening for writing, rename, new directory or fsync below a directory; an audit hook, so all are met."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fsync = os.fsync
        self.armed = False
        sys.addaudithook(self._hear)
        os.fsync = self._failing_fsync

    def arm(self, below: Path, number: int, code: int, *, persistent: bool = False) -> None:
        """Begin to count."""
        self.below, self.number, self.code, self.persistent = str(below), number, code, persistent
        self.count, self.failed = 0, ""
        self.armed = True

    def disarm(self) -> None:
        """Let everything pass."""
        self.armed = False

    def _hear(self, event: str, arguments: tuple) -> None:
        if not self.armed or event not in ("open", "os.rename", "os.mkdir"):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            return
        if event == "os.mkdir" and os.path.isdir(arguments[0]):
            return  # nothing would be made: not to be told apart from "it exists already"
        if isinstance(arguments[0], str | os.PathLike) and str(arguments[0]).startswith(self.below):
            self._pass(f"{event} {arguments[0]}")

    def _failing_fsync(self, handle: int) -> None:
        if self.armed:
            self._pass("fsync")
        self._fsync(handle)

    def _pass(self, what: str) -> None:
        with self._lock:
            self.count += 1
            fails = self.count == self.number or (self.persistent and self.count > self.number)
        if fails:
            self.failed = self.failed or what
            raise OSError(self.code, os.strerror(self.code))


@pytest.fixture(scope="module")
def _faults():
    faults = Faults()
    yield faults
    faults.disarm()
    os.fsync = faults._fsync


@pytest.fixture
def faults(_faults):
    yield _faults
    _faults.disarm()


@pytest.fixture
def config(tmp_path):
    write_store(tmp_path / "x.zarr", make_values(30, 3), chunks=(10, 3))
    path = tmp_path / "c.yaml"
    path.write_text(config_text(tmp_path / "x.zarr", tmp_path / "out", output="overwrite: true, report: false"))
    return path


@pytest.mark.parametrize(("code", "kind", "step"), [(errno.EIO, OutputError, 1), (errno.ENOSPC, NoSpaceError, 5)])
def test_every_write_of_a_run_fails_once(config, tmp_path, faults, code, kind, step):
    sp.run(config)
    before = picture(tmp_path)
    assert _fail_each(lambda: sp.run(config), faults, tmp_path, before, code, kind, step) > 40
    assert sp.load(tmp_path / "out").n_components_ == 3


@pytest.mark.parametrize(("code", "kind", "step"), [(errno.EIO, OutputError, 1), (errno.ENOSPC, NoSpaceError, 3)])
def test_every_write_of_a_model_and_of_scores_fails_once(config, tmp_path, faults, code, kind, step):
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


def test_a_disk_that_stays_broken_leaves_the_old_run_whole(config, tmp_path, faults):
    sp.run(config)
    old = picture(tmp_path / "out")
    for number in range(1, 1000, 2):
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


@pytest.mark.parametrize("limit", [3_000, 100_000])
def test_a_limit_on_file_size_is_no_space(tmp_path, limit):
    write_store(tmp_path / "x.zarr", make_values(30_000, 8), chunks=(10_000, 8))
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out", output="overwrite: true"))
    assert call_apart("run", "c.yaml", "--quiet", directory=tmp_path).status == 0
    before = picture(tmp_path)
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        "from streampca.cli import main; main(['run', 'c.yaml', '--quiet'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("streampca: error: out: no room to write (File too large)")
    assert len(done.stderr.splitlines()) == 1
    assert picture(tmp_path) == before


@pytest.mark.parametrize("mebibytes", [1, 8])
def test_a_full_file_system(tmp_path, capsys, mebibytes):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", small], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("file systems cannot be mounted here")
    try:
        write_store(tmp_path / "x.zarr", make_values(20_000, 8), chunks=(5_000, 8))
        config = tmp_path / "c.yaml"
        config.write_text(config_text(tmp_path / "x.zarr", small / "out", output="report: false"))
        command = Command(capsys)
        assert command.quietly("run", config, "--set", "model.n_components=1").status == 0
        before = picture(small)
        replace = ["--set", "output.overwrite=true"]
        # The scores have 1.2 MiB. Room is found short before, or, for a share whose count nobody knows yet, meanwhile.
        for n_components in ("8", "0.999"):
            line = command.quietly("run", config, *replace, "--set", f"model.n_components={n_components}")
            if mebibytes == 1:
                line.refused(4, str(small / "out"), "make room")
                assert picture(small) == before
            else:
                assert line.status == 0, line.err
    finally:
        subprocess.run(["umount", small], check=True)


# Names that we use somewhere, in places where we do not use them, and names of others.
_HOSTILE = (
    "thesis",
    "Report.html",
    "report.html.bak",
    ".git",
    "config.yml",
    "streampca.json.bak",
    "7",
    "rows.csv",
    "c.txt",
)
_PLACES = ("", "model.zarr", "model.zarr/components", "model.zarr/mean/c", "scores.zarr", "scores.zarr/scores/c/0")
_AS_FILES = ("samples.zarr", "model.zarr/scale", "scores.zarr/rows")  # directories of ours, or names of another group
_AROUND = ("thesis", "out.part-0123", "out.old-0123", "out2", "streampca.json", "out.bak/streampca.json", "zarr.json")


@st.composite
def trees(draw):
    """Return what stands in the place of the output, what foreign is in it, and what is around it."""
    inside = draw(
        st.lists(
            st.tuples(
                st.sampled_from(_PLACES), st.sampled_from(_HOSTILE), st.sampled_from(["file", "directory", "link"])
            ),
            max_size=2,
        )
    )
    # A number in a directory of chunks is the name of a chunk: nobody can tell.
    planted = [(f"{place}/{name}", kind) for place, name, kind in inside if not (name == "7" and "/c" in place)]
    planted += [(name, "file") for name in draw(st.lists(st.sampled_from(_AS_FILES), max_size=1))]
    around = [(name, "file") for name in draw(st.lists(st.sampled_from(_AROUND), unique=True, max_size=3))]
    there = draw(st.sampled_from(["run", "run", "run", "model", "scores", "nothing", "empty", "no record", "foreign"]))
    return there, planted if there != "nothing" else [], around


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Return a directory with a finished run, a model and scores."""
    directory = tmp_path_factory.mktemp("outputs")
    write_store(directory / "x.zarr", make_values(30, 3), chunks=(10, 3))
    (directory / "c.yaml").write_text(config_text(directory / "x.zarr", directory / "run", output="report: false"))
    model = sp.run(directory / "c.yaml").model
    model.save(directory / "model")
    model.transform_to(directory / "x.zarr", directory / "scores")
    return directory


def _plant(place: Path, kind: str) -> None:
    if os.path.lexists(place) or not (place.parent.is_dir() or not place.parent.exists()):
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        place.write_bytes(os.urandom(8))
    elif kind == "directory":
        place.mkdir()
    else:
        place.symlink_to("/etc")


@given(
    tree=trees(),
    kind=st.sampled_from(["run", "run", "model", "scores"]),
    overwrite=st.sampled_from([True, True, False]),
    fails=st.booleans(),
)
@settings(max_examples=150)
def test_nothing_foreign_is_removed_or_changed(outputs, tree, kind, overwrite, fails):
    there, planted, around = tree
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        out = root / "out"
        if there in ("run", "model", "scores", "no record"):
            shutil.copytree(outputs / ("run" if there == "no record" else there), out)
        elif there != "nothing":
            out.mkdir()
        if there == "no record":
            (out / "streampca.json").unlink()
        if there == "foreign":
            (out / "streampca.json").write_text('{"format": "other"}')
        ours = picture(out) if out.exists() else {}
        for place, what in planted:
            _plant(out / place, what)
        for place, what in around:
            _plant(root / place, what)
        before = picture(root)
        foreign = bool(out.exists() and picture(out).keys() - ours.keys()) or there in ("foreign", "no record")
        note(f"{there} {planted} {around} {kind} overwrite={overwrite} fails={fails}")
        try:
            with Aside(out, kind, overwrite=overwrite) as part:
                shutil.copytree(outputs / kind, part, dirs_exist_ok=True)
                if fails:
                    raise KeyError("mine")
        except (OutputError, KeyError):
            assert picture(root) == before
            return
        assert not foreign
        assert there in ("nothing", "empty") or (there == kind and overwrite)
        after = picture(root)
        assert {k: v for k, v in after.items() if not k.startswith("out/")} == (
            {k: v for k, v in before.items() if not k.startswith("out/")} | {"out": "directory"}
        )
        assert picture(out).keys() == picture(outputs / kind).keys()


def test_something_foreign_that_comes_while_the_run_goes_is_left_alone(outputs, tmp_path):
    shutil.copytree(outputs / "run", tmp_path / "out")
    kept = picture(tmp_path)

    def write():
        with Aside(tmp_path / "out", "run", overwrite=True) as part:
            (part / "config.yaml").write_text("")
            (tmp_path / "out/thesis").write_text("years of work")

    with pytest.raises(OutputError, match="thesis"):
        write()
    assert picture(tmp_path) == kept | {"out/thesis": b"years of work"}


def test_parents_made_for_an_output_go_with_it_unless_used(tmp_path):
    def write():
        with Aside(tmp_path / "a/b/out", "run"):
            (tmp_path / "a/mine").write_text("")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert picture(tmp_path) == {"a": "directory", "a/mine": b""}


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
