"""The commands one by one, and the configurations that come with the program."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import zarr
from facade import drawing_takes
from stores import REPOSITORY, call_apart, chunk_files, config_text, make_values, picture, write_group, write_store

import scripts
import streampca as sp


def test_help_and_version(call):
    called = call("--help")
    assert (called.status, called.err) == (0, "")
    for name in ("run", "plan", "check", "inspect", "transform", "report", "merge", "verify", "fingerprint"):
        assert f"\n  {name} " in called.out
        assert call(name, "--help").out.startswith(f"Usage: streampca {name} ")
    assert max(map(len, called.out.splitlines())) <= 80
    assert call("--version").out == f"streampca, version {sp.__version__}\n"


def test_help_loads_nothing_heavy_and_check_nothing_that_only_fits_need(call, job, tmp_path):
    code = (
        "import sys; from streampca.cli import _status; assert _status(['--help']) == 0; "
        "heavy = {'dask', 'sklearn', 'distributed', 'matplotlib', 'tqdm', 'pandas', 'xarray', 'jinja2'}; "
        "found = (heavy | {'numpy', 'scipy', 'zarr'}) & set(sys.modules); assert not found, found; "
        "assert _status(['check', 'job.yaml']) == 0; found = heavy & set(sys.modules); assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "job.yaml is valid: job, pca of good.zarr, results to runs/job" in done.stdout


def test_check_reads_no_data(call, job, tmp_path):
    shutil.rmtree(tmp_path / "good.zarr")
    called = call("check", job, "--json")
    assert (called.status, json.loads(called.out)) == (0, {"format_version": 1, "valid": True, "name": "job"})


CHOICES = {
    "model.kind": ["kernel_pca", "mca", "factor_analysis"],
    "model.solver": ["covariance", "gram", "qr", "adaptive", "sketch"],
    "model.n_components": [3, 0.9, {"frobenius": 0.9}, "parallel", "cross_validation", "mle"],
    "model.forgetting": [0.99],
    "model.recovery": ["conversion"],
    "model.max_passes": [1, 4],
    "model.tolerance": [0.01],
    "model.sketch_size": [2],
    "model.first": [2],
    "model.group_by": ["labels.npy"],
    "model.rotation": ["varimax"],
    "model.method": ["nystrom_extension", "exact"],
    "model.sampling": ["rpcholesky"],
    "preprocess.missing": ["drop_rows", "mean", "pairwise"],
    "preprocess.scale": [True, "block", "patterson"],
    "preprocess.center": [False],
    "preprocess.remove": [{"trend": 1}],
    "preprocess.sample_weight": ["weights.npy"],
    "statistics.sampling_errors": [10],
    "output.state": [True],
    "output.diagnostics": [True],
    "output.anndata": [True],
}
"""Keys with values of which some do not go together, whatever the data."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_check_refuses_what_plan_refuses(call, seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("labels.npy", np.arange(150) % 2)
    np.save("weights.npy", np.ones(150))
    random, refused = np.random.default_rng(seed), 0
    for _ in range(25):
        document = {"source": {"path": "builtin:iris"}}
        for key in random.choice(list(CHOICES), 3, replace=False):
            section, name = key.split(".")
            document.setdefault(section, {})[name] = CHOICES[key][random.integers(len(CHOICES[key]))]
        model = document.get("model", {})
        if model.get("kind") == "mca":
            model["first"] = 2
        if "group_by" in model:
            document.setdefault("output", {})["scores"] = False
        (tmp_path / "c.yaml").write_text(json.dumps(document))
        checked, planned = call("check", "c.yaml"), call("plan", "c.yaml")
        assert (checked.status, checked.err) == (planned.status, planned.err), document
        refused += checked.status == 2
    assert 0 < refused < 25


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "preprocess: {missing: drop_rows}\nmodels: {raw: {}, rbf: {kind: kernel_pca}}",
            "models.rbf: preprocess.missing: drop_rows is not available for kind: kernel_pca",
        ),
        ("model: {solver: qr, forgetting: 0.9}", "solver='qr' does not take forgetting=0.9"),
        ("model: {kind: cca}\noutput: {diagnostics: true}", "output.diagnostics: true, but kind: cca has no T² and Q"),
        ("model: {kind: mca}\noutput: {anndata: true}", "output.anndata: true, but kind: mca"),
        ("preprocess: {sample_weight: w.npy, missing: mean}\nmodel: {forgetting: 0.9}", "cannot be combined"),
        ("preprocess: {missing: mean}\nmodel: {group_by: time.month}\noutput: {scores: false}", "missing"),
        ("model: {n_components: parallel, forgetting: 0.9}", "n_components='parallel' does not apply"),
        ("model: {kind: kernel_pca, method: nystrom_extension, sampling: rpcholesky}", "chance of being drawn"),
    ],
)
def test_check_refuses_combinations_without_data(call, tmp_path, text, words):
    (tmp_path / "c.yaml").write_text(f"source: {{path: none.zarr}}\n{text}\n")
    for name in ("check", "plan", "run"):
        call(name, tmp_path / "c.yaml").refused(2, words)


