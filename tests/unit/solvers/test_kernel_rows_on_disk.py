"""The empirical kernel map of rows that do not fit in memory: they are copied to disk and read in bands."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from dask import config as dask_config
from facade import Unread
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

import streampca as sp
from streampca.errors import ModelError, NoSpaceError, ParameterError, PlanError
from streampca.solvers.kernel.empirical_map import EmpiricalMapMethod

pytestmark = pytest.mark.numerical

N, D = 2500, 12
OPTIONS: dict[str, Any] = {"method": "empirical_map", "sketch_size": 40, "gamma": 0.05}


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float64]:
    return np.random.default_rng(3).standard_normal((N, D)) / np.sqrt(np.arange(1, D + 1)) + 0.3


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every plan of the empirical map have its rows on disk, 1,024 of them in memory at a time."""

    in_memory = EmpiricalMapMethod.plan

    def planned(*arguments: Any) -> Any:
        plan = in_memory(*arguments)
        return plan.replace(rows_on_disk=True, rows_in_memory=1024, disk_bytes=8 * plan.n_samples * plan.n_features)

    monkeypatch.setattr(EmpiricalMapMethod, "plan", planned)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let models be loaded as if nearly no memory were free."""
    monkeypatch.setattr("streampca.models.persistence.models.available_bytes", lambda: 1000)


def of_numpy(rows: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Return the first eigenvalues of the centred kernel matrix, by numpy alone."""
    values = np.exp(-0.05 * cdist(rows, rows, "sqeuclidean"))
    values -= values.mean(axis=0)
    values -= values.mean(axis=1)[:, None]
    return np.linalg.eigvalsh(values)[::-1][:k]


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.usefixtures("on_disk")
@pytest.mark.parametrize(("dtype", "scale"), [(np.float32, False), (np.float64, False), (np.float64, True)])
def test_a_fit_agrees_with_numpy_and_with_rows_in_memory(
    rows: NDArray[np.float64], dtype: Any, scale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = rows.astype(dtype)
    found = sp.KernelPCA(3, scale=scale, **OPTIONS).fit(table)
    assert found.plan_.model_on_disk
    monkeypatch.undo()
    expected = sp.KernelPCA(3, scale=scale, **OPTIONS).fit(table)
    assert not expected.plan_.model_on_disk
    # Means and deviations are added up in another order.
    compare = np.testing.assert_array_equal if not scale else np.testing.assert_allclose
    compare(found.eigenvalues_, expected.eigenvalues_)
    compare(found.eigenvectors_, expected.eigenvectors_)
    if not scale:
        truth = of_numpy(table.astype(np.float64), 3)
        intervals = np.array(found.error_["eigenvalue_intervals"])
        assert (intervals[:, 0] <= truth).all()
        assert (truth <= intervals[:, 1]).all()
    np.testing.assert_array_equal(np.asarray(found.landmarks_[:]), table)
    # Kernel values in the type of the rows; sums of 2,500 of them by bands, and at once.
    largest = np.abs(expected.eigenvectors_ * np.sqrt(expected.eigenvalues_)).max()
    allowed = 100 * np.finfo(dtype).eps * N**0.5 * largest
    for new in (table[:700], table[:1] + 1):
        np.testing.assert_allclose(found.transform(new), expected.transform(new), atol=allowed)


@pytest.mark.slow
@pytest.mark.usefixtures("on_disk")
def test_the_model_is_saved_with_its_rows(rows: NDArray[np.float64], tmp_path: Path, request: Any) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with dask_config.set({"temporary-directory": str(temporary)}):
        fitted = sp.KernelPCA(3, **OPTIONS).fit(rows)
    assert any(temporary.iterdir())
    expected = fitted.transform(rows[:50])
    fitted.save(tmp_path / "model.zarr")
    copied = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copied.transform(rows[:50]), expected)
    del fitted, copied
    assert not any(temporary.iterdir())  # the temporary directory goes with the estimator

    loaded: Any = sp.load(tmp_path / "model.zarr")
    np.testing.assert_allclose(loaded.transform(rows[:50]), expected, rtol=1e-9, atol=1e-12)
    request.getfixturevalue("little_memory")
    there: Any = sp.load(tmp_path / "model.zarr")
    np.testing.assert_array_equal(there.transform(rows[:50]), expected)
    there.save(tmp_path / "again.zarr")
    np.testing.assert_array_equal(sp.load(tmp_path / "again.zarr").transform(rows[:50]), expected)

    shutil.rmtree(tmp_path / "model.zarr" / "landmarks" / "c")
    with pytest.raises(ModelError, match=r"landmarks.*gone or incomplete"):
        there.transform(rows[:50])
    with pytest.raises(ModelError, match="landmarks"):
        sp.load(tmp_path / "model.zarr")


