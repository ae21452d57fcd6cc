"""Runs of groups of rows: the bits of `fit_groups`, labels of every kind, verification, resumption, and refusals before reading."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from stores import Command

import streampca as sp
from streampca.errors import DataError, ParameterError, StreamPCAError

pytestmark = pytest.mark.numerical
N, D, NAMES = 1200, 6, ("early", "late", "mid/dle")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture(scope="module")
def rows() -> Any:
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, D)) * np.linspace(1, 3, D) + 4.0 * (np.arange(N) % 3)[:, None]


@pytest.fixture(scope="module")
def labels() -> Any:
    return np.array(NAMES)[np.arange(N) % 3]


@pytest.fixture(scope="module")
def store(rows: Any, labels: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with the rows, their times, and a label for each of them beside it."""
    path = tmp_path_factory.mktemp("groups") / "x.zarr"
    group = zarr.open_group(path, mode="w")
    group.create_array("x", shape=rows.shape, chunks=(100, D), dtype="f8", dimension_names=("time", "place"))[:] = rows
    time = group.create_array("time", shape=(N,), chunks=(N,), dtype="i8", dimension_names=("time",))
    time.attrs.update({"units": "days since 2000-01-01", "calendar": "standard"})
    time[:] = np.arange(N)
    codes = group.create_array("phase", shape=(N,), chunks=(N,), dtype="i4", dimension_names=("time",))
    codes[:] = np.arange(N) % 3
    group.create_array("short", shape=(D,), chunks=(D,), dtype="i4")[:] = 1
    return path


def configuration(store: Path, directory: Path, group_by: str, **more: Any) -> Path:
    path = directory / "config.yaml"
    document = {
        "source": {"path": str(store), **more.pop("source", {})},
        "model": {"n_components": 2, "group_by": group_by, **more.pop("model", {})},
        "output": {"directory": str(directory / "run"), **more.pop("output", {})},
        **more,
    }
    path.write_text(json.dumps(document))
    return path


@pytest.fixture(scope="module")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return sp.run(configuration(store, tmp_path_factory.mktemp("finished"), "time.month", source={"array": "x"}))


@pytest.mark.slow
def test_a_run_has_the_bits_of_fit_groups(finished: Any, store: Path) -> None:
    expected = sp.PCA(2).fit_groups(sp.open(store, array="x"), "time.month")
    found = finished.model
    assert list(found) == list(expected)
    assert found.groups_ == expected.groups_ == tuple(range(1, 13))
    for name, model in expected.items():
        np.testing.assert_array_equal(found[name].components_, model.components_)
        np.testing.assert_array_equal(found[name].explained_variance_, model.explained_variance_)
    np.testing.assert_allclose(found.similarity(), expected.similarity(), atol=1e-12)
    tables = finished.manifest["similarity"]
    np.testing.assert_allclose(tables["mean_squared_cosine"], expected.similarity(), atol=1e-12)
    np.testing.assert_allclose(tables["largest_angle"], expected.angles(), atol=1e-9)
    assert (finished.manifest["passes"], finished.manifest["reads"]["fit"]["bytes"]) == (1, 8 * N * D)


@pytest.mark.slow
def test_commands_take_the_run_and_its_configuration(finished: Any, call: Command, tmp_path: Path) -> None:
    config = finished.directory / "config.yaml"
    assert call("check", config).status == 0
    planned = json.loads(call("plan", config, "--json").out)
    assert "12 matrices of 6 x 6, one for each group" in planned["reason"]
    assert "run of groups" in call("inspect", finished.directory).out
    assert call("report", finished.directory).status == 0
    again = call("run", config, "--resume", "--quiet")
    assert again.status == 0
    assert "pooled: 2 components of 1,200 x 6" in again.out
    page = (finished.directory / "report.html").read_text()
    assert "Map of the similarity of 12 groups" in page
    assert "Least similar:" in page
    first = finished.manifest["models"]["12"]["result"]
    cells = zip(first["explained_variance"], first["explained_variance_ratio"], strict=True)
    assert all(f"{value:.4g} ({share:.1%})" in page for value, share in cells)
    assert call("export", finished.directory / "models" / "3.zarr", tmp_path / "m.npz").status == 0
    refused = call("transform", finished.directory, "x", tmp_path / "s")
    assert refused.status == 5
    assert "holds several models" in refused.err


