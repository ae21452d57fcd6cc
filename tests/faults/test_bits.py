"""A fit has one SHA-256, however it is carried out: in all ways for one solver, in five for the others."""

from __future__ import annotations

from contextlib import nullcontext

import determinism
import facade
import pytest
from determinism import Way

pytestmark = pytest.mark.distributed

HERE = (Way("here"), Way("here", 1, 2, shared=2), Way("here", 1, 8, shuffled=True))
SOME = (
    Way("here", 1, 2, shared=2),
    Way("here", 1, 3, shuffled=True, stopped=True),
    Way("processes", 2, 1, shuffled=True),
    Way("processes", 2, 1, shuffled=True, stopped=True),
)


@pytest.fixture(scope="module")
def prepared(session_cluster):
    cluster, _ = session_cluster
    with determinism.prepared(session_cluster) as made:
        yield made
    cluster.scale(2)


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("name", [name for name in determinism.SOLVERS if name != "branches"])
def test_some_ways_of_fitting_give_the_same_bits(prepared, name):
    ways = (Way("here"), *SOME)
    with facade.sketches_of_samples() if name == "sketch of samples" else nullcontext():
        found = {str(way): determinism.digest_of(*prepared, name, way, seed) for seed, way in enumerate(ways)}
    assert len(set(found.values())) == 1, found


@pytest.mark.deep
def test_all_ways_of_fitting_give_the_same_bits(prepared):
    """Twenty-four ways, with up to four workers, and two in which threads share the products of a leaf."""
    assert len(determinism.WAYS) == 24
    ways = (*determinism.WAYS, *HERE)
    found = {str(way): determinism.digest_of(*prepared, "branches", way, seed) for seed, way in enumerate(ways)}
    assert len(found) == 26
    assert len(set(found.values())) == 1, found
