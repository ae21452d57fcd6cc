"""Acts of the driver on the disk fail, or it dies of them: some of all there are; scripts/faults tries each."""

from __future__ import annotations

import pytest
import writes
from strategies import in_depth


@pytest.mark.slow
def test_acts_on_the_disk_that_fail():
    n = in_depth(5, 20)  # each of the five ways in which an act can fail
    score = writes.run(n, seed=0)
    score.require_clean()
    assert score.survived + score.detected == n


@pytest.mark.slow
@pytest.mark.parametrize("run", [writes.run_updates, writes.run_store_updates])
def test_acts_of_an_update_on_the_disk_that_fail(run):
    n = in_depth(3, 10)
    score = run(n, seed=0)
    score.require_clean()
    assert score.survived + score.detected == n
