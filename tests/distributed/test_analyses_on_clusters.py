"""Analyses of a covariance on a cluster: the bits of a fit on threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import streampca as sp

pytestmark = [pytest.mark.distributed, pytest.mark.numerical]


@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA, sp.FactorAnalysis])
def test_a_cluster_gives_the_bits_of_threads(kind: Any, client: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(20_000, 3)) @ rng.normal(size=(3, 24)) + rng.normal(size=(20_000, 24))
    zarr.create_array(tmp_path / "x.zarr", shape=rows.shape, chunks=(500, 24), dtype="f8")[:] = rows
    made: dict[str, Any] = {} if kind is sp.FactorAnalysis else {"first": 10}
    expected = kind(2, **made).fit(str(tmp_path / "x.zarr"))
    with client.as_current():
        fitted = kind(2, **made).fit(str(tmp_path / "x.zarr"))
    assert np.array_equal(fitted._model.components, expected._model.components)
    assert np.array_equal(fitted._model.strengths, expected._model.strengths)
