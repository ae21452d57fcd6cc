"""Kernel PCA that is stopped in either reading goes on from its checkpoint, with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from facade import CheckpointDirectory
from stores import write_store

import streampca as sp
from streampca.errors import OutputError, ParameterError


class _PowerCutError(Exception):
    """Stops a fit midway, as a power cut would."""


@pytest.fixture
def eager(all_checkpoints: None) -> None:
    """Let checkpoints be written however short the run."""


def store_of(folder: Path) -> Path:
    rows = np.random.default_rng(5).standard_normal((200_000, 6)).astype(np.float32)
    write_store(folder / "x.zarr", rows, chunks=(5000, 6))
    return folder / "x.zarr"


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["landmarks", "fit"])
@pytest.mark.usefixtures("eager")
def test_a_fit_goes_on(tmp_path: Path, phase: str) -> None:
    made: dict[str, Any] = {"n_components": 4, "gamma": 0.1, "method": "nystrom", "n_landmarks": 50}
    path, place = store_of(tmp_path), tmp_path / "kept"
    expected = sp.KernelPCA(**made).fit(path)
    seen: list[tuple[str, int]] = []

    def stop_late(step: Any) -> None:
        seen.append((step.phase, step.rows))
        if step.phase == phase and step.rows > 120_000:
            raise _PowerCutError

    with pytest.raises(_PowerCutError):
        sp.KernelPCA(**made, checkpoint=place, progress=stop_late).fit(path)
    assert [entry["key"] for entry in CheckpointDirectory(place).newest()[0]["readings"]][-1] == phase  # type: ignore[index]
    with pytest.raises(OutputError, match=r"kernel was .*0\.1.* and is .*0\.2"):
        sp.KernelPCA(**made | {"gamma": 0.2}, checkpoint=place).fit(path)
    seen.clear()
    again = sp.KernelPCA(**made, checkpoint=place, progress=lambda step: seen.append((step.phase, step.rows))).fit(path)
    assert next(rows for name, rows in seen if name == phase) > 60_000  # counted from where it stopped
    assert np.array_equal(again.eigenvalues_, expected.eigenvalues_)
    assert np.array_equal(again.landmark_indices_, expected.landmark_indices_)
    assert np.array_equal(again._model.coefficients, expected._model.coefficients)
    assert again.bytes_read_ == expected.bytes_read_
    assert not place.exists()


def test_a_kernel_that_is_a_function_has_no_checkpoint(tmp_path: Path) -> None:
    rows = np.random.default_rng(5).standard_normal((60, 3))
    with pytest.raises(ParameterError, match="cannot be saved"):
        sp.KernelPCA(2, kernel=lambda a, b: a @ b.T, checkpoint=tmp_path / "kept").fit(rows)
    with pytest.raises(ParameterError, match="checkpoint=7"):
        sp.KernelPCA(2, checkpoint=7).fit(rows)
    assert list(tmp_path.iterdir()) == []