@pytest.mark.parametrize("place", ["job.yaml/out", "/proc/nowhere/out"])
def test_check_refuses_a_place_that_cannot_be_written(call, job, tmp_path, place):
    before = picture(tmp_path)
    call("check", job, "--set", f"output.directory={place}").refused(
        6, place, "is not a directory that can be written to"
    )
    assert picture(tmp_path) == before


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("cluster.address", "host:8786", "tls://HOST:PORT or tcp://HOST:PORT"),
    ],
)
def test_check_refuses_an_address_without_a_protocol(call, job, key, value, allowed):
    kind = "address" if key == "cluster.address" else "threads"
    called = call("check", job, "--set", f"cluster.kind={kind}", "--set", f"{key}={value}")
    called.refused(2, f"--set {key}: found the text '{value}', allowed: the ", allowed)


def test_plan_reads_no_chunk(call, job, tmp_path):
    for chunk in chunk_files(tmp_path / "good.zarr"):
        chunk.unlink()
    before = picture(tmp_path)
    called = call("plan", job)
    assert (called.status, called.err) == (0, "")
    assert "covariance" in called.out
    planned = json.loads(call("plan", job, "--json").out)
    assert planned["bytes_to_read"] == 400 * 8 * 8
    assert planned["projected_bytes"] <= planned["allowed_bytes"]
    call("plan", job, "--set", "resources.memory=64MiB").refused(7, "64 MiB")
    assert picture(tmp_path) == before


@pytest.mark.slow
def test_plan_of_a_run_on_a_cluster_counts_the_process_of_a_worker(call, job, tmp_path):
    cluster = ("--set", "cluster={kind: local, n_workers: 2, threads_per_worker: 1}")
    planned = json.loads(
        call_apart("plan", job, "--json", "--set", "resources.memory=1GiB", *cluster, directory=tmp_path).out
    )
    assert planned["memory"]["process"] >= 150 * 2**20
    too_little = "resources.memory=150MiB"
    call("plan", job, "--set", too_little, *cluster).refused(7, "process itself takes")


def test_run_reports_on_stdout_and_progress_on_stderr(call, job, tmp_path):
    called = call("run", job)
    assert called.status == 0
    assert "8 components of 400 x 8" in called.out
    assert "results in runs/job" in called.out
    assert called.err.splitlines()[-1].startswith("writing scores: 400 of 400 rows (100%)")
    quiet = call.quietly("run", job)
    assert (quiet.status, quiet.err) == (0, "")
    as_json = call("run", job, "--json", "--set", "model.n_components=3", "--set", "preprocess.scale=true")
    manifest = json.loads(as_json.out)
    assert manifest == json.loads((tmp_path / "runs/job/manifest.json").read_text())
    assert manifest["result"]["n_components"] == 3
    assert manifest["result"]["total_variance"] == pytest.approx(8)


def test_inspect_says_what_things_are(call, job, tmp_path):
    write_group(tmp_path / "group.zarr")
    np.save(tmp_path / "x.npy", make_values())
    expected = {
        "good.zarr": {"kind": "source", "shape": [400, 8], "dtype": "float64"},
        "x.npy": {"kind": "source", "shape": [400, 8]},
        "builtin:iris": {"kind": "source", "shape": [150, 4]},
        "group.zarr": {"kind": "group", "path": "group.zarr"},
        "job.yaml": {"kind": "configuration", "name": "job", "model": "pca"},
        "runs/job": {"kind": "run", "name": "job", "passes": 1},
        "runs/job/model.zarr": {"kind": "model", "components": [8, 8], "n_samples": 400},
        "runs/job/scores.zarr": {"kind": "scores", "shape": [400, 8], "complete": True},
    }
    for path, facts in expected.items():
        called = call("inspect", path)
        assert (called.status, called.err) == (0, ""), path
        assert called.out.startswith("kind "), path
        found = json.loads(call("inspect", path, "--json").out)
        assert facts.items() <= found.items(), path
    call.quietly("transform", "runs/job", "group.zarr", "new").refused(5, "left (400, 8)")
    call("inspect", "runs").refused(5, "runs")