@pytest.mark.slow
def test_verification_measures_every_model_and_notices_changes(finished: Any, tmp_path: Path, call: Command) -> None:
    done = json.loads(call("verify", finished.directory, "--quiet", "--json").out)
    assert done["holds"]
    assert {"1", "12", "pooled", "between", "input", "manifest"} <= {check["name"] for check in done["checks"]}
    copy = tmp_path / "copy"

    def changed(edit: Any) -> str:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(finished.directory, copy)
        manifest = json.loads((copy / "manifest.json").read_text())
        edit(manifest)
        (copy / "manifest.json").write_text(json.dumps(manifest))
        refused = call("verify", copy, "--quiet")
        assert refused.status == 5
        return str(refused.err)

    assert "manifest similarity" in changed(lambda m: m["similarity"]["largest_angle"][2].__setitem__(3, 0.1))
    assert "manifest models.3" in changed(lambda m: m["models"]["3"]["result"].update(total_variance=1.0))
    assert "an entry of its manifest.json is damaged" in changed(lambda m: m["models"]["3"].update(model="../x.zarr"))

    def swapped(manifest: Any) -> None:
        for name in ("3.zarr", "4.zarr"):
            shutil.rmtree(copy / "models" / name)
        shutil.copytree(finished.directory / "models" / "3.zarr", copy / "models" / "4.zarr")
        shutil.copytree(finished.directory / "models" / "4.zarr", copy / "models" / "3.zarr")
        manifest["models"]["3"], manifest["models"]["4"] = (
            {**manifest["models"][other], "label": int(name), "model": f"models/{name}.zarr"}
            for name, other in (("3", "4"), ("4", "3"))
        )

    assert ", 3, 4: the data or the run have changed" in changed(swapped)


class _PowerCutError(BaseException):
    """Stops a run as a signal would."""


@pytest.mark.slow
def test_a_stopped_run_goes_on_to_the_same_bits(
    finished: Any, store: Path, tmp_path: Path, all_checkpoints: None, blocks_of: Any
) -> None:
    blocks_of(100)
    config, seen = configuration(store, tmp_path, "phase", source={"array": "x"}, output={"report": False}), []
    expected = sp.PCA(2).fit_groups(sp.open(store, array="x"), np.arange(N) % 3)

    def stop_late(step: Any) -> None:
        if step.rows > N // 2:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.run(config, progress=stop_late)
    again = sp.run(config, resume=True, progress=lambda step: seen.append(step.rows))
    assert seen[0] > N // 4
    assert again.manifest["resumed"]["attempts"] == 2
    resumed = again.model
    for name, model in expected.items():
        np.testing.assert_array_equal(resumed[name].components_, model.components_)


def assert_groups(run: Any, rows: Any, labels: Any) -> None:
    """Compare the run with fits of the rows of each group alone."""
    model = run.model  # which reads all of them
    assert model.groups_ == tuple(np.unique(labels).tolist())
    for name in np.unique(labels).tolist():
        expected = sp.PCA(2).fit(rows[labels == name])
        np.testing.assert_allclose(model[name].explained_variance_, expected.explained_variance_, rtol=1e-12)
        assert model[name].n_samples_seen_ == (labels == name).sum()


def test_infinite_labels_are_text_in_a_run(store: Path, rows: Any, tmp_path: Path) -> None:
    labels = np.where(np.arange(N) % 3 == 0, np.inf, 1.5)
    np.save(tmp_path / "labels.npy", labels)
    output = {"report": False}
    run = sp.run(configuration(store, tmp_path, str(tmp_path / "labels.npy"), source={"array": "x"}, output=output))
    assert run.model.groups_ == (1.5, "inf")
    expected = sp.PCA(2).fit(rows[::3]).explained_variance_
    np.testing.assert_allclose(run.model["inf"].explained_variance_, expected, rtol=1e-12)


