"""Products on a device: `array_api_strict` has devices whose arrays do not mix with those of numpy, so it stands in for a card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import array_api_strict
import numpy as np
import pytest
import zarr
from tensors import Tensor

import streampca as sp
from streampca.errors import DataError, NotAvailableError, NotFiniteError, ParameterError, PlanError
from streampca.states import Block, Covariance, DeviceCovariance, principal_components
from tests.facade import card

DEVICE = "array_api_strict:device1"
N, D, K = 6000, 150, 4


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    """Float32 rows with a decaying spectrum and a mean of many standard deviations."""
    rng = np.random.default_rng(3)
    scales = np.arange(1, D + 1) ** -0.7
    return (rng.standard_normal((N, D)) @ (np.diag(scales) + 0.01) + 40).astype("f4")


@pytest.fixture
def narrow() -> Iterator[None]:
    """Have the device multiply in float32, as a card does whose float64 is slow."""
    with card(DEVICE, wide=False):
        yield


def eigenvalues(rows: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Return the leading eigenvalues of the covariance in float64."""
    return np.linalg.eigvalsh(np.cov(rows.astype("f8"), rowvar=False, fweights=weights))[::-1][:K]


def test_covariance_has_more_digits_than_that_of_the_host(rows: np.ndarray) -> None:
    exact = eigenvalues(rows)
    here, there = (np.abs(sp.PCA(K, device=name).fit(rows).explained_variance_ / exact - 1) for name in ("cpu", DEVICE))
    # Products of rows that are centred in float32: one rounding of each value, of 2**-24, that averages out over N rows.
    assert there.max() < 2**-24 / np.sqrt(N) * 20
    assert there.max() <= here.max()


def test_float32_products_are_as_those_of_the_host(rows: np.ndarray, narrow: None) -> None:
    found = sp.PCA(K, device=DEVICE).fit(rows)
    assert np.abs(found.explained_variance_ / eigenvalues(rows) - 1).max() < 4e-7
    assert "float32" in found.plan_.notes[-1]


def test_float32_products_that_lose_digits_are_repeated_in_float64() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4000, 70)).astype("f4")
    matrices = {}
    for large in (False, True):
        rows[17, 3] = 3000.0 if large else 0.0  # the squares of the others are lost beside its square in float32
        for wide in (False, True):
            covariance = DeviceCovariance(device=DEVICE)
            with card(DEVICE, wide=wide):
                state = covariance.update(covariance.init(70), rows)
            matrices[large, wide] = covariance.finalize(state).dense()
    assert np.array_equal(matrices[True, False], matrices[True, True])
    assert not np.array_equal(matrices[False, False], matrices[False, True])


@pytest.mark.parametrize(
    "options",
    [
        {"scale": True},
        {"center": False},
        {"missing": "drop_rows"},
        {"forgetting": 0.999},
        {"remove": {"trend": 1}},
        {"solver": "sketch", "sketch_size": 30},
        {"solver": "sketch", "tolerance": 1e-4},
        {"solver": "gram"},
        {"solver": "adaptive", "sketch_size": 30},
        {"solver": "qr"},
        {"missing": "mean"},
        {"n_components": "cross_validation"},
    ],
    ids=str,
)
def test_every_option_gives_what_the_host_gives(rows: np.ndarray, options: dict) -> None:
    rows = rows[:120] if options.get("solver") == "gram" else rows
    here, there = (sp.PCA(**{"n_components": K, "device": name} | options).fit(rows) for name in ("cpu", DEVICE))
    assert np.allclose(there.explained_variance_, here.explained_variance_, rtol=2e-6)
    assert np.allclose(there.mean_, here.mean_, rtol=1e-7)
    assert np.abs(np.abs(np.sum(here.components_ * there.components_, axis=1)) - 1).max() < 1e-5
    assert repr(DEVICE) in there.plan_.notes[-1]
    assert repr(DEVICE) in there.error_.statement
    assert ("is not used" in there.plan_.notes[-1]) == (
        options.get("solver") in ("adaptive", "qr") or options.get("missing") == "mean"
    )


def test_weights_integers_and_groups(rows: np.ndarray) -> None:
    weights = np.random.default_rng(1).integers(0, 3, N)
    found = sp.PCA(K, device=DEVICE).fit(rows, sample_weight=weights)
    assert np.allclose(found.explained_variance_, eigenvalues(rows, weights), rtol=1e-7)
    pixels = np.random.default_rng(1).integers(0, 255, (5000, 90)).astype("u1")
    assert np.allclose(sp.PCA(K, device=DEVICE).fit(pixels).explained_variance_, eigenvalues(pixels), rtol=1e-14)
    labels = np.arange(N) % 3
    there, here = sp.PCA(K, device=DEVICE).fit_groups(rows, labels), sp.PCA(K).fit_groups(rows, labels)
    for name in here:
        assert np.allclose(there[name].explained_variance_, here[name].explained_variance_, rtol=1e-6)


