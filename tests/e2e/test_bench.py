"""The benchmarks run on small data and say so; nothing here is about speed."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr

import scripts

BENCH = scripts.SCRIPTS / "bench"
pytestmark = pytest.mark.deep  # most of a minute; continuous integration runs it with the documents


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return page, JSON and output of all cases at three ten-thousandths of their size, without the slow peers."""
    folder = tmp_path_factory.mktemp("bench")
    page = folder / "page.md"
    page.write_text("above\n<!-- begin: scripts/bench/all -->\nold\n<!-- end: scripts/bench/all -->\nbelow\n")
    smoke = ("--scale", "0.0003", "--repeats", "1", "--count", "1", "--same-process", "--no-peers", "--large")
    # In a process of its own: limits of memory include what earlier tests have left in this one.
    command = [sys.executable, BENCH / "all.py", *smoke, "--data", folder / "data", "--update", page]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
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


def test_a_contender_that_fails_is_printed_as_such():
    with scripts.module(BENCH / "_bench.py") as bench:
        row = bench.contend(bench.Contender("missing", "_bench", "no_such_function"))
        assert set(row) == {"failed"}
        assert "| missing | " in "\n".join(bench.Outcome("t", {"missing": row}, 1.0, {}, {}).lines())


def test_two_workers_find_the_eigenvalues_of_threads(tmp_path):
    rows = np.random.default_rng(0).standard_normal((2000, 16), dtype=np.float32)
    zarr.create_array(str(tmp_path / "x.zarr"), data=rows, chunks=(500, 16))
    with scripts.module(BENCH / "workers.py") as workers:
        threads, two = (workers.fit(str(tmp_path / "x.zarr"), n_workers, "3") for n_workers in ("0", "2"))
    assert threads["eigenvalues"] == two["eigenvalues"]


def test_kernel_pca_and_its_peers_give_every_figure(tmp_path):
    rows = np.random.default_rng(0).standard_normal((3000, 8)) * np.arange(1, 9) ** -0.5
    store = str(tmp_path / "x.zarr")
    zarr.create_array(store, data=rows.astype(np.float32), chunks=(1000, 8))
    with scripts.module(BENCH / "kernel.py") as kernel:
        nystrom = kernel.measure_nystrom(store, 50, 5, 0.2, peers=("sklearn_features",), repeats=1, fresh=False)
        exact = kernel.measure_exact(store, 800, 5, 0.2, peers=("sklearn_randomized",), repeats=1, fresh=False)
    for outcome in (nystrom, exact):
        assert not [row for row in outcome.rows.values() if "failed" in row]
        assert outcome.ratios["error of fit"] < 1e-5
    assert nystrom.ratios["reads"] == 2
    assert {"fit over floor", "sklearn_features over fit", "peak over projected"} <= set(nystrom.ratios)


def test_modes_of_a_field_agree_with_other_programs_and_every_pass_reads_each_chunk_once(tmp_path):
    pytest.importorskip("eofs")
    pytest.importorskip("xeofs")
    store, results = tmp_path / "sst.zarr", tmp_path / "results.json"
    scripts.run(scripts.SCRIPTS / "make_data.py", store, "--kind", "field", "--shape", "72,12,24")
    smoke = ("--same-process", "--repeats", "1", "--components", "2", "--contenders", "fit,eofs,xeofs")
    done = scripts.run(BENCH / "labelled.py", store, *smoke, "--out", results)
    assert done.status == 0, done.stderr
    ratios = json.loads(results.read_text())["ratios"]
    assert max(value for name, value in ratios.items() if name.startswith("largest difference")) < 1e-6
    # Opening the table reads the first of two bands of chunks, to find what was observed.
    assert ratios["reads of each chunk, fit"] == ratios["passes of fit and scores"] + 0.5
    assert ratios["reads of each chunk, eofs"] == 1


def test_an_update_by_shards_reads_these_and_agrees_with_a_full_run(tmp_path):
    pytest.importorskip("pyarrow")
    shards, results = tmp_path / "shards", tmp_path / "results.json"
    sizes = ("--rows", "2000", "--features", "16", "--files", "5", "--dtype", "float64")
    scripts.run(scripts.SCRIPTS / "make_data.py", shards, "--kind", "shards", *sizes)
    smoke = ("--same-process", "--repeats", "1", "--components", "3", "--new", "2", "--out", results)
    done = scripts.run(BENCH / "files.py", shards, *smoke)
    assert done.status == 0, done.stderr
    ratios = json.loads(results.read_text())["ratios"]
    assert ratios["largest difference of eigenvalues, update and full"] < 1e-12
    assert ratios["bytes that the update reads over those of the new shards"] == 1


def test_codes_and_decoded_rows_have_the_eigenvalues_of_exact_sums(tmp_path):
    with scripts.module(BENCH / "quantised.py") as quantised:
        outcome = quantised.measure(tmp_path, 3000, 6, 2, memory="8GiB", repeats=1, fresh=False)
    assert not [row for row in outcome.rows.values() if "failed" in row]
    assert max(value for name, value in outcome.ratios.items() if name.startswith("error of")) < 1e-12


def test_small_arrays_are_compared_with_scikit_learn(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["small.py", "--scale", "0.01", "--seconds", "0.01", "--repeats", "1"])
    with scripts.module(BENCH / "small.py") as small:
        small.main()
    printed = capsys.readouterr().out
    assert printed.count("| streampca, fit |") == printed.count("| scikit-learn, transform |") == 4
    assert "| `from streampca.states import Covariance` |" in printed


@pytest.mark.deep
def test_devices_are_measured_beside_the_cores() -> None:
    with scripts.module(BENCH / "device.py") as device:
        outcome = device.measure("array_api_strict:device1", 3, 0.002, repeats=1, fresh=False)
    assert {"A on 1", "C on the card", "41 GB within 1GiB"} <= outcome.rows.keys()
    assert "failed" not in outcome.rows["A on the card"]
    assert outcome.ratios["C on the card over all cores"] > 0


def test_plans_use_more_cores_under_higher_ceilings() -> None:
    with scripts.module(BENCH / "plans.py") as plans, plans.PLACES:
        busy = {ceiling: plans.planned("A", 16, ceiling) for ceiling in (512, 1024, 4096)}
        assert plans.planned("D", 16, 300) is None
    cores = [plan.leaves_in_flight * plan.threads_per_leaf for plan in busy.values()]
    assert cores == sorted(cores)
    assert cores[1] >= 8
    assert [plan.waiting_threads for plan in busy.values()] == [16 - each for each in cores]
    assert busy[1024].bytes_for_threads > 2**30
    assert "would use all of them" in str(busy[1024])
    assert len({(plan.n_blocks, plan.n_leaves) for plan in busy.values()}) == 1