def test_a_part_of_times_in_parquet_needs_the_column_of_times(rows: Any, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    times = np.datetime64("2001-01-01T00:00:00") + np.arange(N).astype("timedelta64[D]")
    table = pa.table({f"f{i}": rows[:, i] for i in range(D)} | {"time": times.astype("datetime64[us]")})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(StreamPCAError, match=r"set source\.id_column: time$"):
        sp.run(configuration(tmp_path / "x.parquet", tmp_path, "time.month"))


def test_a_group_of_one_time_is_named_as_a_time(rows: Any) -> None:
    days = np.datetime64("2001-02-03", "ns") + (np.arange(N) > 0).astype("timedelta64[D]")
    with pytest.raises(DataError, match=r"^group 2001-02-03 has 1 row"):
        sp.PCA(2).fit_groups(rows, days)


@pytest.mark.slow
def test_a_column_of_labels_that_would_be_a_feature_is_refused(rows: Any, tmp_path: Path) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {f"f{i}": rows[:, i] for i in range(D)}
    table = pa.table({**columns, "phase": np.arange(N) % 3, "id": [f"r{i}" for i in range(N)]})
    parquet.write_table(table, tmp_path / "x.parquet")
    source: dict[str, Any] = {"id_column": "id"}
    with pytest.raises(
        ParameterError, match=r"this column would be a feature, too: name the features in source.columns"
    ):
        sp.run(configuration(tmp_path / "x.parquet", tmp_path, "phase", source=dict(source)))
    source["columns"] = list(columns)
    run = sp.run(configuration(tmp_path / "x.parquet", tmp_path, "phase", source=source, output={"report": False}))
    assert_groups(run, rows, np.arange(N) % 3)


@pytest.mark.slow
def test_labels_of_parquet_columns_files_and_arrays_divide_the_rows(
    store: Path, rows: Any, labels: Any, tmp_path: Path
) -> None:
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({**{f"f{i}": rows[:, i] for i in range(D)}, "phase": labels})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=500)
    output = {"report": False, "overwrite": True}
    run = sp.run(configuration(tmp_path / "x.parquet", tmp_path, "phase", output=output))
    assert_groups(run, rows, labels)
    pytest.importorskip("pyarrow.feather").write_feather(table, tmp_path / "x.arrow")
    assert_groups(sp.run(configuration(tmp_path / "x.arrow", tmp_path, "phase", output=output)), rows, labels)
    assert sorted(path.name for path in (run.directory / "models").iterdir()) == [
        "between.zarr",
        "early.zarr",
        "late.zarr",
        "mid-dle.zarr",
        "pooled.zarr",
    ]
    assert sp.load(run.directory / "models" / "mid-dle.zarr").n_samples_seen_ == N // 3
    np.save(tmp_path / "labels.npy", labels)
    run = sp.run(configuration(store, tmp_path, str(tmp_path / "labels.npy"), source={"array": "x"}, output=output))
    assert_groups(run, rows, labels)


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("kind", ["zarr", "h5ad"])
def test_columns_of_obs_divide_cells(kind: str, rows: Any, labels: Any, tmp_path: Path) -> None:
    anndata, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    obs = pd.DataFrame({"type": pd.Categorical(labels), "batch": np.arange(N) % 2, "few": [None, "a"] * (N // 2)})
    obs.index = [f"c{i}" for i in range(N)]
    obs["few"] = pd.Categorical(obs["few"])
    path = tmp_path / f"cells.{kind}"
    data = anndata.AnnData(rows, obs=obs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # anndata tells of defaults that will change
        data.write_zarr(path) if kind == "zarr" else data.write_h5ad(path)
    output = {"report": False, "overwrite": True}
    assert_groups(sp.run(configuration(path, tmp_path, "type", output=output)), rows, labels)
    assert_groups(sp.run(configuration(path, tmp_path, "batch", output=output)), rows, np.arange(N) % 2)
    with pytest.raises(
        ParameterError, match=r"no sample coordinate or column 'tipe'; .*: obs_names, type, batch, few\."
    ):
        sp.run(configuration(path, tmp_path, "tipe", output=output))
    with pytest.raises(DataError, match=r"obs/few of .* has 600 missing values: expected a label for every cell"):
        sp.run(configuration(path, tmp_path, "few", output=output))


def test_more_groups_than_fit_are_refused_before_anything_is_read(tmp_path: Path, call: Command) -> None:
    zarr.create_array(tmp_path / "x.zarr", shape=(2000, 300), chunks=(100, 300), dtype="f8")
    np.save(tmp_path / "labels.npy", np.arange(2000) % 500)
    allowed = sp.PCA(2).plan(np.zeros((2000, 300))).budget.bytes_for("process") + 100 * 2**20
    config = configuration(
        tmp_path / "x.zarr",
        tmp_path,
        str(tmp_path / "labels.npy"),
        source={"missing_chunks": "fill"},
        resources={"memory": allowed},
    )

    (tmp_path / "x.zarr/c/0").mkdir(parents=True)
    (tmp_path / "x.zarr/c/0/0").write_bytes(b"rows that are read are damaged")
    for command in ("plan", "run"):
        refused = call(command, config)
        assert refused.status == 7
        assert "500 groups, with a covariance matrix each: projected" in refused.err
        assert "groups would fit" in refused.err


@pytest.mark.parametrize(
    ("more", "status", "message"),
    [
        ({"output": {"scores": True}}, 2, "output.scores cannot be combined with model.group_by: leave it out"),
        ({"model": {"solver": "sketch"}}, 2, "solver='sketch' does not take groups: use solver='covariance'"),
        ({"preprocess": {"missing": "mean"}}, 2, "fits of groups do not take missing='mean'"),
        (
            {"model": {"group_by": "short"}},
            2,
            "model.group_by has shape (6,): expected one label for each of the 1200 rows",
        ),
        (
            {"model": {"group_by": "season"}},
            5,
            "model.group_by: season is neither a path that ends in .npy nor an array",
        ),
    ],
)
def test_what_does_not_go_together_with_groups_is_refused_on_one_line(
    more: Any, status: int, message: str, store: Path, tmp_path: Path, call: Command
) -> None:
    model = {"group_by": "time.month", **more.pop("model", {})}
    path = configuration(store, tmp_path, model.pop("group_by"), model=model, source={"array": "x"}, **more)
    refused = call("run", path, "--quiet")
    assert refused.status == status
    assert message in refused.err
    assert refused.err.count("\n") == 1


def test_groups_in_models_are_refused(store: Path, tmp_path: Path, call: Command) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"source: {{path: {store}, array: x}}\nmodels: {{a: {{group_by: time.month}}}}\n")
    refused = call("check", path)
    assert refused.status == 2
    assert "models.a.group_by: groups have a run of their own" in refused.err
