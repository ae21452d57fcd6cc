"""AnnData under faults: writers killed for good, two writers, changed and damaged files, files of other processes, and fingerprints."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cells
import numpy as np
import pytest
import slot_kills
from facade import Lock
from stores import Command, picture
from strategies import in_depth

import streampca as sp
from streampca.errors import DamagedChunkError, DataError, NotAvailableError, OutputError, StreamPCAError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:.*:zarr.errors.UnstableSpecificationWarning"),
]
COUNTS = cells.make_counts()
USED = np.arange(40) % 3 != 1
CONFIG = """
source: {path: a.h5ad, mask_var: highly_variable, normalize: {target_sum: 1.0e4, log1p: true}}
model: {n_components: 3}
output: {directory: out, anndata: true, report: false}
"""


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("kind", ["zarr", "h5ad"])
def test_a_killed_writer_leaves_the_old_results_or_the_new_ones(kind: str) -> None:
    if kind == "h5ad":
        pytest.importorskip("h5py")
    slot_kills.run(in_depth(2, 5), 0, kind).require_clean()


@pytest.mark.parametrize("kind", ["zarr", "h5ad"])
def test_a_second_writer_is_refused_and_the_first_one_named(tmp_path: Path, kind: str) -> None:
    if kind == "h5ad":
        pytest.importorskip("h5py")
    path = slot_kills.make(tmp_path, kind)
    with Lock(path, "first"):
        before = picture(tmp_path)
        with pytest.raises(OutputError, match=r"first") as caught:
            sp.anndata.pca(path, 2)
        assert caught.value.exit_status == 6
        assert picture(tmp_path) == before
    sp.anndata.pca(path, 2)


@pytest.mark.slow
def test_a_run_goes_on_after_its_own_results_are_in_the_file_but_not_after_another_change(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    """Size and time of the file differ because of the results, and the run was refused as one of other data."""
    h5py = pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    path, command = cells.write_file(tmp_path / "a.h5ad", COUNTS, {"highly_variable": USED}), Command(capsys)
    (tmp_path / "c.yaml").write_text(CONFIG)
    assert command.quietly("run", "c.yaml").status == 0
    sp.anndata.pca(path, 2, key_added="mine")  # other results change nothing that was read
    content = path.read_bytes()
    assert command.quietly("run", "c.yaml", "--resume").status == 0
    assert path.read_bytes() == content
    assert command.quietly("verify", "out").status == 0
    with h5py.File(path, "r+") as file:
        file["X/data"][3] += 5
    command.quietly("run", "c.yaml", "--resume").refused(6, "the input has changed")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data", "indices", "indptr"])
def test_every_damage_of_a_store_is_found_by_its_fingerprint(
    tmp_path: Path, name: str, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path, command = cells.write_cells(tmp_path / "a.zarr", COUNTS, var={"highly_variable": USED}), Command(capsys)
    (tmp_path / "c.yaml").write_text(CONFIG.replace("h5ad", "zarr").replace("anndata: true", "anndata: false"))
    assert command.quietly("fingerprint", "c.yaml").status == 0
    verified = ("--set", "source.verify=manifest")
    assert command.quietly("run", "c.yaml", *verified).status == 0
    assert "every chunk is as in" in command("verify", "out").out
    chunk = path / f"X/{name}/c/0"
    stored = bytearray(chunk.read_bytes())
    stored[len(stored) // 2] ^= 1
    chunk.write_bytes(stored)
    again = ("--set", "output.directory=other")
    command.quietly("run", "c.yaml", *verified, *again).refused(5, f"X/{name}: chunk c/0 is not what was fingerprinted")
    assert not (tmp_path / "other").exists()


def test_fingerprints_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    with pytest.raises(NotAvailableError, match="verify is for a zarr array"):
        sp.open(cells.write_file(tmp_path / "a.h5ad", COUNTS), verify="manifest")
    store = cells.write_cells(tmp_path / "a.zarr", COUNTS)
    with pytest.raises(StreamPCAError, match="expected manifest"):
        sp.open(store, verify=tmp_path / "x.json")
    with pytest.raises(DataError, match="no such fingerprint"):
        sp.open(store, verify="manifest")


def test_a_file_is_closed_between_readings_for_other_writers_and_forked_processes(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    path = cells.write_file(tmp_path / "a.h5ad", COUNTS)
    source = sp.open(path)
    sp.PCA(2).fit(source)
    with h5py.File(path, "r+") as file:  # which HDF5 refuses while this process has the file open to read it
        file.attrs["note"] = "mine"
    descriptors = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    assert str(path) not in descriptors


def test_a_file_that_another_program_writes_is_refused_and_the_lock_is_named(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = cells.write_file(tmp_path / "a.h5ad", COUNTS)
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as HDF5 does for a file that is open for writing
        for call in (sp.open, sp.anndata.pca):
            with pytest.raises(DataError, match=r"another program has it open for writing.*HDF5_USE_FILE_LOCKING"):
                call(path)
    assert sp.open(path).shape == COUNTS.shape


def test_a_file_that_cannot_be_opened_after_the_start_of_a_fit_is_not_called_damaged(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    path = cells.write_file(tmp_path / "a.h5ad", COUNTS)
    source = sp.open(path)
    with path.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for call in (lambda: source.read(0, 10), source.version):
            with pytest.raises(DataError, match="another program has it open for writing") as caught:
                call()
            assert not isinstance(caught.value, DamagedChunkError)
    path.unlink()
    for call in (lambda: source.read(0, 10), source.version):
        with pytest.raises(DataError, match=r"cannot be opened as an \.h5ad file: No such file"):
            call()


@pytest.mark.parametrize("note", [np.array(["a", "b", "c"], dtype="S1"), np.array([1.0, 1.5, np.nan]), 3])
def test_a_note_of_another_type_in_the_place_of_ours_counts_as_none(tmp_path: Path, note: Any) -> None:
    h5py = pytest.importorskip("h5py")
    path = cells.write_file(tmp_path / "a.h5ad", COUNTS)
    with h5py.File(path, "r+") as file:
        file.attrs["streampca_written"] = note
    status = path.stat()
    assert sp.open(path).version() is not None
    sp.anndata.pca(path, 2)
    with h5py.File(path, "r") as file:
        assert file.attrs["streampca_written"].tolist()[1:] == [status.st_size, status.st_mtime_ns]


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _in(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def broken(path: Path) -> None:
        import h5py

        with h5py.File(path, "r+") as file:
            values = change(file[name][()])
            del file[name]
            file[name] = values

    return broken


def _set(place: int, value: float) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[place] = value
        return values

    return change


def _linked(path: Path) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        del file["X"]
        file["X"] = h5py.ExternalLink("other.h5ad", "/X")


def _flipped(path: Path) -> None:
    import h5py

    with h5py.File(path, "r") as file:
        chunk = file["X/data"].id.get_chunk_info(0)
    content = bytearray(path.read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 255
    path.write_bytes(content)


def _linked_names(path: Path) -> None:
    import h5py

    with h5py.File(path, "r+") as file:
        del file["obs/_index"]
        node = file.create_group("obs/_index")
        node.attrs.update({"encoding-type": "nullable-string-array", "encoding-version": "0.1.0"})
        node["values"] = [f"cell{i}" for i in range(300)]
        node["mask"] = h5py.ExternalLink("other.h5ad", "/mask")


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut short": (_cut, "cannot be opened as an .h5ad file"),
    "empty": (lambda path: path.write_bytes(b""), "cannot be opened as an .h5ad file"),
    "another format": (lambda path: path.write_text("a,b\n1,2\n"), "cannot be opened as an .h5ad file"),
    "damaged chunk": (_flipped, "X/data \\(rows .*\\) is damaged or cut short"),
    "link to another file": (_linked, "is a link to another file"),
    "names linked to another file": (_linked_names, "mask is a link to another file"),
    "indptr decreases": (_in("X/indptr", _set(5, 0)), "indptr decreases after row 4"),
    "indptr beyond data": (_in("X/indptr", _set(-1, 10**6)), "indptr ends with 1,000,000"),
    "indptr of floats": (_in("X/indptr", lambda values: values.astype("f8")), "indptr has dtype float64"),
    "indices too large": (_in("X/indices", _set(9, 40)), "indices hold 40 in row"),
    "indices negative": (_in("X/indices", _set(9, -1)), "indices hold -1"),
    "data too short": (_in("X/data", lambda values: values[:-1]), "expected as many"),
    "data of texts": (_in("X/data", lambda values: [b"x"] * len(values)), "dtype"),
    "names too few": (_in("var/_index", lambda values: values[:-1]), "var has 39 names"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_are_named_errors_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    pytest.importorskip("h5py")
    path = cells.write_file(tmp_path / "a.h5ad", COUNTS)
    change, words = BROKEN[name]
    change(path)
    before = picture(tmp_path)
    with pytest.raises(StreamPCAError, match=words) as caught:
        sp.anndata.pca(path, 2)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 5
    assert picture(tmp_path) == before


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.h5ad").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    for call in (sp.open, sp.anndata.pca):
        with pytest.raises(NotAvailableError, match=r'pip install "streampca\[anndata\]"'):
            call(tmp_path / "a.h5ad")
