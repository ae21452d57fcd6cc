"""`sp.run`: what a run directory holds is true, whole, and the same however it was made; secrets stay out of it."""

import hashlib
import json
from pathlib import Path

import fsspec
import numpy as np
import pytest
import zarr
from stores import Command, call_apart, config_text, make_values, picture, write_store

import streampca as sp
from streampca.errors import DataError, OutputError, ParameterError

SECRET = "hunter2-canary"


def write_config(directory, *lines, **options):
    """Write a configuration of the store x.zarr of 4,000 rows in `directory`; return its path."""
    path = directory / "c.yaml"
    path.write_text(config_text(directory / "x.zarr", directory / "out", *lines, **options))
    return path


@pytest.fixture
def config(tmp_path):
    write_store(tmp_path / "x.zarr", make_values(4000, 12), chain="zstd+crc32c", chunks=(300, 5))
    return write_config(tmp_path, "model: {n_components: 5}")


def digest_of(directory):
    """Return the SHA-256 of components, variances and mean in the bytes of the arrays."""
    model = sp.load(directory)
    parts = (model.components_, model.explained_variance_, model.mean_)
    return hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts)).hexdigest()


@pytest.mark.slow
def test_the_directory_holds_what_the_contract_says(config, tmp_path):
    finished = sp.run(config, overrides=["output.report=true"])
    assert finished.directory == tmp_path / "out"
    names = {"config.yaml", "manifest.json", "model.zarr", "plan.json", "report.html", "samples.zarr", "scores.zarr"}
    assert {path.name for path in finished.directory.iterdir()} == {*names, "streampca.json"}
    assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", "x.zarr", "out"}
    record = json.loads((tmp_path / "out/streampca.json").read_text())
    assert (record["format"], record["run_id"]) == ("streampca-run", finished.manifest["run_id"])
    without = sp.run(config, overrides=["output.scores=false", f"output.directory={tmp_path / 'bare'}"])
    assert {path.name for path in without.directory.iterdir()} == {
        *(names - {"report.html", "samples.zarr", "scores.zarr"}),
        "streampca.json",
    }
    assert without.manifest["reads"]["scores"] is None


@pytest.mark.slow
def test_the_manifest_is_true(config, tmp_path):
    manifest = sp.run(config, overrides=["output.report=true"]).manifest
    assert manifest == json.loads((tmp_path / "out/manifest.json").read_text())
    values = make_values(4000, 12)
    stored = sum(path.stat().st_size for path in (tmp_path / "x.zarr/c").rglob("*") if path.is_file())
    assert manifest["passes"] == 1
    for reads in (manifest["reads"]["fit"], manifest["reads"]["scores"]):
        assert reads["chunks"] == 14 * 3
        assert reads["bytes"] == values.nbytes
        assert reads["stored_bytes"] == stored
    memory = manifest["memory"]
    assert memory["projected_bytes"] <= memory["allowed_bytes"]
    source = manifest["source"]
    assert (source["shape"], source["dtype"], source["chunks"]) == ([4000, 12], "float64", [300, 5])
    assert source["missing_chunks_filled"] == 0
    result = manifest["result"]
    variances = np.linalg.eigvalsh(np.cov(values.T))[::-1]
    np.testing.assert_allclose(result["explained_variance"], variances[:5], rtol=1e-10)
    assert result["total_variance"] == pytest.approx(variances.sum())
    assert manifest["certificate"]["captured_variance"] == pytest.approx(variances[:5].sum() / variances.sum())
    assert manifest["certificate"]["kind"] == "exact"
    shares = np.cumsum(variances) / variances.sum()
    known = {share: int(np.argmax(shares >= float(share))) + 1 for share in ("0.9", "0.95", "0.99")}
    assert {share: n for share, n in result["components_for"].items() if n is not None} == {
        share: n for share, n in known.items() if n <= 5
    }
    assert manifest["started"] <= manifest["finished"]
    assert 0 < manifest["seconds"]["fit"] < manifest["seconds"]["total"]
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert (plan["n_samples"], plan["n_features"], plan["n_components"]) == (4000, 12, 5)
    assert plan["bytes_to_read"] == manifest["reads"]["fit"]["bytes"]


