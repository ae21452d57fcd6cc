"""The memory of data quality in plans: a purpose of its own, which an error names where a plan fits without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stores import Command, config_text

MIB = 2**20
PCA = [f"solver: {name}" for name in ("covariance", "gram", "qr", "sketch", "adaptive")]
KERNEL = [
    f"kind: kernel_pca, kernel: {{name: rbf, gamma: 0.1}}, n_landmarks: 50, method: {name}"
    for name in ("exact", "nystrom", "nystrom_extension", "empirical_map")
]


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("model", [*PCA, *KERNEL])
def test_error_names_quality_where_the_plan_fits_without_it(model: str, tmp_path: Path, capsys: Any) -> None:
    np.save(tmp_path / "x.npy", np.zeros((1500, 1000), dtype=np.float32))
    command = Command(capsys)

    def planned(memory: int, *options: str, quality: bool) -> Any:
        lines = (f"model: {{n_components: 3, {model}}}", f"resources: {{memory: {memory}, threads: 1}}")
        text = config_text(tmp_path / "x.npy", tmp_path / "run", *lines, f"quality: {str(quality).lower()}")
        (tmp_path / "c.yaml").write_text(text)
        return command("plan", tmp_path / "c.yaml", *options)

    plain, examined = (json.loads(planned(2**33, "--json", quality=quality).out) for quality in (False, True))
    assert "quality" not in plain["memory"]
    assert examined["memory"]["quality"] > 0
    assert examined["projected_bytes"] - plain["projected_bytes"] >= examined["memory"]["quality"]
    said = planned(64 * MIB, quality=False).refused(7, "memory of at least")
    number, unit = said.rsplit("at least ", 1)[1].split()[:2]
    least = int(MIB * (float(number) if unit == "MiB" else 1024 * (float(number) + 0.05)))
    while planned(least - MIB, quality=False).status == 0:
        least -= MIB
    planned(least + 2 * MIB, quality=True).refused(
        7, "examining the quality of the data", "quality: false, ", "or allow memory of at least"
    )
    assert "quality" not in planned(least - 3 * MIB, quality=True).refused(7)
