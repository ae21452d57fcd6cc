"""Results in object stores: whole or not there, whoever writes beside us and whatever answers are lost; and back again."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from facade import impatient
from stores import Command, make_values, write_store
from strategies import in_depth

import streampca as sp
from streampca.errors import ModelError, OutputError, StoreError

pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("obstore", reason="the extra s3 is not installed")
pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto and flask are not installed")
s3 = pytest.importorskip("s3")


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    with s3.bucket_in(tmp_path_factory.mktemp("bucket")) as found:
        found.faults.methods = ("PUT",)
        yield found


@pytest.fixture
def bucket(filled):
    """Return a bucket that answers well, until it is told otherwise, and that is asked again soon."""
    filled.faults.start(None)
    filled.faults.methods = ("PUT",)
    with impatient():
        yield filled


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    write_store(place / "x.zarr", make_values(3000, 12, seed=1), chunks=(500, 12))
    return made(place, "first")


@pytest.fixture(scope="module")
def others(run):
    return [run, *(made(run.parent, f"other {seed}", seed=seed, report=seed == 1) for seed in (1, 2))]


def made(place: Path, name: str, *, seed: int = 0, report: bool = False) -> Path:
    config = place / f"{name}.yaml"
    config.write_text(
        f"source: {{path: {place / 'x.zarr'}}}\nmodel: {{n_components: {3 + seed}}}\nseed: {seed}\n"
        f"output: {{directory: {place / name}, report: {str(report).lower()}}}\n"
    )
    return sp.run(config).directory


@pytest.mark.slow
def test_a_run_and_back(bucket, run, tmp_path):
    url = f"s3://{bucket.name}/runs/there"
    found = sp.publish(run, url, storage_options=bucket.options())
    assert bucket.objects("runs/there") == s3.contents(run)
    assert (found.n_written, found.n_objects) == (len(s3.contents(run)),) * 2
    assert found.n_bytes == sum(map(len, s3.contents(run).values()))
    assert sp.publish(run, url, storage_options=bucket.options()).n_written == 0
    back = sp.fetch(url, tmp_path / "back", storage_options=bucket.options())
    assert s3.contents(back) == s3.contents(run)
    assert sp.load(back).components_.tobytes() == sp.load(run).components_.tobytes()
    with pytest.raises(OutputError, match="holds a finished run already"):
        sp.fetch(url, tmp_path / "back", storage_options=bucket.options())
    sp.fetch(url, tmp_path / "back", storage_options=bucket.options(), overwrite=True)
    sp.load(run).save(tmp_path / "model")
    sp.publish(tmp_path / "model", f"{url}-model", storage_options=bucket.options())
    sp.fetch(f"{url}-model", tmp_path / "model again", storage_options=bucket.options())
    assert s3.contents(tmp_path / "model again") == s3.contents(tmp_path / "model")


def test_options_have_the_names_of_obstore_and_the_common_ones_of_s3fs(bucket, run, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    url, keys = f"s3://{bucket.name}/named", {"access_key_id": "testing", "secret_access_key": "testing-secret"}
    assert sp.publish(run, url, storage_options={**keys, "endpoint": bucket.endpoint}).n_written > 5
    others = {"key": "testing", "secret": "testing-secret", "token": None}
    place = {"endpoint_url": bucket.endpoint}
    for options in ({**others, "client_kwargs": place}, {**others, **place}):
        with pytest.warns(FutureWarning, match="key, secret.* are names of fsspec"):
            assert sp.publish(run, url, storage_options=options).n_written == 0
    flat = {"access_key_id": "testing", "secret_access_key": "testing-secret", "endpoint": bucket.endpoint}
    with pytest.raises(OutputError, match="status 403"):  # nobody may read it without a name
        sp.publish(run, url, storage_options={"skip_signature": True, "endpoint": bucket.endpoint})
    (tmp_path / "credentials").write_text(
        "[lab]\naws_access_key_id = testing\naws_secret_access_key = testing-secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint)
    assert sp.publish(run, url, storage_options={"profile": "lab"}).n_written == 0
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert sp.publish(run, url).n_written == 0
    with pytest.raises(OutputError, match=r"'colour' is not valid.*output\.storage_options") as caught:
        sp.publish(run, url, storage_options={**flat, "colour": "hunter22"})
    assert "hunter22" not in str(caught.value)
    with pytest.raises(OutputError, match="its address holds a user") as caught:
        sp.publish(run, f"s3://me:hunter22@{bucket.name}/named", storage_options=flat)
    assert "hunter22" not in str(caught.value)
    with pytest.raises(StoreError, match=r"streampca\.json cannot be read: .*storage_options") as caught:
        sp.fetch(url, tmp_path / "back", storage_options=flat | {"endpoint": "http://me:hunter22@127.0.0.1:1"})
    assert "hunter22" not in str(caught.value)


@pytest.mark.deep(keep=3)
@pytest.mark.parametrize("seed", range(6))
def test_writes_that_fail_or_are_not_answered_change_nothing(bucket, run, seed):
    bucket.faults.start(s3.WRITING, seed)
    prefix = f"runs/flaky-{seed}"
    sp.publish(run, f"s3://{bucket.name}/{prefix}", storage_options=bucket.options())
    assert bucket.faults.injected.total() > 1
    assert bucket.objects(prefix) == s3.contents(run)


@pytest.mark.slow
def test_many_copies_one_or_two_at_a_time():
    n = in_depth(4, 12)
    score = s3.run_publishing(n, 0)
    print(score.line())
    score.require_clean()
    assert score.injected > n


@pytest.mark.slow
def test_the_record_whose_answer_was_lost_is_ours(bucket, run):
    left = [1]

    def draw(path: str, rng: object) -> str | None:
        if not path.endswith("there2/streampca.json") or not left[0]:
            return None
        left[0] -= 1
        return "lost"

    bucket.faults.start(draw)
    sp.publish(run, f"s3://{bucket.name}/there2", storage_options=bucket.options())
    assert bucket.faults.injected["lost"] == 1
    assert bucket.objects("there2") == s3.contents(run)


def test_a_copy_that_broke_off_is_gone_on_with(bucket, run):
    left, url = [7], f"s3://{bucket.name}/broken"

    def draw(path: str, rng: object) -> str | None:
        left[0] -= 1
        return "403" if left[0] < 0 else None

    bucket.faults.start(draw)
    with pytest.raises(OutputError, match=r"cannot be written: status 403.*output\.storage_options"):
        sp.publish(run, url, storage_options=bucket.options())
    there = bucket.objects("broken")
    assert "streampca.claim" in there
    assert "streampca.json" not in there
    with pytest.raises(ModelError, match=r"there is no streampca\.json in it"):
        sp.fetch(url, run.parent / "nothing", storage_options=bucket.options())
    bucket.faults.start(None)
    found = sp.publish(run, url, storage_options=bucket.options())
    assert found.n_written == found.n_objects - (len(there) - 1)
    assert bucket.objects("broken") == s3.contents(run)


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("attempt", range(5))
def test_of_several_runs_one_is_published_wholly(bucket, others, attempt):
    prefix = f"race-{attempt}"
    bucket.faults.start(s3.often({"lost": 0.1}), attempt)
    said = s3.at_once(bucket, others, prefix)
    assert sorted(map(bool, said)) == [False, True, True], said
    assert bucket.objects(prefix) in [s3.contents(directory) for directory in others]
    for words in filter(None, said):
        assert "is being written by another run (run_id '" in words or "already, which is left as it is" in words


def test_what_is_of_others_is_left(bucket, run, tmp_path):
    url = f"s3://{bucket.name}/theirs"
    bucket.client.put_object(Bucket=bucket.name, Key="theirs/notes.txt", Body=b"theirs")
    with pytest.raises(OutputError, match=r"holds 'notes\.txt', which is not of this run"):
        sp.publish(run, url, storage_options=bucket.options())
    assert bucket.objects("theirs") == {"notes.txt": b"theirs"}
    bucket.client.put_object(Bucket=bucket.name, Key="theirs/streampca.json", Body=b"[]")
    with pytest.raises(OutputError, match="holds something that is not a run already"):
        sp.publish(run, url, storage_options=bucket.options())
    bucket.client.put_object(
        Bucket=bucket.name, Key="theirs/streampca.json", Body=(run / "streampca.json").read_bytes()
    )
    with pytest.raises(ModelError, match=r"holds 'notes\.txt', which streampca did not write"):
        sp.fetch(url, tmp_path / "back", storage_options=bucket.options())
    bucket.client.put_object(Bucket=bucket.name, Key="mixed/manifest.json", Body=b"{}")
    with pytest.raises(OutputError, match=r"holds another manifest\.json"):
        sp.publish(run, f"s3://{bucket.name}/mixed", storage_options=bucket.options())
    (run / "extra").write_text("mine")
    try:
        with pytest.raises(OutputError, match="holds extra, which streampca did not write"):
            sp.publish(run, f"s3://{bucket.name}/new", storage_options=bucket.options())
    finally:
        (run / "extra").unlink()
    with pytest.raises(ModelError, match="neither a finished run nor a model"):
        sp.publish(tmp_path, url)


def test_what_goes_while_it_is_fetched_is_not_taken_for_empty(bucket, run, tmp_path):
    url = f"s3://{bucket.name}/going"
    sp.publish(run, url, storage_options=bucket.options())
    bucket.faults.methods = ("GET",)
    bucket.faults.start(lambda path, rng: "404" if path.endswith("going/model.zarr/zarr.json") else None)
    with pytest.raises(ModelError, match=r"model\.zarr/zarr\.json was removed while it was fetched"):
        sp.fetch(url, tmp_path / "back", storage_options=bucket.options())
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_not_published(tmp_path):
    (tmp_path / "streampca.json").write_text('{"format": "streampca-checkpoint", "run_id": "a"}')
    with pytest.raises(ModelError, match=r"its streampca\.json says 'checkpoint'"):
        sp.publish(tmp_path, "s3://bucket/x")


@pytest.mark.parametrize("url", ["runs/x", "https://example.org/x", "file:///x"])
def test_places_that_are_not_object_stores_are_refused(run, url):
    with pytest.raises(OutputError, match="is not in an object store"):
        sp.publish(run, url)


def test_a_configured_run_is_published_and_with_resume_only_copied(bucket, run, tmp_path):
    options = json.dumps(bucket.options())
    config = tmp_path / "c.yaml"
    config.write_text(
        f"source: {{path: {run.parent / 'x.zarr'}}}\n"
        f"output: {{directory: {tmp_path / 'run'}, report: false, publish: 's3://{bucket.name}/mine', storage_options: {options}}}\n"
    )
    bucket.faults.start(lambda path, rng: "403" if path.endswith("mine/streampca.json") else None)
    with pytest.raises(OutputError, match=r"the run itself is finished, in .*run: with --resume only the copy is made"):
        sp.run(config)
    bucket.faults.start(None)
    told: list[str] = []
    sp.run(config, resume=True, notice=told.append)
    assert f"published to s3://{bucket.name}/mine: " in told[-1]
    assert bucket.objects("mine") == s3.contents(tmp_path / "run")
    # A place that is taken is known before anything is read.
    with pytest.raises(OutputError, match=r"holds run .* already"):
        sp.run(config, overrides=[f"output.directory={tmp_path / 'other'}"])
    for place in ("x.zarr", "x.zarr/run"):
        changes = [f"source.path=s3://{bucket.name}/x.zarr", f"source.storage_options={options}"]
        changes += [f"output.publish=s3://{bucket.name}/{place}", f"output.directory={tmp_path / 'other'}"]
        with pytest.raises(OutputError, match="lie in each other"):
            sp.run(config, overrides=changes)
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_the_commands(run, tmp_path, capsys):
    call = Command(capsys)
    words = "s3:/bucket is not in an object store: expected a URL such as s3://bucket/runs/name"
    call("publish", run, "s3:/bucket").refused(6, words)
    call("fetch", "memory://nothing/here", tmp_path / "back").refused(ModelError.exit_status)
    done = call("publish", run, "memory://somewhere/run")
    assert done.status == 0, done.err
    assert done.out.startswith("memory://somewhere/run: run ")
    assert json.loads(call("publish", run, "memory://somewhere/run", "--json").out)["n_objects"] > 5
