"""Results written into AnnData: in scanpy's form, all or none, never over others, recovered after a kill; and runs that do so."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cells
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, hstack
from stores import Command, picture

import streampca as sp
from streampca.anndata import slots as written_slots
from streampca.errors import DataError, NotAvailableError, OutputError, ParameterError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore:.*:zarr.errors.UnstableSpecificationWarning"),
]
COUNTS = cells.make_counts()
USED = np.arange(40) % 3 != 1
NORMALIZE = {"target_sum": 1e4, "log1p": True}
SLOTS = ("obsm/X_pca", "varm/PCs", "uns/pca")


def store(path: Path, **options: Any) -> Path:
    """Write the counts as an AnnData store."""
    return cells.write_cells(path, COUNTS, var={"highly_variable": USED}, **options)


def require_results(path: Path, k: int, used: np.ndarray[Any, Any] = USED, keys: tuple[str, ...] = SLOTS) -> None:
    """Check what stands in the three places of a store, read through its consolidated metadata where it has them."""
    root = zarr.open_group(path, mode="r")
    rows = cells.normalized(COUNTS)[:, used]
    vectors, variances = cells.components(rows, k)
    loadings = np.asarray(root[keys[1]][:])  # type: ignore[index]
    assert loadings.shape == (40, k)
    assert np.abs(np.sum(loadings[used].T * vectors, axis=1)).min() >= 1 - 1e-6
    assert not loadings[~used].any()
    scores = np.asarray(root[keys[0]][:])  # type: ignore[index]
    np.testing.assert_allclose(scores, (rows - rows.mean(0)) @ loadings[used], atol=1e-3)
    np.testing.assert_allclose(root[f"{keys[2]}/variance"][:], variances, rtol=1e-5)  # type: ignore[index]
    total = rows.var(axis=0, ddof=1).sum()
    np.testing.assert_allclose(root[f"{keys[2]}/variance_ratio"][:], variances / total, rtol=1e-5)  # type: ignore[index]
    assert bool(root[f"{keys[2]}/params/zero_center"][...])  # type: ignore[index]


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
def test_results_are_written_into_the_store_and_its_consolidated_metadata(
    tmp_path: Path, version: int, consolidated: bool
) -> None:
    path = store(tmp_path / "a.zarr", version=version, consolidated=consolidated)
    before = picture(path)
    pca = sp.anndata.pca(path, 3, mask_var="highly_variable", normalize=NORMALIZE)
    assert pca.n_components_ == 3
    require_results(path, 3)
    if consolidated:
        assert "obsm/X_pca" in dict(zarr.open_consolidated(path, zarr_format=version).members(max_depth=None))
    changed = {name for name, content in before.items() if picture(path)[name] != content}
    assert changed <= {"zarr.json", ".zmetadata"}
    assert [child.name for child in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize("consolidated", [False, True])
def test_results_are_read_by_anndata_and_used_by_scanpy_as_its_own(tmp_path: Path, consolidated: bool) -> None:
    anndata, scanpy = pytest.importorskip("anndata"), pytest.importorskip("scanpy")
    path = store(tmp_path / "a.zarr", consolidated=consolidated)
    sp.anndata.pca(path, 4, mask_var="highly_variable", normalize=NORMALIZE)
    ours = anndata.read_zarr(path)
    theirs = anndata.AnnData(csr_matrix(COUNTS), var=ours.var.copy())
    with warnings.catch_warnings(action="ignore"):  # of the row without counts
        scanpy.pp.normalize_total(theirs, target_sum=1e4)
    scanpy.pp.log1p(theirs)
    scanpy.pp.pca(theirs, n_comps=4, mask_var="highly_variable")
    assert np.abs(np.sum(ours.varm["PCs"] * theirs.varm["PCs"], axis=0)).min() >= 1 - 1e-6
    np.testing.assert_allclose(np.abs(ours.obsm["X_pca"]), np.abs(theirs.obsm["X_pca"]), atol=1e-2)
    for name in ("variance", "variance_ratio"):
        np.testing.assert_allclose(ours.uns["pca"][name], theirs.uns["pca"][name], rtol=1e-5)
    assert theirs.uns["pca"]["params"].items() <= ours.uns["pca"]["params"].items()
    assert ours.obsm["X_pca"].dtype == theirs.obsm["X_pca"].dtype
    scanpy.pp.neighbors(ours, n_neighbors=5)


@pytest.mark.parametrize("backed", [False, True])
def test_objects_get_the_results_in_memory(tmp_path: Path, backed: bool) -> None:
    anndata = pytest.importorskip("anndata")
    pytest.importorskip("h5py")
    adata = anndata.AnnData(COUNTS.copy())
    adata.var["highly_variable"] = USED
    adata.layers["twice"] = COUNTS * 2
    if backed:
        adata.write_h5ad(tmp_path / "a.h5ad")
        adata = anndata.read_h5ad(tmp_path / "a.h5ad", backed="r")
    content = (tmp_path / "a.h5ad").read_bytes() if backed else b""
    pca = sp.anndata.pca(adata, 3, mask_var="highly_variable", normalize=NORMALIZE)
    vectors, variances = cells.components(cells.normalized(COUNTS)[:, USED], 3)
    assert np.abs(np.sum(adata.varm["PCs"][USED].T * vectors, axis=1)).min() >= 1 - 1e-6
    np.testing.assert_allclose(adata.uns["pca"]["variance"], variances, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(pca.transform(adata)), adata.obsm["X_pca"], atol=1e-5)
    with pytest.raises(OutputError, match="already holds obsm/X_pca, varm/PCs, uns/pca"):
        sp.anndata.pca(adata, 3)
    sp.anndata.pca(adata, 2, layer="twice", key_added="other")
    assert adata.obsm["other"].shape == (300, 2)
    assert adata.uns["other"]["params"]["layer"] == "twice"
    assert content == ((tmp_path / "a.h5ad").read_bytes() if backed else b"")


def test_files_get_the_results_and_are_otherwise_unchanged(tmp_path: Path) -> None:
    anndata = pytest.importorskip("anndata")
    pytest.importorskip("h5py")
    path = tmp_path / "a.h5ad"
    adata = anndata.AnnData(COUNTS.copy())
    adata.var["highly_variable"], adata.layers["dense"] = USED, COUNTS.toarray()
    adata.write_h5ad(path)
    sp.anndata.pca(path, 3, mask_var="highly_variable", normalize=NORMALIZE)
    ours = anndata.read_h5ad(path)
    vectors, _ = cells.components(cells.normalized(COUNTS)[:, USED], 3)
    assert np.abs(np.sum(ours.varm["PCs"][USED].T * vectors, axis=1)).min() >= 1 - 1e-6
    assert ours.uns["pca"]["params"]["mask_var"] == "highly_variable"
    np.testing.assert_array_equal(ours.X.toarray(), COUNTS.toarray())
    content = path.read_bytes()
    with pytest.raises(OutputError, match="already"):
        sp.anndata.pca(path, 2, layer="dense")
    assert path.read_bytes() == content
    sp.anndata.pca(path, 2, layer="dense", overwrite=True)
    assert anndata.read_h5ad(path).obsm["X_pca"].shape == (300, 2)
    assert [child.name for child in tmp_path.iterdir()] == ["a.h5ad"]


@pytest.mark.parametrize("slot", SLOTS)
def test_what_is_there_is_never_replaced_unless_asked(tmp_path: Path, slot: str) -> None:
    path = store(tmp_path / "a.zarr", consolidated=True)
    zarr.open_group(path, mode="a", use_consolidated=False).create_array(slot, data=np.ones(3))
    before = picture(tmp_path)
    with pytest.raises(OutputError, match=f"already holds {slot} and") as caught:
        sp.anndata.pca(path, 3)
    assert caught.value.exit_status == 6
    assert picture(tmp_path) == before
    sp.anndata.pca(path, 3, key_added="mine", mask_var="highly_variable", normalize=NORMALIZE)
    require_results(path, 3, keys=("obsm/mine", "varm/mine", "uns/mine"))
    sp.anndata.pca(path, 3, overwrite=True, mask_var="highly_variable", normalize=NORMALIZE)
    require_results(path, 3)


class KilledError(BaseException):
    """Stands for the end of the process."""


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], int]:
    """End the next writing of results before its action `number`; returns a function that counts actions."""
    done = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def action(*arguments: Any, **options: Any) -> Any:
            nonlocal done
            if done == number:
                raise KilledError
            done += 1
            return function(*arguments, **options)

        return action

    monkeypatch.setattr(written_slots.os, "rename", counted(written_slots.os.rename))
    for name in ("write_atomically", "flush", "flush_one", "require_space"):
        monkeypatch.setattr(written_slots, name, counted(getattr(written_slots, name)))
    monkeypatch.setattr(written_slots.shutil, "rmtree", counted(written_slots.shutil.rmtree))
    monkeypatch.setattr(written_slots.ZarrSlots, "discard", lambda self: None)  # which a killed process does not do
    return lambda: done


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(("version", "earlier"), [(2, False), (3, True)])
def test_a_kill_at_any_point_leaves_all_or_nothing_after_the_next_call(
    tmp_path: Path, version: int, earlier: bool
) -> None:
    origin = store(tmp_path / "origin.zarr", version=version, consolidated=True)
    if earlier:
        sp.anndata.pca(origin, 2)
    options: dict[str, Any] = {"mask_var": "highly_variable", "normalize": NORMALIZE, "overwrite": earlier}
    number, ended = 0, False
    while not ended:
        place = tmp_path / f"kill-{number}"
        place.mkdir()
        path = place / "a.zarr"
        shutil.copytree(origin, path)
        with pytest.MonkeyPatch.context() as monkeypatch:
            kill_at(monkeypatch, number)
            try:
                sp.anndata.pca(path, 3, **options)
                ended = True
            except KilledError:
                pass
        members = dict(zarr.open_consolidated(path, zarr_format=version).members(max_depth=None))
        if "uns/pca" in members:  # whoever sees the last place sees all of them
            assert set(SLOTS) <= set(members)
            shapes = {members["obsm/X_pca"].shape[1], members["varm/PCs"].shape[1]}  # type: ignore[union-attr]
            assert len(shapes) == 1
        with slots_of(path) as slots:
            taken = slots.taken(written_slots.Keys())
        assert len(taken) in (0, 3)
        if len(taken) == 3 and zarr.open_array(path / "varm/PCs", mode="r").shape[1] == 3:
            require_results(path, 3)
        elif not earlier:
            assert picture(path) == picture(origin)
        assert [child.name for child in place.iterdir()] == ["a.zarr"]
        number += 1
    assert number > 8


def slots_of(path: Path) -> Any:
    """Return the places of a store, after recovery."""
    from streampca.anndata.slots import slots_at

    return slots_at(str(path), "test")


def test_foreign_files_in_the_place_of_ours_are_left_alone(tmp_path: Path) -> None:
    path = store(tmp_path / "a.zarr")
    (tmp_path / ".a.zarr.streampca-results").mkdir()
    (tmp_path / ".a.zarr.streampca-results/mine").write_text("x")
    before = picture(tmp_path)
    with pytest.raises(OutputError, match="is in the way"):
        sp.anndata.pca(path, 3)
    assert picture(tmp_path) == before


def test_a_failed_fit_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    path = store(tmp_path / "a.zarr")
    group = zarr.open_group(path / "X", mode="a")
    group["data"][7] = np.inf  # type: ignore[index]
    before = picture(tmp_path)
    with pytest.raises(DataError, match="infinity"):
        sp.anndata.pca(path, 3)
    assert picture(tmp_path) == before


@pytest.mark.parametrize(
    ("adata", "options", "error", "words"),
    [
        ("none.zarr", {}, DataError, "no such file"),
        ("g.zarr", {}, DataError, "encoding-type is not anndata"),
        ("memory://a.zarr", {}, NotAvailableError, "local"),
        (np.ones((5, 3)), {}, ParameterError, "expected an AnnData object"),
        ("a.zarr", {"key_added": "../X"}, ParameterError, "without slashes"),
        ("a.zarr", {"n_comps": 0}, ParameterError, "n_components"),
        ("a.zarr", {"layer": "counts"}, DataError, "has no layer"),
    ],
)
def test_bad_arguments_are_named_errors_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adata: Any, options: Any, error: Any, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store(tmp_path / "a.zarr")
    zarr.open_group(tmp_path / "g.zarr", mode="w").create_array("x", data=np.ones((5, 3)))
    before = picture(tmp_path)
    with pytest.raises(error, match=words):
        sp.anndata.pca(adata, **options)
    assert picture(tmp_path) == before


CONFIG = """
source: {path: a.zarr, mask_var: highly_variable, normalize: {target_sum: 1.0e4, log1p: true}}
model: {n_components: 3}
output: {directory: out, anndata: true, report: true}
"""


@pytest.mark.slow
def test_run_writes_its_results_and_finishes_that_alone_with_resume(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    path, command = store(tmp_path / "a.zarr", consolidated=True), Command(capsys)
    (tmp_path / "c.yaml").write_text(CONFIG)
    with monkeypatch.context() as patched:
        patched.setattr(
            "streampca.runs.one_model.write_run", lambda *a, **k: (_ for _ in ()).throw(OutputError("no room"))
        )
        command.quietly("run", "c.yaml").refused(6, "the run itself is finished", "--resume")
    assert not (path / "uns/pca").exists()
    assert command.quietly("run", "c.yaml", "--resume").status == 0
    require_results(path, 3)
    before = picture(path)
    assert command.quietly("run", "c.yaml", "--resume").status == 0  # they are there already
    assert picture(path) == before
    assert command.quietly("verify", "out").status == 0
    again = ("--set", "output.directory=other")
    command.quietly("run", "c.yaml", *again).refused(6, "output.anndata: overwrite")
    assert not (tmp_path / "other").exists()
    assert command.quietly("run", "c.yaml", *again, "--set", "output.anndata=overwrite").status == 0
    require_results(path, 3)
    assert command("inspect", "a.zarr").out.startswith("kind                   AnnData\n")


def test_configurations_that_cannot_write_into_anndata_are_refused(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    store(tmp_path / "a.zarr")
    np.save(tmp_path / "x.npy", COUNTS.toarray())
    (tmp_path / "c.yaml").write_text(CONFIG)
    command = Command(capsys)
    for changes, word in (
        (["output.scores=false"], "scores: true"),
        (["model.kind=kernel_pca"], "kind: pca"),
        (["source.path=x.npy", "source.mask_var=null", "source.normalize=null"], "is not AnnData"),
        (["source.normalize.target_sum=-1"], "a number above 0"),
        (["source.normalize={}"], "does nothing"),
        (["output.anndata=yes!"], "true, false or overwrite"),
    ):
        options = [part for change in changes for part in ("--set", change)]
        command.quietly("run", "c.yaml", *options).refused(2, word)
    assert not (tmp_path / "out").exists()


def test_scores_of_new_cells_are_opened_as_the_data_of_the_fit(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    path = store(tmp_path / "a.zarr")
    (tmp_path / "c.yaml").write_text(CONFIG)
    command = Command(capsys)
    assert command.quietly("run", "c.yaml", "--set", "output.report=false").status == 0
    cells.write_cells(tmp_path / "b.zarr", COUNTS[:50], var={"highly_variable": ~USED})
    assert command.quietly("transform", "out", "b.zarr", "scores").status == 0
    scores = zarr.open_array(tmp_path / "scores/scores", mode="r")[:]
    np.testing.assert_allclose(scores, zarr.open_array(path / "obsm/X_pca", mode="r")[:50], atol=1e-5)


@pytest.mark.parametrize("stored", [False, True])
def test_the_mask_may_be_an_array_of_truth_values(tmp_path: Path, stored: bool) -> None:
    anndata = pytest.importorskip("anndata")
    path = store(tmp_path / "a.zarr")
    data = path if stored else anndata.AnnData(csr_matrix(COUNTS))
    named = sp.anndata.pca(path, 3, mask_var="highly_variable", normalize=NORMALIZE, key_added="named")
    given = sp.anndata.pca(data, 3, mask_var=USED, normalize=NORMALIZE)
    np.testing.assert_allclose(given.explained_variance_, named.explained_variance_, rtol=1e-12)
    if stored:
        require_results(path, 3)
    else:
        assert not data.varm["PCs"][~USED].any()


def test_arrays_as_the_name_of_a_mask_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match=r"mask_var is ndarray: expected the name.*give truth values as mask"):
        sp.open(store(tmp_path / "a.zarr"), mask_var=USED)  # type: ignore[arg-type]


def test_the_number_of_components_without_one_is_that_of_scanpy(tmp_path: Path) -> None:
    path = store(tmp_path / "a.zarr")
    assert sp.anndata.pca(path, None).n_components_ == 39
    assert sp.anndata.pca(path, None, mask_var="highly_variable", overwrite=True).n_components_ == USED.sum() - 1
    wide = cells.write_cells(tmp_path / "b.zarr", hstack([csr_matrix(COUNTS), csr_matrix(COUNTS)], "csr"))
    assert sp.anndata.pca(wide, None).n_components_ == 50


def test_genes_that_differ_from_those_of_the_fit_are_named(tmp_path: Path) -> None:
    pandas, anndata = pytest.importorskip("pandas"), pytest.importorskip("anndata")
    table = anndata.AnnData(csr_matrix(COUNTS), var=pandas.DataFrame(index=[f"g{j}" for j in range(40)]))
    pca = sp.PCA(2).fit(table)
    with pytest.raises(ParameterError, match=r"var_names \(the same values in another order\): expected the features"):
        pca.transform(table[:, ::-1])
    other = table.copy()
    other.var_names = [*table.var_names[:7], "x", *table.var_names[8:]]
    with pytest.raises(ParameterError, match=r"var_names \(at place 7 x, not g7\)"):
        pca.transform(other)
    np.testing.assert_array_equal(pca.transform(table[:, ::-1][:, table.var_names]), pca.transform(table))


def test_chunks_of_the_mask_that_were_left_out_are_read_as_false_if_asked(tmp_path: Path) -> None:
    path = store(tmp_path / "a.zarr")
    mask = np.arange(40) < 20
    with warnings.catch_warnings(action="ignore"):
        var = zarr.open_group(path / "var", mode="r+")
        column = var.create_array("first", shape=(40,), chunks=(10,), dtype=bool, config={"write_empty_chunks": False})
    column[:], var.attrs["column-order"] = mask, ["first"]
    with pytest.raises(DataError, match="fill_labels"):
        sp.anndata.pca(path, 3, mask_var="first")
    pca = sp.anndata.pca(path, 3, mask_var="first", missing_chunks="fill_labels")
    assert pca.n_features_in_ == 20
    expected = sp.PCA(3).fit(COUNTS[:, mask]).explained_variance_
    np.testing.assert_allclose(pca.explained_variance_, expected, rtol=1e-5)