def test_analyses_kernel_and_many_models(rows: np.ndarray) -> None:
    for kind in (sp.MCA, sp.CCA):
        one, other = (kind(2, first=70, device=name).fit(rows) for name in ("cpu", DEVICE))
        assert np.allclose(
            one.singular_values_ if kind is sp.MCA else one.correlations_, other._model.strengths, rtol=1e-5
        )
    one, other = (sp.FactorAnalysis(2, device=name).fit(rows) for name in ("cpu", DEVICE))
    assert np.allclose(one.noise_variance_, other.noise_variance_, rtol=1e-4)
    wanted = {"n_landmarks": 80, "method": "nystrom", "gamma": 0.01}
    one, other = (sp.KernelPCA(3, device=name, **wanted).fit(rows[:, :20] - 40) for name in ("cpu", DEVICE))
    assert np.allclose(one.eigenvalues_, other.eigenvalues_, rtol=1e-5)
    assert not np.array_equal(one.eigenvalues_, other.eigenvalues_)
    many = sp.fit_many({"a": sp.PCA(K, device=DEVICE), "b": sp.PCA(K, scale=True, device=DEVICE)}, rows)
    alone = sp.PCA(K, scale=True, device=DEVICE).fit(rows)
    assert np.array_equal(many["b"].explained_variance_, alone.explained_variance_)


def test_states_are_those_of_the_host(rows: np.ndarray, tmp_path: Path) -> None:
    there, here = DeviceCovariance(device=DEVICE), Covariance()
    first = there.update(there.init(D), rows[:4000])
    second = here.update(here.init(D), rows[4000:])
    merged = here.merge([here.absorb(here.init(D), there.merge([first])), second])
    assert isinstance(merged.scatter, np.ndarray)
    found = principal_components(here, merged, K)
    assert np.allclose(found.explained_variance, eigenvalues(rows), rtol=4e-7)
    fitted = sp.PCA(K, device=DEVICE).partial_fit(rows[:4000])
    fitted.save(tmp_path / "model")
    again = sp.load(tmp_path / "model")
    assert again.device == "cpu"
    state = sp.PCA(K, device=DEVICE).partial_fit(rows[:4000]).save(tmp_path / "state", state=True)
    added = sp.load(state).partial_fit(rows[4000:])
    assert np.allclose(added.explained_variance_, eigenvalues(rows), rtol=4e-7)
    taken = sp.PCA(K, device=DEVICE).partial_fit(rows).partial_unfit(rows[5000:])
    assert np.allclose(taken.explained_variance_, eigenvalues(rows[:5000]), rtol=1e-6)


@pytest.mark.parametrize("wide", [True, False])
def test_rows_on_the_device_stay_there(rows: np.ndarray, wide: bool) -> None:
    xp, covariance = array_api_strict, DeviceCovariance(device=DEVICE)
    state, weights = covariance.init(D), np.random.default_rng(0).integers(0, 3, N)
    weighted = covariance.init(D)
    bad = rows[:100].copy()
    bad[7, 3] = np.nan
    with card(DEVICE, wide=wide) as device:
        for start in range(0, N, 1000):
            there = xp.asarray(rows[start : start + 1000], device=device.place)
            state = covariance.update(state, there)
            weighted = covariance.update(weighted, Block(there, start, weights[start : start + 1000].astype("f8")))
        with pytest.raises(NotFiniteError, match="row 7, column 3"):
            covariance.update(covariance.init(D), xp.asarray(bad, device=device.place))
    for of, expected in ((state, eigenvalues(rows)), (weighted, eigenvalues(rows, weights))):
        found = principal_components(covariance, of, K)
        assert np.allclose(found.explained_variance, expected, rtol=1e-12 if wide else 4e-7)
    assert found.n_samples == np.count_nonzero(weights)
    assert np.allclose(found.mean, np.average(rows.astype("f8"), axis=0, weights=weights), rtol=1e-14)


@pytest.mark.parametrize(
    ("dtype", "place"), [("torch.float32", "cpu"), ("torch.bfloat16", "cpu"), ("torch.float32", "cuda")]
)
def test_tensors_are_rows(rows: np.ndarray, dtype: str, place: str) -> None:
    there = Tensor(rows, dtype, place)
    found = sp.PCA(K).fit(there)
    assert np.array_equal(found.components_, sp.PCA(K).fit(rows).components_)
    by_parts = sp.PCA(K).partial_fit(there[:3000]).partial_fit(there[3000:])
    assert np.allclose(by_parts.explained_variance_, eigenvalues(rows), rtol=4e-7)
    covariance = Covariance()
    assert covariance.update(covariance.init(D), there).n_samples == N
    with pytest.raises(ParameterError, match=r"expecting .n_samples, 150"):
        found.transform(there[:, :7])
    with pytest.raises(DataError, match="flatten"):
        sp.PCA(K).fit(Tensor(rows.reshape(N, 15, 10), dtype, place))


