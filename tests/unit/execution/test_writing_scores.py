"""Scores written block by block: a chunk has one writer, whatever blocks the fit had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import zarr

import streampca as sp
from streampca.execution import write
from streampca.execution.drive import drive
from streampca.sources.open import open_source


def test_no_chunk_of_scores_has_two_writers_where_blocks_of_the_fit_differ_in_size(
    tmp_path: Path, monkeypatch: Any
) -> None:
    rows = np.random.default_rng(0).standard_normal((1000, 4))
    model, plans = sp.PCA(2).fit(rows), []

    def seen(task: Any, plan: Any, *others: Any, **more: Any) -> Any:
        plans.append(plan)
        return drive(task, plan, *others, **more)

    monkeypatch.setattr(write, "drive", seen)
    plan = model.plan(rows).replace(rows_per_block=300, n_blocks=4, n_leaves=4, edges=(0, 250, 500, 700, 1000))
    write.write_scores(open_source(rows), model._model, plan, tmp_path / "scores.zarr")
    array = zarr.open_group(tmp_path / "scores.zarr", mode="r")["scores"]
    assert array.chunks == (300, 2)
    assert all(start % 300 == 0 for leaf in plans[0].leaves() for start, _ in leaf.spans)
    np.testing.assert_allclose(array[:], model.transform(rows), atol=1e-12)
