"""The scripts that reproduce published figures run, and their quick form already shows what is claimed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "reproduce" / "approximate_pca.py"


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Return printed tables, JSON and pictures of all parts in their quick form."""
    folder = tmp_path_factory.mktemp("reproduce")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick", "--json", "figures.json", "--pictures", "pictures"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    pictures = sorted(path.name for path in (folder / "pictures").iterdir())
    return done.stdout, json.loads((folder / "figures.json").read_text()), pictures


def test_every_part_prints_its_tables_and_draws(quick):
    printed, figures, pictures = quick
    assert set(figures) == {"dot-products", "aligned"}
    assert printed.count("### ") == 5
    assert pictures == ["dot-products-digits.png", "dot-products-patches.png"]


def test_the_published_scale_of_hashes_loses_what_it_must(quick):
    for data in quick[1]["dot-products"].values():
        for n_hashes in (4, 5):
            errors = data["errors"][f"hashing, l = {n_hashes}, entries 1/l"]["2000"]
            assert np.mean(errors, axis=0)[0] == pytest.approx(1 - 1 / n_hashes, abs=0.03)


def test_one_hash_loses_the_subspace_of_axes_and_no_other_transform_does(quick):
    for name, similarities in quick[1]["aligned"].items():
        kept = np.quantile(similarities["axes"], 0.05)
        assert (kept < 0.9) == (name == "hashing, l = 1"), (name, kept)
        assert np.min(similarities["anywhere"]) > 0.99
