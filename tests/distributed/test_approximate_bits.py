"""Approximate solvers: the same bits, certificates included, for any threads, any order of completion, and a cluster."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spectra
import zarr
from test_determinism import Slow

from streampca import PCA
from streampca.engine.fit import Fit, Parameters, fit, plan_fit
from streampca.engine.plan import Plan
from streampca.sources import Source, open_source

pytestmark = pytest.mark.distributed

WAYS: dict[str, dict[str, Any]] = {
    "sketch": {"solver": "sketch", "scale": True},
    "sketch, three passes": {"solver": "sketch", "max_passes": 3, "tolerance": 0.0},
    "conversion": {"solver": "sketch", "recovery": "conversion", "sketch": "count_sketch"},
    "holes": {"solver": "sketch", "missing": "pairwise"},
    "adaptive": {"solver": "adaptive", "scale": True},
    "adaptive, three passes": {"solver": "adaptive", "max_passes": 3, "tolerance": 0.0},
}
every_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty chunks along the rows, two along the features."""
    path = tmp_path_factory.mktemp("bits") / "rows.zarr"
    rows = spectra.rows_with_spectrum(20_000, spectra.eigenvalues("slow", 60), seed=1).astype(np.float32) + 5
    zarr.create_array(str(path), shape=rows.shape, chunks=(1000, 35), dtype=rows.dtype)[...] = rows
    return path


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None, silence_logs=50
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def parameters_of(way: str, **more: Any) -> Parameters:
    return Parameters(5, sketch_size=16, **WAYS[way], **more)


def in_leaves(source: Source, parameters: Parameters, at_once: int, shared: int = 1) -> Plan:
    """Return a plan of five leaves of four blocks, as data too large for a test would have, `at_once` of them in flight."""
    plan = plan_fit(source, parameters)
    sketch = plan.sketch | ({"rows_per_update": 700} if plan.solver == "adaptive" else {})
    plan = replace(plan, rows_per_block=1000, n_blocks=20, n_leaves=5, sketch=sketch, edges=None)
    return replace(
        plan, leaves_in_flight=at_once, window=min(5, 2 * at_once), threads=at_once * shared, threads_per_leaf=shared
    )


def digest(found: Fit | PCA) -> str:
    """Return the SHA-256 of components, eigenvalues, mean and certificate."""
    model = found._model if isinstance(found, PCA) else found.model
    arrays = (model.components, model.explained_variance, model.mean)
    said = json.dumps(model.certificate, sort_keys=True).encode()
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays) + said).hexdigest()


@every_way
def test_threads(store: Path, way: str) -> None:
    source, parameters = open_source(store), parameters_of(way)
    found = {
        (at_once, shared): fit(source, parameters, in_leaves(source, parameters, at_once, shared))
        for at_once, shared in ((1, 1), (2, 1), (3, 1), (1, 2), (1, 3), (2, 2))
    }
    assert len({digest(one) for one in found.values()}) == 1
    assert {one.model.certificate["n_passes"] for one in found.values()} == {3 if "three" in way else 1}
    in_memory = open_source(np.asarray(zarr.open_array(store)[...]))
    if way in ("conversion", "adaptive, three passes"):  # the others read a pilot, whose rows depend on the chunks
        assert digest(fit(in_memory, parameters, in_leaves(source, parameters, 2))) == digest(found[1, 1])


@every_way
def test_the_number_of_threads_that_a_user_asks_for(store: Path, way: str) -> None:
    source = open_source(store)
    assert len({digest(fit(source, parameters_of(way, threads=threads))) for threads in (1, 2, 3)}) == 1


@every_way
@pytest.mark.parametrize("seed", [0, 1])
def test_any_order_of_completion(store: Path, way: str, seed: int) -> None:
    source, parameters = open_source(store), parameters_of(way, pilot=10)
    plan = in_leaves(source, parameters, 4)
    slow = Slow(source, seed)
    assert digest(fit(slow, parameters, plan)) == digest(fit(source, parameters, in_leaves(source, parameters, 1)))
    assert slow.order != sorted(slow.order)


@every_way
def test_a_cluster(store: Path, way: str, client: Any) -> None:
    source, parameters = open_source(store), parameters_of(way)
    plan = in_leaves(source, parameters, 2)
    here = fit(source, parameters, plan)
    with client.as_current():
        there = fit(source, parameters, plan)
    assert digest(there) == digest(here)
    assert there.count == here.count


@pytest.mark.parametrize("solver", ["sketch", "adaptive"])
def test_an_estimator_on_a_cluster(store: Path, solver: str, client: Any) -> None:
    pca = PCA(5, solver=solver, max_passes=2, tolerance=1e-6)
    here = digest(pca.fit(store))
    with client.as_current():
        assert digest(pca.fit(store)) == here
