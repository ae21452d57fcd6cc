"""Acts of the driver on the disk fail, or it dies of them: some of all there are; scripts/faults tries each."""

from __future__ import annotations

import pytest
import writes


def test_acts_on_the_disk_that_fail():
    score = writes.run(20, seed=0)
    score.require_clean()
    assert score.survived + score.detected == 20


@pytest.mark.parametrize("run", [writes.run_updates, writes.run_store_updates])
def test_acts_of_an_update_on_the_disk_that_fail(run):
    score = run(10, seed=0)
    score.require_clean()
    assert score.survived + score.detected == 10
