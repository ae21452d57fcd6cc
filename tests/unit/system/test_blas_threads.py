"""The limit of one BLAS thread: shared by all that compute at the same time, and gone with the last of them."""

from __future__ import annotations

import ctypes
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg  # noqa: F401 loads its BLAS
import zarr
from threadpoolctl import threadpool_info, threadpool_limits

from streampca import PCA, KernelPCA
from streampca.execution.distributed.payload import run_on_worker
from streampca.execution.fold import FoldTask
from streampca.planning.shape import Leaf
from streampca.runs.many import run
from streampca.runs.verify import verify_run
from streampca.sources import open_source
from streampca.system import blas_threads as blas_threads_module
from streampca.system.blas_threads import libraries, one_blas_thread
from streampca.system.versions import versions

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


def _verified(place: Path) -> Work:
    zarr.save_array(place / "rows.zarr", _rows())
    (place / "run.yaml").write_text(
        f"version: 1\nname: verified\nsource: {{path: {place / 'rows.zarr'}}}\nmodel: {{n_components: 3}}\n"
        f"output: {{directory: {place / 'out'}, report: false}}\n"
    )
    directory = run(place / "run.yaml").directory

    def work(progress: Callable[[Any], None]) -> list[np.ndarray]:
        verify_run(directory, progress=progress).require()
        return []

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
    "verify": _verified,
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
    from distributed.protocol.pickle import dumps

    from streampca.accumulators import Covariance

    leaf = Leaf(0, (0, 600))
    run_on_worker(dumps(FoldTask(open_source(_rows()), Covariance()).for_leaf(leaf)), leaf, "result", None, None)
    assert blas_threads() == three_threads


def test_libraries_that_other_packages_bring_are_not_limited_and_no_part_of_the_versions() -> None:
    pytest.importorskip("faiss")  # whose wheel has an OpenBLAS and an OpenMP library
    brought = {library["filepath"] for library in threadpool_info() if "faiss" in library["filepath"]}
    if not brought:
        pytest.skip("this faiss has no BLAS of its own")
    assert brought.isdisjoint(library.filepath for library in libraries())
    with threadpool_limits(3), one_blas_thread():
        numbers = {library["num_threads"] for library in threadpool_info() if library["filepath"] in brought}
        assert numbers == {3}
    assert len(versions()["blas"].split(", ")) == len(
        {(b.version, b.internal_api) for b in libraries() if b.user_api == "blas"}
    )


def test_libraries_are_looked_for_again_when_one_was_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if blas_threads_module.loaded_count() is None:
        pytest.skip("this system does not count loaded libraries")
    looked: list[int] = []
    look = blas_threads_module.ThreadpoolController
    monkeypatch.setattr(blas_threads_module, "ThreadpoolController", lambda: looked.append(1) or look())
    monkeypatch.setattr(blas_threads_module, "_known", None)
    found = [library.filepath for library in libraries()]
    assert [library.filepath for library in libraries()] == found
    assert len(looked) == 1
    [some, *_] = Path(np.__file__).parent.glob("_core/_multiarray_umath*.so")
    shutil.copy(some, tmp_path / "another.so")
    handle = ctypes.CDLL(str(tmp_path / "another.so"))
    assert handle is not None
    libraries()
    assert len(looked) == 2
