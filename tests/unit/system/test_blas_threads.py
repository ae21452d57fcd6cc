"""The limit of one BLAS thread: shared by all that compute at the same time, and gone with the last of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 loads its BLAS
import zarr
from facade import one_blas_thread
from threadpoolctl import threadpool_info, threadpool_limits

import streampca as sp
from streampca import PCA, KernelPCA
from streampca.system.process import libraries

SECONDS = 60.0
Work = Callable[[Callable[[Any], None]], list[np.ndarray]]


def blas_threads() -> set[int]:
    """Return the numbers of threads of all BLAS libraries; faiss has one of its own, which no fit may touch."""
    of_numpy, of_faiss = set(), set()
    for library in threadpool_info():
        if library["user_api"] == "blas":
            (of_faiss if "faiss" in library["filepath"] else of_numpy).add(library["num_threads"])
    assert 1 not in of_faiss
    return of_numpy


@pytest.fixture
def three_threads() -> Iterator[set[int]]:
    """Three BLAS threads, as a user may have set them; yields what every library says then."""
    with threadpool_limits(3, user_api="blas"):
        found = blas_threads()
        if found == {1}:
            pytest.skip("this BLAS has one thread only")
        yield found
        assert blas_threads() == found


def _rows(n: int = 600, d: int = 24) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d)) @ np.diag(np.linspace(3, 1, d))


def _pca(**parameters: Any) -> Work:
    def work(progress: Callable[[Any], None]) -> list[np.ndarray]:
        found = PCA(4, progress=progress, **parameters).fit(_rows())
        return [found.components_, found.explained_variance_, found.mean_]

    return work


def _kernel_pca(method: str) -> Work:
    def work(progress: Callable[[Any], None]) -> list[np.ndarray]:
        found = KernelPCA(3, kernel="rbf", method=method, n_landmarks=40, progress=progress).fit(_rows())
        return [found.eigenvalues_]

    return work


def _scores(place: Path) -> Work:
    model = PCA(4).fit(_rows())

    def work(progress: Callable[[Any], None]) -> list[np.ndarray]:
        model.set_params(progress=progress).transform_to(_rows(), place / "scores.zarr", overwrite=True)
        return [zarr.open_group(place / "scores.zarr", mode="r")["scores"][:]]

    return work


WORKS: dict[str, Callable[[Path], Work]] = {
    "covariance": lambda _: _pca(solver="covariance"),
    "gram": lambda _: _pca(solver="gram"),
    "qr": lambda _: _pca(solver="qr"),
    "sketch": lambda _: _pca(solver="sketch", max_passes=2),
    "adaptive": lambda _: _pca(solver="adaptive"),
    "kernel exact": lambda _: _kernel_pca("exact"),
    "kernel nystrom": lambda _: _kernel_pca("nystrom"),
    "scores": _scores,
}


@pytest.mark.parametrize(("name", "first_fails"), [*((name, False) for name in WORKS), ("covariance", True)])
def test_the_limit_of_a_fit_outlives_one_that_began_earlier(
    name: str, first_fails: bool, tmp_path: Path, three_threads: set[int]
) -> None:
    work = WORKS[name](tmp_path)
    alone = work(lambda _: None)
    assert blas_threads() == three_threads
    seen: list[set[int]] = []
    second_computes, first_is_over = threading.Event(), threading.Event()

    def in_the_second(_: Any) -> None:
        second_computes.set()
        assert first_is_over.wait(SECONDS)
        seen.append(blas_threads())

    def in_the_first(_: Any) -> None:
        if not second:
            second.append(pool.submit(work, in_the_second))
        assert second_computes.wait(SECONDS)
        if first_fails:
            raise RuntimeError("the first fit fails")

    second: list[Any] = []
    with ThreadPoolExecutor(1) as pool:
        try:
            PCA(2, progress=in_the_first).fit(_rows())
        except RuntimeError:
            assert first_fails
        finally:
            first_is_over.set()
        together = second[0].result(SECONDS)
    assert seen
    assert all(threads == {1} for threads in seen)
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
    assert blas_threads() == three_threads


def test_the_limit_holds_while_another_thread_has_set_one(three_threads: set[int]) -> None:
    with ThreadPoolExecutor(1) as pool:  # the fixture's limit belongs to this thread
        with one_blas_thread():
            assert blas_threads() == {1}
            assert pool.submit(lambda: PCA(2).fit(_rows())).result(SECONDS).n_components_ == 2
            assert blas_threads() == {1}
        assert blas_threads() == three_threads


def test_a_task_on_a_worker_restores_the_threads_of_its_process(three_threads: set[int]) -> None:
    from distributed import Client, LocalCluster

    workers = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with LocalCluster(**workers) as cluster, Client(cluster):  # type: ignore[no-untyped-call]
        PCA(2).fit(_rows())
        assert blas_threads() == three_threads


def test_libraries_that_other_packages_bring_are_not_limited_and_no_part_of_the_versions(tmp_path: Path) -> None:
    pytest.importorskip("faiss")  # whose wheel has an OpenBLAS and an OpenMP library
    brought = {library["filepath"] for library in threadpool_info() if "faiss" in library["filepath"]}
    if not brought:
        pytest.skip("this faiss has no BLAS of its own")
    assert brought.isdisjoint(library.filepath for library in libraries())
    with threadpool_limits(3), one_blas_thread():
        numbers = {library["num_threads"] for library in threadpool_info() if library["filepath"] in brought}
        assert numbers == {3}
    np.save(tmp_path / "x.npy", _rows())
    output = {"directory": str(tmp_path / "run"), "report": False, "scores": False}
    run = sp.run({"source": {"path": str(tmp_path / "x.npy")}, "model": {"n_components": 1}, "output": output})
    assert len(run.manifest["versions"]["blas"].split(", ")) == len(
        {(b.version, b.internal_api) for b in libraries() if b.user_api == "blas"}
    )