def test_tensors_of_codes_are_no_decoded_rows(tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(-100, 100, (300, 6)).astype("i1")
    zarr.create_array(tmp_path / "codes.zarr", data=codes)
    fitted = sp.PCA(2).fit(sp.open(tmp_path / "codes.zarr", quantization={"power": 2}))
    for data in (codes, Tensor(codes, "torch.int8")):
        with pytest.raises(DataError, match="codes"):
            fitted.transform(data)


def test_plans_of_groups_count_the_device(rows: np.ndarray) -> None:
    labels = np.arange(N) % 40
    with card(DEVICE, free_bytes=2**20), pytest.raises(PlanError, match="sums and panels of one leaf take"):
        sp.PCA(2, device=DEVICE).fit_groups(rows, labels)
    assert DEVICE in sp.PCA(2, device=DEVICE).fit_groups(rows, labels)["pooled"].plan_.notes[-1]


def test_same_bits_for_any_threads_after_resuming_and_on_workers(
    rows: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMPCA_BLOCK_ROWS", "500")
    store = zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(500, D), dtype="f4")
    store[:] = rows
    once = sp.PCA(K, device=DEVICE).fit(tmp_path / "x.zarr")
    again = sp.PCA(K, device=DEVICE).fit(tmp_path / "x.zarr")
    assert np.array_equal(once.components_, again.components_)

    class StopError(Exception):
        pass

    def stop(progress: object) -> None:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise StopError

    calls = 0
    for _ in range(2):
        try:
            resumed = sp.PCA(K, device=DEVICE, checkpoint=tmp_path / "kept", progress=stop).fit(tmp_path / "x.zarr")
        except StopError:
            continue
    assert np.array_equal(once.components_, resumed.components_)


def test_scores_are_multiplied_there(rows: np.ndarray, tmp_path: Path) -> None:
    there, here = sp.PCA(K, device=DEVICE).fit(rows), sp.PCA(K).fit(rows)
    exact = (rows - there.mean_) @ there.components_.T
    scores = there.transform(rows)
    assert scores.dtype == np.float32
    assert np.abs(scores - exact).max() < 2**-23 * np.abs(exact).max() * 4
    there.transform_to(rows, tmp_path / "scores")
    assert np.array_equal(zarr.open_group(tmp_path / "scores")["scores"][:], scores)
    assert np.allclose(there.rotate(3).transform(rows), here.rotate(3).transform(rows), atol=1e-3)


def test_eigenproblem_is_solved_there_from_512_features_on() -> None:
    rows = np.random.default_rng(0).standard_normal((3000, 530)) * np.arange(1, 531) ** -0.5
    found = sp.PCA(K, device=DEVICE).fit(rows)
    assert found.error_.eigen_solver == f"eigh on {DEVICE}"
    assert np.allclose(found.explained_variance_, eigenvalues(rows), rtol=1e-12)
    assert np.array_equal(
        sp.PCA("gavish_donoho", device=DEVICE).fit(rows).n_components_, sp.PCA("gavish_donoho").fit(rows).n_components_
    )


def test_refusals(rows: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="device='tpu': expected cpu, or cuda"):
        sp.PCA(K, device="tpu").fit(rows)
    with pytest.raises(NotAvailableError, match=r"has the devices .*device1"):
        sp.PCA(K, device="array_api_strict:device9").fit(rows)
    with pytest.raises(NotAvailableError, match=r"streampca\[torch\]"):
        sp.PCA(K, device="no_such_library:device9").fit(rows)
    bad = rows.copy()
    bad[5000, 9] = np.inf
    with pytest.raises(NotFiniteError, match="row 5000, column 9"):
        sp.PCA(K, device=DEVICE).fit(bad)
    with (
        card(DEVICE, free_bytes=2**20),
        pytest.raises(PlanError, match="1 MiB free, and sums and panels of one leaf take"),
    ):
        sp.PCA(K, device=DEVICE).fit(rows)


def test_a_plan_takes_as_many_leaves_as_fit_on_the_device(rows: np.ndarray) -> None:
    many = np.broadcast_to(rows[:1], (400_000, D))
    with card(DEVICE, free_bytes=2**40, threads=16):
        whole = sp.PCA(K, device=DEVICE).plan(many)
    with card(DEVICE, free_bytes=60 * 2**20, threads=16):
        part = sp.PCA(K, device=DEVICE).plan(many)
    assert 1 <= part.leaves_in_flight < whole.leaves_in_flight
    assert whole.memory["page-locked"] > part.memory["page-locked"] > 0
    assert (whole.n_blocks, whole.n_leaves) == (part.n_blocks, part.n_leaves)