@pytest.mark.slow
def test_measured_memory_stays_below_what_was_projected_and_allowed(config, tmp_path):
    """In a process of its own: this one has held more."""
    called = call_apart("run", "c.yaml", "--json", "--quiet", "--set", "resources.memory=512MiB", directory=tmp_path)
    assert (called.status, called.err) == (0, "")
    memory = json.loads(called.out)["memory"]
    assert memory["peak_bytes"] <= memory["projected_bytes"] <= memory["allowed_bytes"] == 512 * 2**20


@pytest.mark.slow
def test_the_resolved_configuration_repeats_the_run(config, tmp_path):
    first = sp.run(config, overrides=["preprocess.scale=true", "seed=7"])
    again = sp.run(tmp_path / "out/config.yaml", overrides=[f"output.directory={tmp_path / 'again'}"])
    assert digest_of(again.directory) == digest_of(first.directory)
    texts = [(one.directory / "config.yaml").read_text().replace(str(one.directory), "out") for one in (first, again)]
    assert texts[0] == texts[1]
    assert sp.run(tmp_path / "out/config.yaml", overrides=["output.overwrite=true"])


@pytest.mark.slow
def test_scores_and_samples_are_those_of_the_rows(config, tmp_path):
    finished = sp.run(config, overrides=["output.report=true", "model.whiten=true"])
    values = make_values(4000, 12)
    scores = zarr.open_array(tmp_path / "out/scores.zarr/scores", mode="r")
    np.testing.assert_array_equal(scores[...], finished.model.transform(values))
    np.testing.assert_allclose(np.cov(scores[...].T), np.eye(5), atol=1e-10)
    samples = zarr.open_group(tmp_path / "out/samples.zarr", mode="r")
    index = samples["index"][...]
    assert samples["rows"].dtype == values.dtype
    assert len(index) == 2000
    assert (np.diff(index) > 0).all()
    np.testing.assert_array_equal(samples["rows"][...], values[index])


@pytest.mark.parametrize("dtype", ["uint8", "float32", ">f8", "float16", "bool"])
def test_types_and_orientation(tmp_path, dtype):
    values = (40 * make_values(500, 6) + 128).clip(0, 255).astype(dtype)
    if dtype == "bool":
        values = make_values(500, 6) > 0
    write_store(tmp_path / "x.zarr", np.ascontiguousarray(values.T), version=2, chunks=(4, 77))
    config = write_config(tmp_path)
    finished = sp.run(config, overrides=["source.orientation=features_first"])
    expected = np.linalg.eigvalsh(np.cov(values.astype(float).T))[::-1]
    np.testing.assert_allclose(finished.model.explained_variance_, expected, rtol=1e-5)
    scores = zarr.open_array(tmp_path / "out/scores.zarr/scores", mode="r")
    assert scores.shape == (500, 6)


@pytest.mark.slow
def test_overwriting_replaces_the_whole_run(config, tmp_path):
    first = sp.run(config, overrides=["output.report=true"])
    with pytest.raises(OutputError, match=r"output\.overwrite"):
        sp.run(config)
    second = sp.run(config, overrides=["output.overwrite=true", "output.scores=false", "model.n_components=2"])
    assert second.manifest["run_id"] != first.manifest["run_id"]
    assert second.model.n_components_ == 2
    assert not (tmp_path / "out/scores.zarr").exists()
    assert not (tmp_path / "out/report.html").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", "x.zarr", "out"}


def test_progress_is_told_to_a_callback(config):
    seen = []
    sp.run(config, progress=seen.append)
    for phase in ("fit", "scores"):
        rows = [progress.rows for progress in seen if progress.phase == phase]
        assert rows == sorted(rows)
        assert rows[-1] == 4000


def test_an_error_in_a_callback_reaches_the_caller_and_leaves_nothing(config, tmp_path):
    def stop(progress):
        raise KeyError("mine")

    before = picture(tmp_path)
    with pytest.raises(KeyError, match="mine"):
        sp.run(config, progress=stop)
    assert picture(tmp_path) == before


