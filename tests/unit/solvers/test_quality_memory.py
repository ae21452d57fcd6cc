"""The memory of data quality in plans: a purpose of its own, which an error names where a plan fits without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.errors import PlanError
from streampca.planning.budget import Resources
from streampca.solvers.kernel import METHODS
from streampca.solvers.registry import SOLVERS
from streampca.sources import open_source

MIB = 2**20
QUALITY_BYTES = 40 * MIB
NAMED = r"examining the quality of the data 40 MiB.*: quality: false, .*or memory of at least"


class Planned:
    """Plans of one solver or kernel method for fixed rows."""

    def __init__(self, name: str):
        self._source = open_source(np.zeros((2000, 300)))
        if name in SOLVERS:
            self._solver: Any = SOLVERS[name]
            self._parameters: Any = sp.PCA(3, solver=name)._parameters()
        else:
            self._solver = METHODS[name]
            self._parameters = sp.KernelPCA(3, method=name, gamma=0.1)._parameters()

    def __call__(self, allowed: int, quality_bytes: int = 0) -> Any:
        resources = Resources(allowed, 150 * MIB, 1, quality_bytes=quality_bytes)
        return self._solver.plan(self._source, self._parameters, resources)

    def fits(self, allowed: int) -> bool:
        try:
            self(allowed)
        except PlanError:
            return False
        return True


@pytest.mark.parametrize("name", [*SOLVERS, *METHODS])
def test_error_names_quality_where_the_plan_fits_without_it(name: str) -> None:
    plan = Planned(name)
    least = next(size for size in range(150 * MIB, 2048 * MIB, MIB) if plan.fits(size))
    assert "quality" not in plan(least).memory
    with pytest.raises(PlanError, match=NAMED):
        plan(least, QUALITY_BYTES)
    with pytest.raises(PlanError) as raised:
        plan(least - MIB, QUALITY_BYTES)
    assert "quality" not in str(raised.value)
    with_quality, without = plan(least + QUALITY_BYTES, QUALITY_BYTES), plan(least)
    assert with_quality.memory == {**without.memory, "quality": QUALITY_BYTES}
    assert with_quality.projected_bytes == without.projected_bytes + QUALITY_BYTES
