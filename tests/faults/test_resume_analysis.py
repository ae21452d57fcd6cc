"""An analysis that is stopped while rows are read goes on from its checkpoint, with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores import write_store

import streampca as sp


class _PowerCutError(Exception):
    pass


@pytest.mark.usefixtures("all_checkpoints")
@pytest.mark.parametrize("kind", [sp.MCA, sp.CCA])
def test_a_fit_of_two_tables_goes_on(kind: Any, tmp_path: Path) -> None:
    rows = np.random.default_rng(5).standard_normal((100_000, 6)).astype(np.float32)
    write_store(tmp_path / "x.zarr", rows, chunks=(5000, 6))
    path, place = tmp_path / "x.zarr", tmp_path / "kept"
    expected = kind(2, first=3).fit(path)
    seen: list[int] = []

    def stop_late(step: Any) -> None:
        if step.rows > 60_000:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        kind(2, first=3, checkpoint=place, progress=stop_late).fit(path)
    again = kind(2, first=3, checkpoint=place, progress=lambda step: seen.append(step.rows)).fit(path)
    assert seen[0] > 20_000  # counted from where it stopped
    assert np.array_equal(again.x_components_, expected.x_components_)
    assert np.array_equal(again._model.strengths, expected._model.strengths)
    assert again.bytes_read_ == expected.bytes_read_
    assert not place.exists()