@pytest.mark.usefixtures("on_disk")
def test_saved_rows_that_were_changed_are_refused(rows: NDArray[np.float64], tmp_path: Path, request: Any) -> None:
    sp.KernelPCA(3, **OPTIONS).fit(rows).save(tmp_path / "model.zarr")
    stored: Any = zarr.open_array(tmp_path / "model.zarr" / "landmarks", mode="r+")
    stored[1500, 3] = 7.0
    request.getfixturevalue("little_memory")
    with pytest.raises(ModelError, match="landmarks does not have the SHA-256"):
        sp.load(tmp_path / "model.zarr")


def test_the_plan_takes_as_many_rows_as_fit(tmp_path: Path) -> None:
    n, d = 12_000, 600
    zarr.create_array(tmp_path / "x.zarr", shape=(n, d), chunks=(1000, d), dtype="f4")
    allowed: dict[str, Any] = {"method": "empirical_map", "sketch_size": 70}
    whole = sp.KernelPCA(4, **allowed).plan(tmp_path / "x.zarr")
    assert not whole.model_on_disk
    assert whole.disk_bytes == 0
    seen = []
    for missing in (20, 60, 80):
        memory = whole.projected_bytes - missing * 2**20
        plan = sp.KernelPCA(4, memory=memory, **allowed).plan(tmp_path / "x.zarr")
        assert plan.model_on_disk
        assert plan.disk_bytes == 4 * n * d
        assert plan.projected_bytes <= memory
        assert plan.passes == 1
        assert f"{plan.detail.rows_in_memory:,} rows in memory at a time" in str(plan)
        seen.append(plan.detail.rows_in_memory)
    assert seen == sorted(seen, reverse=True)
    assert seen[0] > seen[-1]
    with pytest.raises(PlanError, match=r"12,000 rows and 70 columns take.* memory of at least"):
        sp.KernelPCA(4, memory=whole.projected_bytes - 150 * 2**20, **allowed).plan(tmp_path / "x.zarr")
    with pytest.raises(
        PlanError, match="fit_inverse_transform=False, so that rows can be on disk"
    ):  # the map back to the rows takes n² numbers
        sp.KernelPCA(4, memory=memory, fit_inverse_transform=True, **allowed).plan(tmp_path / "x.zarr")


@pytest.mark.usefixtures("on_disk")
def test_rows_on_disk_are_not_loaded_by_accident(rows: NDArray[np.float64]) -> None:
    fitted = sp.KernelPCA(2, sampling_errors=5, **OPTIONS).fit(rows)
    assert fitted.sampling_error_.eigenvalues.shape == (2,)
    with pytest.raises(ParameterError, match="rows take 234 KiB and lie on disk"):
        fitted.kernel_distance(rows[:3])
    assert fitted.kernel_distance(rows[:3], rows[:2]).shape == (3, 2)


def test_no_room_is_told_before_anything_is_read() -> None:
    with pytest.raises(NoSpaceError, match=r"10\.9 TiB will be written"):
        sp.KernelPCA(2, memory="200GiB", **OPTIONS).fit(Unread((3_000_000, 1_000_000)))
