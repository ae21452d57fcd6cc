"""The benchmarks run on small data and say so; nothing here is about speed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def bench(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return page, JSON and output of all cases at three ten-thousandths of their size, without the slow peers."""
    folder = tmp_path_factory.mktemp("bench")
    page = folder / "page.md"
    page.write_text("above\n<!-- begin: scripts/bench/all -->\nold\n<!-- end: scripts/bench/all -->\nbelow\n")
    smoke = ("--scale", "0.0003", "--repeats", "1", "--count", "1", "--same-process", "--no-peers", "--large")
    done = bench(BENCH / "all.py", *smoke, "--data", folder / "data", "--update", page)
    return page.read_text(), json.loads((folder / "data" / "results.json").read_text()), done.stdout


def test_every_case_gives_a_table_and_no_contender_fails(everything):
    _, data, printed = everything
    exact = {"a", "a-zstd", "means", "b", "c", "e", "e-103", "e-120", "memory"}
    assert set(data["cases"]) == exact | {"c-sketch", "d", "kernel", "kernel-large", "kernel-exact"}
    for case in data["cases"].values():
        assert f"### {case['title']}" in printed
        for name, row in case["rows"].items():
            assert "failed" not in row, (case["title"], name, row)
    assert data["machine"]["cores"] >= 1


def test_fits_agree_with_the_reference(everything):
    for key in ("a", "a-zstd", "c", "e", "e-103", "e-120"):
        assert everything[1]["cases"][key]["rows"]["fit"]["error"] < 1e-5, key


def test_the_tables_go_between_the_marks_of_the_page(everything):
    page, _, printed = everything
    assert page.startswith("above\n")
    assert page.endswith("below\n")
    assert "old" not in page
    assert printed.strip() in page


def test_random_configurations_stay_within_what_was_projected(everything):
    ratios = everything[1]["cases"]["memory"]["ratios"]
    assert 0.4 <= ratios["least peak over projected"] <= ratios["largest peak over projected"] <= 1.0
    assert ratios["plans over the limit that were not refused"] == 0


def test_a_contender_that_fails_is_printed_as_such(tmp_path):
    sys.path.insert(0, str(BENCH))
    try:
        from _bench import Contender, Outcome, contend
    finally:
        sys.path.remove(str(BENCH))
    row = contend(Contender("missing", "exact", "dask_cov", (str(tmp_path / "none.zarr"),)))
    assert set(row) == {"failed"}
    assert "| missing | " in "\n".join(Outcome("t", {"missing": row}, 1.0, {}, {}).lines())


def test_one_worker_and_two_find_the_same(tmp_path):
    small = ("--rows", 2000, "--features", 16, "--components", 3, "--repeats", 1, "--same-process")
    printed = bench(BENCH / "workers.py", *small, "--data", tmp_path).stdout
    found = json.loads(printed.splitlines()[-1])
    assert not any("failed" in row for row in found["rows"].values()), printed
    assert found["ratios"]["runs with other eigenvalues"] == 0
