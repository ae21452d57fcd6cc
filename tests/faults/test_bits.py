"""Twenty-four ways of carrying out a fit give one SHA-256, for an exact solver all of them, with branches and without, for the others some."""

from __future__ import annotations

import determinism
import pytest

pytestmark = pytest.mark.distributed

_SOME = tuple(way for way in determinism.WAYS if str(way) in (
    "here 1 x 2 shuffled", "here 1 x 3 shuffled stopped", "threads 2 x 1 shuffled", "processes 4 x 1 shuffled",
    "processes 4 x 1 shuffled stopped",
))  # fmt: skip


@pytest.fixture(scope="module")
def prepared():
    with determinism.prepared() as made:
        yield made


@pytest.mark.parametrize("name", determinism.SOLVERS)
def test_every_way_has_the_same_bits(prepared, name):
    assert len(determinism.WAYS) == 24
    assert len(_SOME) == 5
    ways = determinism.WAYS if name in ("covariance", "branches") else (determinism.Way("here"), *_SOME)
    found = {str(way): determinism.digest_of(*prepared, name, way, seed) for seed, way in enumerate(ways)}
    assert len(set(found.values())) == 1, found
