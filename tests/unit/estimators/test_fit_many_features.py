"""Several models of some features each, from one reading: the bits of fits of these features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr
from stores import Command

import streampca as sp
from streampca.errors import NotAvailableError, NotFiniteError, ParameterError

pytestmark = pytest.mark.numerical
N, D = 20_000, 12
EVEN = np.arange(D) % 2 == 0


@pytest.fixture(scope="module")
def rows() -> Any:
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, D)) @ rng.standard_normal((D, D)) + 3.0


@pytest.fixture
def store(rows: Any, tmp_path: Path, blocks_of: Any) -> Path:
    """Return a group of two variables, and have blocks of one chunk whatever the number of features."""
    blocks_of(500)
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    for name, part in (("t", rows[:, :7]), ("p", rows[:, 7:])):
        names = ("time", f"place_{name}")
        group.create_array(name, shape=part.shape, chunks=(500, part.shape[1]), dtype="f8", dimension_names=names)[
            :
        ] = part
    return tmp_path / "x.zarr"


def models() -> dict[str, Any]:
    return {
        "all": sp.PCA(3),
        "t": sp.PCA(3, scale=True),
        "p": sp.PCA(2, missing="drop_rows"),
        "even": sp.PCA(2, remove={"trend": 1}),
        "rbf": sp.KernelPCA(2, method="nystrom", n_landmarks=20),
    }


CHOSEN = {"t": "t", "p": ["p"], "even": EVEN, "rbf": [1, 4, 8]}


def assert_same(found: Any, expected: Any) -> None:
    names = ("components_", "explained_variance_", "mean_", "total_variance_")
    for name in ("eigenvalues_", "landmarks_") if isinstance(expected, sp.KernelPCA) else names:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert found.n_features_in_ == expected.n_features_in_


def test_models_of_variables_and_features_have_the_bits_of_fits_of_these_from_one_reading(
    store: Path, rows: Any
) -> None:
    table = sp.open(store, variables=["t", "p"])
    fitted = sp.fit_many(models(), table, features=CHOSEN)
    assert (fitted.n_passes_, fitted.bytes_read_) == (2, 2 * rows.nbytes)
    assert fitted["all"].plan_.n_leaves > 1
    alone = {
        "all": table,
        "t": sp.open(store, variables=["t"]),
        "p": sp.open(store, variables=["p"]),
        "even": np.ascontiguousarray(rows[:, EVEN]),
        "rbf": rows[:, [1, 4, 8]],
    }
    for name, model in models().items():
        assert_same(fitted[name], model.fit(alone[name]))
    assert fitted["t"].labels_ is not None
    np.testing.assert_allclose(fitted["t"].transform(rows[:5, :7]).shape, (5, 3))


def test_features_of_arrays_and_frames(rows: Any) -> None:
    fitted = sp.fit_many({"a": sp.PCA(2), "b": sp.PCA(2)}, rows, features={"b": slice(3, 8)})
    np.testing.assert_allclose(
        fitted["b"].explained_variance_, sp.PCA(2).fit(rows[:, 3:8]).explained_variance_, rtol=1e-12
    )
    assert fitted["a"].n_features_in_ == D
    frame = pd.DataFrame(rows, columns=[f"f{i}" for i in range(D)])
    fitted = sp.fit_many({"a": sp.PCA(2), "b": sp.PCA(2)}, frame, features={"b": ["f9", "f3", "f4"]})
    assert list(fitted["b"].feature_names_in_) == ["f3", "f4", "f9"]
    for names in (np.array(["f9", "f3"]), frame.columns[[9, 3]]):
        of_array = sp.fit_many({"b": sp.PCA(1)}, frame, features={"b": names})["b"]
        assert list(of_array.feature_names_in_) == ["f3", "f9"]
    fortran = np.asfortranarray(rows)
    fitted = sp.fit_many({"a": sp.PCA(2), "b": sp.PCA(2)}, fortran, features={"b": EVEN})
    assert_same(fitted["b"], sp.PCA(2).fit(np.ascontiguousarray(rows[:, EVEN])))


class _PowerCutError(BaseException):
    """Stops a fit as a signal would."""


def test_a_stopped_fit_goes_on_to_the_same_bits(store: Path, tmp_path: Path, all_checkpoints: None) -> None:
    table, seen = sp.open(store, variables=["t", "p"]), []

    def few() -> Any:
        return {"all": sp.PCA(3), "t": sp.PCA(3)}

    def stop_late(step: Any) -> None:
        if step.rows > N // 2:
            raise _PowerCutError

    kept = tmp_path / "kept"
    with pytest.raises(_PowerCutError):
        sp.fit_many(few(), table, features={"t": "t"}, checkpoint=kept, progress=stop_late)
    with pytest.raises(sp.StreamPCAError, match=r"t\.features"):
        sp.fit_many(few(), table, features={"t": "p"}, checkpoint=kept)
    fitted = sp.fit_many(
        few(), table, features={"t": "t"}, checkpoint=kept, progress=lambda step: seen.append(step.rows)
    )
    assert seen[0] > 1000  # more than the first blocks of the leaves
    assert_same(fitted["t"], sp.PCA(3).fit(sp.open(store, variables=["t"])))


def test_a_value_that_is_not_finite_counts_for_models_that_have_its_feature(rows: Any) -> None:
    broken = rows.copy()
    broken[777, 5] = np.nan
    sp.fit_many({"a": sp.PCA(2), "b": sp.PCA(2)}, sp.sources.open_source(broken), features={"a": [0, 1], "b": EVEN})
    with pytest.raises(NotFiniteError, match="row 777"):
        sp.fit_many({"a": sp.PCA(2), "b": sp.PCA(2)}, sp.sources.open_source(broken), features={"a": [4, 5]})


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"c": [1]}, "there is no model 'c': expected some of a"),
        ({"a": []}, "a has none of the 12 features"),
        ({"a": [12]}, "a name a place outside the 12 features"),
        ({"a": [1, 1]}, "expected names, 12 truth values or different places"),
        ({"a": [0, -12]}, "expected names, 12 truth values or different places"),
        ({"a": [[0], [1, 2]]}, "features: a are no array"),
        ({"a": [0, "f1"]}, "of shape .2,. and type object: expected names"),
        ({"a": slice("f1", "f3")}, "features: a are .*: expected a slice of places"),
        ({"a": "f1"}, "there is no variable or feature 'f1'"),
    ],
)
def test_wrong_features_are_refused(features: Any, message: str, rows: Any) -> None:
    with pytest.raises(ParameterError, match=message):
        sp.fit_many({"a": sp.PCA(2)}, rows, features=features)


def test_features_of_sparse_rows_are_refused(rows: Any) -> None:
    with pytest.raises(NotAvailableError, match=r"features: a: .* sparse rows"):
        sp.fit_many({"a": sp.PCA(2)}, scipy.sparse.csr_array(rows), features={"a": [1, 2, 3]})


def test_few_features_take_blocks_of_whole_rows_and_little_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = 200_000, 2000
    zarr.create_array(tmp_path / "x.zarr", shape=shape, chunks=(500, shape[1]), dtype="f4")
    np.save(tmp_path / "few.npy", np.arange(shape[1]) < 3)
    plans = {}
    for names in (["all"], ["all", "b"], ["all", "b", "c"]):
        few = {"n_components": 2, "source": {"mask": str(tmp_path / "few.npy")}}
        document = {
            "source": {"path": str(tmp_path / "x.zarr")},
            "models": {name: {"n_components": 2} if name == "all" else few for name in names},
            "output": {"directory": str(tmp_path / "run")},
            "resources": {"memory": "8GiB", "threads": 2},
        }
        (tmp_path / "config.yaml").write_text(json.dumps(document))
        done = Command(capsys)("plan", tmp_path / "config.yaml", "--json")
        assert done.status == 0, done.err
        plans[len(names)] = json.loads(done.out)["together"]
    assert all(plan["rows_per_block"] >= 2000 and plan["rows_per_block"] % 500 == 0 for plan in plans.values())
    assert plans[2]["leaves_in_flight"] == plans[3]["leaves_in_flight"] == 2
    block = plans[1]["rows_per_block"] * shape[1] * 4
    assert plans[3]["projected_bytes"] < plans[1]["projected_bytes"] + 8 * block


def test_models_of_a_variable_have_its_labels_alone_and_take_new_data_of_it() -> None:
    xr = pytest.importorskip("xarray")
    random = np.random.default_rng(0)
    coordinates = {"time": np.arange(40), "lat": [10.0, 20.0, 30.0], "depth": [5.0, 10.0]}
    data = xr.Dataset(
        {
            "t": (("time", "lat"), random.normal(size=(40, 3))),
            "s": (("time", "lat", "depth"), random.normal(size=(40, 3, 2))),
        },
        coordinates,
    )
    data["s"][:, 1, 1] = np.nan
    table = sp.open(data, samples="time", mask="observed")
    fitted = sp.fit_many(
        {"t": sp.PCA(2), "s": sp.PCA(2), "some": sp.PCA(2)}, table, features={"t": "t", "s": "s", "some": [0, 4]}
    )
    for name in ("t", "s"):
        alone = sp.PCA(2).fit(sp.open(data[name], samples="time", mask="observed"))
        assert fitted[name].to_xarray().components.dims == alone.to_xarray().components.dims
        xr.testing.assert_allclose(fitted[name].to_xarray(), alone.to_xarray())
        for new in (data[name], data):
            xr.testing.assert_allclose(fitted[name].transform(new), alone.transform(data[name]))
    assert set(fitted["t"].to_xarray().coords) == {"lat", "mode"}
    assert {"components_t", "components_s"} <= set(fitted["some"].to_xarray())