@pytest.mark.parametrize("threads", ["1", "2", "auto"])
def test_threads_do_not_change_the_bits(config, tmp_path, threads):
    finished = sp.run(config, overrides=[f"resources.threads={threads}"])
    alone = sp.run(config, overrides=["resources.threads=1", f"output.directory={tmp_path / 'alone'}"])
    assert digest_of(finished.directory) == digest_of(alone.directory)


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.distributed
def test_workers_give_the_same_bits_as_threads(config, tmp_path):
    here = sp.run(config)
    cluster = "cluster={kind: local, n_workers: 2, threads_per_worker: 1}"
    there = sp.run(config, overrides=[cluster, f"output.directory={tmp_path / 'there'}"])
    assert digest_of(there.directory) == digest_of(here.directory)
    np.testing.assert_array_equal(
        *(zarr.open_array(d / "scores.zarr/scores", mode="r")[...] for d in (here.directory, there.directory))
    )
    assert there.manifest["reads"]["fit"]["chunks"] == here.manifest["reads"]["fit"]["chunks"]
    _with_nan(tmp_path / "x.zarr")
    with pytest.raises(DataError, match=r"NaN.*row 3000, column 11"):
        sp.run(config, overrides=[cluster, "cluster.n_workers=1", f"output.directory={tmp_path / 'third'}"])
    assert not (tmp_path / "third").exists()


def _with_nan(store: Path):
    zarr.open_array(store, mode="r+")[3000, 11] = np.nan


def test_scores_are_never_silently_not_finite(config, tmp_path):
    """A model streamed over other rows refuses NaN as the fit does."""
    model = sp.run(config).model
    _with_nan(tmp_path / "x.zarr")
    with pytest.raises(DataError, match="NaN"):
        model.transform_to(tmp_path / "x.zarr", tmp_path / "scores.zarr")
    assert not (tmp_path / "scores.zarr").exists()


def test_parameters_that_cannot_be_are_refused_before_anything_is_made(config, tmp_path):
    before = picture(tmp_path)
    with pytest.raises(ParameterError, match="n_components=13"):
        sp.run(config, overrides=["model.n_components=13"])
    with pytest.raises(DataError, match="ddof=4000"):
        sp.run(config, overrides=["model.ddof=4000"])
    assert picture(tmp_path) == before


@pytest.mark.slow
def test_secrets_are_written_nowhere(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("STORE_SECRET", SECRET)
    monkeypatch.setenv("STORE_NAME", "bucket-of-mine")
    monkeypatch.chdir(tmp_path)
    options = "storage_options: {auto_mkdir: true, secret: '${STORE_SECRET}', nested: {key: '${STORE_SECRET}'}}"
    write_store(tmp_path / "bucket-of-mine/x.zarr")
    text = f"source: {{path: 'file://{tmp_path}/${{STORE_NAME}}/x.zarr', {options}}}\noutput: {{directory: out}}\n"
    (tmp_path / "c.yaml").write_text(text)
    monkeypatch.setattr(fsspec.get_filesystem_class("file"), "cachable", False)
    command = Command(capsys)
    for arguments in (["run"], ["plan"], ["check"], ["run", "--set", "output.overwrite=true", "--json"]):
        called = command(arguments[0], "c.yaml", *arguments[1:])
        assert called.status == 0, called.err
        assert SECRET not in called.out + called.err
    for name, content in picture(tmp_path / "out").items():
        assert SECRET.encode() not in (content if isinstance(content, bytes) else content.encode()), name
    assert "${STORE_SECRET}" in (tmp_path / "out/config.yaml").read_text()
    assert "${STORE_NAME}" in json.loads((tmp_path / "out/manifest.json").read_text())["source"]["path"]


@pytest.mark.filterwarnings("ignore:storage_options. .* are names of fsspec:FutureWarning")
@pytest.mark.parametrize(
    "path",
    ["nowhere://x", "s3://no-such-bucket/x", "file:///nowhere/x.zarr", "memory://nowhere", "http://127.0.0.1:1/x"],
)
def test_secrets_are_in_no_message(tmp_path, monkeypatch, capsys, path):
    monkeypatch.setenv("STORE_SECRET", SECRET)
    monkeypatch.chdir(tmp_path)
    options = "{secret: '${STORE_SECRET}', client_kwargs: {password: '${STORE_SECRET}'}}"
    (tmp_path / "c.yaml").write_text(f"source: {{path: '{path}', storage_options: {options}}}\nname: job\n")
    before = picture(tmp_path)
    called = Command(capsys)("run", "c.yaml")
    assert SECRET not in called.refused(5, path)
    assert picture(tmp_path) == before
