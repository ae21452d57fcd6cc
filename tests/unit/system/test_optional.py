"""Packages of extras: each that is missing is named with the command that installs it, and a run needs none of them."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import cells
import numpy as np
import pytest
from installed import modules
from pages import written

import streampca as sp
from streampca.errors import NotAvailableError

ROWS = np.random.default_rng(0).standard_normal((300, 12)) * np.arange(1, 13)
SETTINGS = "source: {path: x.npy}\nmodel: {n_components: 3}\noutput: {directory: out, scores: true}\n"


def _fitted() -> sp.PCA:
    return sp.PCA(2).fit(ROWS)


def _on(cluster: dict[str, object]) -> object:
    np.save("x.npy", ROWS)
    return sp.run({"source": {"path": "x.npy"}, "cluster": cluster, "model": {"n_components": 2}})


USES: dict[tuple[str, str], Callable[[Path], object]] = {
    ("xarray", "xarray"): lambda path: _fitted().to_xarray(),
    ("anndata", "h5py"): lambda path: sp.anndata.pca(path / "x.h5ad"),
    ("anndata", "anndata"): lambda path: sp.open(cells.write_cells(path / "x.zarr", cells.make_counts(9, 4))),
    ("arrow", "pyarrow"): lambda path: sp.open(path / "x.parquet"),
    ("hdf5", "h5py"): lambda path: sp.open(path / "x.h5"),
    ("icechunk", "icechunk"): lambda path: sp.open(f"icechunk:{path}"),
    ("lake", "deltalake"): lambda path: sp.open(path / "delta"),
    ("genotypes", "bed_reader"): lambda path: sp.open(path / "x.bed"),
    ("export", "sklearn"): lambda path: _fitted().to_sklearn(),
    ("export", "onnx"): lambda path: _fitted().to_onnx(path / "m.onnx"),
    ("export", "faiss"): lambda path: _fitted().to_faiss(path / "m.faiss"),
    ("examples", "sklearn"): lambda path: sp.open("builtin:iris"),
    ("examples", "PIL"): lambda path: sp.open("builtin:photo-patches"),
    ("s3", "obstore"): lambda path: sp.open("s3://bucket/x.zarr"),
    ("s3", "botocore"): lambda path: sp.open("s3://bucket/x.zarr", storage_options={"profile": "lab"}),
    ("remote", "obstore"): lambda path: sp.open("https://host.example/x.zarr"),
    ("report", "matplotlib"): lambda path: _fitted().plot.scree(),
    ("torch", "torch"): lambda path: sp.PCA(2, device="cuda").fit(ROWS),
    ("slurm", "dask_jobqueue"): lambda path: _on({"kind": "slurm"}),
}
"""What needs a package of an extra, in a directory with files whose content is of no importance."""


@pytest.mark.parametrize(("extra", "package"), USES)
def test_a_missing_package_is_named_with_its_extra(
    extra: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x.h5ad", "x.parquet", "x.h5", "x.bed", "x.fam", "x.bim"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with (
        modules(**{package: None}),
        pytest.raises(NotAvailableError, match=rf'pip install "streampca\[{extra}\]"') as caught,
    ):
        USES[extra, package](tmp_path)
    assert caught.value.exit_status == 2


def test_every_extra_for_users_has_a_case() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    declared = set(project["optional-dependencies"]) - {"all", "test", "dev", "docs"}
    assert {extra for extra, _ in USES} == declared


@pytest.mark.slow
def test_without_matplotlib_the_page_has_no_charts_and_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS)
    Path("job.yaml").write_text(SETTINGS)
    with modules(matplotlib=None):
        run = sp.run("job.yaml")
    page = (run.directory / "report.html").read_text()
    assert "<svg" not in page
    assert "pip install &#34;streampca[report]&#34;" in page
    assert 'id="spectrum"' not in page  # no heading above nothing
    page = written(run.directory)
    assert "<svg" in page
    assert "[report]" not in page


_WITHOUT = """
import sys
import tomllib
import numpy as np
for name in ("sklearn", "matplotlib", "PIL", "pandas", "xarray", "pyarrow", "h5py", "obstore"):
    sys.modules[name] = None
import json
import streampca as sp
run = sp.run("job.yaml")
rows = np.load("x.npy")
pca = sp.PCA(3).fit(rows)
frozen = sp.load("out/model.zarr")
kernel = sp.KernelPCA(2).fit(rows[:50])
print(json.dumps({
    "model": run.model.components_.tolist(), "fit": pca.components_.tolist(), "scores": pca.transform(rows[:5]).tolist(),
    "kernel": kernel.eigenvalues_.tolist(), "params": sorted(pca.get_params()), "names": list(pca.get_feature_names_out()),
    "loaded": frozen.get_params()["n_components"], "rotated": pca.rotate(2).explained_variance_.tolist(),
    "bases": [base.__module__ for base in sp.PCA.__mro__ if base.__module__.startswith("sklearn")],
}))
"""


@pytest.mark.slow
def test_runs_and_estimators_have_the_same_results_without_any_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", ROWS)
    Path("job.yaml").write_text(SETTINGS)
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    without = json.loads(done.stdout)
    pca = sp.PCA(3).fit(ROWS)
    assert without == {
        "model": pca.components_.tolist(),
        "fit": pca.components_.tolist(),
        "scores": pca.transform(ROWS[:5]).tolist(),
        "kernel": sp.KernelPCA(2).fit(ROWS[:50]).eigenvalues_.tolist(),
        "params": sorted(pca.get_params()),
        "names": list(pca.get_feature_names_out()),
        "loaded": 3,
        "rotated": pca.rotate(2).explained_variance_.tolist(),
        "bases": [],
    }


def test_a_zarr_without_the_interface_is_refused_by_name(tmp_path: Path) -> None:
    code = "import zarr.core.sync as sync; del sync._get_loop; import streampca as sp; sp.open('x.zarr')"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "NotAvailableError: zarr" in done.stderr
    assert "is not supported" in done.stderr


def test_a_clone_that_is_not_installed_is_named_by_its_path(tmp_path: Path) -> None:
    """pip knows no package of that name there, so that the command has the path of the clone, in every folder."""
    (tmp_path / "streampca").symlink_to(Path(sp.__file__).parent)
    code = (
        "import importlib.metadata as metadata, sys\n"
        "known = metadata.Distribution.from_name\n"
        "def without(name):\n"
        "    if name == 'streampca':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return known(name)\n"
        "metadata.Distribution.from_name = without\n"
        "sys.modules['xarray'] = None\n"
        "import streampca as sp\n"
        "try:\n"
        "    sp.PCA(1).fit([[1.0, 2.0], [3.0, 5.0]]).to_xarray()\n"
        "except sp.errors.NotAvailableError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    clone = Path(sp.__file__).resolve().parents[1]
    assert done.stdout.rstrip().endswith(f'which is not installed: pip install "{clone}[xarray]"')
