"""File systems of 3, 8 and 20 MiB fill up: exit status 4, a line that says where and how much, and the earlier result whole."""

from __future__ import annotations

import disk_full
import pytest

_FIRST = disk_full.CASES[:10]


@pytest.mark.slow
@pytest.mark.deep(keep=2)
@pytest.mark.parametrize(
    "number",
    [pytest.param(i, marks=[pytest.mark.distributed] if case[0] == "workers" else []) for i, case in enumerate(_FIRST)],
    ids=[f"{place} {mebibytes} MiB" for place, mebibytes in _FIRST],
)
def test_a_file_system_fills_up(number):
    score = disk_full.run(1, seed=number)
    if not score.injected:
        pytest.skip(score.notes[0])
    score.require_clean()
    assert score.detected + score.survived == score.injected >= 1