def test_transform_of_a_run_and_of_a_model_gives_the_scores_of_the_run(call, job, tmp_path):
    for model in ("runs/job", "runs/job/model.zarr"):
        called = call.quietly("transform", model, "good.zarr", "out.zarr", "--overwrite")
        assert (called.status, called.out, called.err) == (0, "out.zarr: array scores, 400 x 8\n", "")
        scores = zarr.open_array("out.zarr/scores", mode="r")[...]
        np.testing.assert_array_equal(scores, zarr.open_array("runs/job/scores.zarr/scores", mode="r")[...])
    before = picture(tmp_path)
    call.quietly("transform", "runs/job", "good.zarr", "out.zarr").refused(6, "out.zarr", "overwrite")
    call.quietly("transform", "runs/job", "good.zarr", "good.zarr", "--overwrite").refused(6, "good.zarr")
    call.quietly("transform", "runs/job", "good.zarr", "runs/job", "--overwrite").refused(6, "not a store of scores")
    call.quietly("transform", "nowhere", "good.zarr", "new").refused(5, "nowhere")
    call.quietly("transform", "runs", "good.zarr", "new").refused(5, "runs")
    write_store(tmp_path / "narrow.zarr", make_values(d=5), chunks=(100, 5))
    call.quietly("transform", "runs/job", "narrow.zarr", "new").refused(2, "5 features", "8 features")
    shutil.rmtree(tmp_path / "narrow.zarr")
    assert picture(tmp_path) == before


def test_report_writes_the_page_again(call, job, tmp_path):
    called = call("report", "runs/job")
    assert (called.status, called.out, called.err) == (0, "runs/job/report.html\n", "")
    page = (tmp_path / "runs/job/report.html").read_bytes()
    assert page.lstrip().lower().startswith(b"<!doctype html>")
    before = picture(tmp_path)
    for path in ("nowhere", "good.zarr", "runs", "job.yaml"):
        call("report", path).refused(5, path, "not a finished run")
    assert picture(tmp_path) == before


@pytest.mark.usefixtures("charts")
def test_a_page_that_took_more_memory_than_the_fit_says_so_and_its_charts_are_drawn_once(call, tmp_path):
    (tmp_path / "c.yaml").write_text(config_text("good.zarr", "out", output="report: true"))
    with drawing_takes(3 * 2**40) as names:
        assert call.quietly("run", "c.yaml").status == 0
    page = (tmp_path / "out/report.html").read_text()
    assert "3.00\N{NO-BREAK SPACE}TiB" in page
    assert len(names) == len(set(names)) > 5
    assert call("report", "out").status == 0
    assert (tmp_path / "out/report.html").read_text() == page


NEED_A_CLUSTER = ("slurm.yaml",)
LABELLED = {"field.yaml": "48,18,36", "movie.yaml": "80,24,24", "cube.yaml": "40,30,24", "cells.yaml": "300,200"}
"""Shapes of the data that the comments of a configuration say how to write."""


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize(
    "name", sorted(p.name for p in (REPOSITORY / "configs").glob("*.yaml") if p.name not in NEED_A_CLUSTER)
)
def test_the_configurations_that_come_with_it_run_as_they_stand(tmp_path, name):
    text = (REPOSITORY / "configs" / name).read_text()
    if name == "shards.yaml":
        sizes = ("--rows", "900", "--features", "32", "--files", "3")
        scripts.run(scripts.SCRIPTS / "make_data.py", tmp_path / "data/embeddings", "--kind", "shards", *sizes)
    if name in LABELLED:
        path, kind = re.search(r"scripts/make_data\.py (\S+) --kind (\w+)", text).groups()
        scripts.run(scripts.SCRIPTS / "make_data.py", tmp_path / path, "--kind", kind, "--shape", LABELLED[name])
    # In a process of its own: the ceiling of the quickstart is for a whole process, and this one runs many tests.
    called = call_apart("run", str(REPOSITORY / "configs" / name), "--quiet", directory=tmp_path)
    assert (called.status, called.err) == (0, "")
    (directory,) = (tmp_path / "runs").iterdir()
    assert sp.load(directory).n_components_ >= 1
    assert (directory / "report.html").stat().st_size > 10_000
