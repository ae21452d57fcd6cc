"""The command as its user meets it: exit statuses, one helpful line for every error, and nothing half-written."""

import json
import os
import re
import shutil
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import zarr
from facade import main
from stores import (
    call_apart,
    chunk_files,
    config_text,
    make_values,
    picture,
    write_group,
    write_store,
)

import streampca as sp
from streampca import PCA

GOOD = "source: {path: good.zarr}\noutput: {directory: out, report: false}\n"
BROKEN_CONFIGURATIONS = [
    ("", 2, ["source.path is missing"]),
    ("just text", 2, ["found the text 'just text' at the top"]),
    ("soruce: {path: good.zarr}", 2, ["did you mean source?"]),
    (GOOD + "model: {n_component: 3}", 2, ["model.n_component", "did you mean n_components?"]),
    (GOOD + "model: {n_components: 0}", 2, ["model.n_components: found 0", "allowed"]),
    (GOOD + "model: {n_components: 9}", 2, ["n_components=9", "8"]),
    (GOOD + "model: {n_components: 1.5}", 2, ["model.n_components: found 1.5"]),
    (GOOD + "model: {kind: ica}", 2, ["model.kind", "pca, kernel_pca"]),
    (GOOD + "model: {kind: kernel_pca}\npreprocess: {missing: mean}", 2, ["preprocess.missing", "kernel_pca"]),
    (GOOD + "model: {kind: kernel_pca, kernel: gauss}", 2, ["model.kernel", "gauss", "the name of a kernel"]),
    (GOOD + "model: {solver: sketch, n_components: 5, sketch_size: 3}", 2, ["sketch_size=3", "n_components=5", "15"]),
    (GOOD + "model: {solver: adaptive, forgetting: 0.9}", 2, ["adaptive", "forgetting", "covariance"]),
    (
        GOOD + "model: {solver: adaptive}\npreprocess: {missing: pairwise}",
        2,
        ["adaptive", "pairwise", "missing='mean'"],
    ),
    (GOOD + "model: {solver: skecth}", 2, ["model.solver", "sketch, adaptive"]),
    (GOOD + "preprocess: {scale: 'yes'}", 2, ["preprocess.scale", "true or false"]),
    (GOOD + "preprocess: {missing: drop_rows}\nmodel: {solver: gram}", 2, ["missing", "gram"]),
    (GOOD + "resources: {memory: lots}", 2, ["resources.memory", "2GiB"]),
    (GOOD + "resources: {memory: 64MiB}", 7, ["projected", "exceeds the allowed 64 MiB", "memory of at least"]),
    (GOOD + "cluster: {kind: kubernetes}", 2, ["cluster: kind kubernetes was removed", "kind: address"]),
    (GOOD + "seed: -1", 2, ["seed: found -1"]),
    (GOOD + "seed: 1\nseed: 2", 2, ["line 4: seed is given twice"]),
    (GOOD + "name: !!python/name:os.system x", 2, ["line 3: tags"]),
    (GOOD + "name: &a x", 2, ["line 3: anchors"]),
    (GOOD + "name: [", 2, ["broken.yaml: line 3: not YAML"]),
    (GOOD + "name: '../../etc'", 2, ["name: found"]),
    ("source: {path: good.zarr}\noutput: {directory: ''}", 2, ["output.directory"]),
    ("source: {path: good.zarr}\noutput: {directory: " + 300 * "a" + "}", 2, ["output.directory", "at most 220 bytes"]),
    ("source: {path: '${NO_SUCH_NAME}'}", 2, ["NO_SUCH_NAME"]),
    ("source: {path: 'builtin:irsi'}\noutput: {directory: out}", 5, ["did you mean iris?"]),
    ("source: {path: good.zarr}\noutput: {directory: good.zarr/out}", 6, ["contain one another"]),
    ("source: {path: 'file://good.zarr'}\noutput: {directory: good.zarr/out}", 6, ["contain one another"]),
    ("source: {path: good.zarr}\noutput: {directory: .}", 6, ["not a run of streampca", "untouched"]),
    ("source: {path: good.zarr}\noutput: {directory: /}", 6, ["untouched"]),
    ("source: {path: good.zarr}\noutput: {directory: broken.yaml}", 6, ["broken.yaml", "untouched"]),
    ("source: {path: good.zarr}\noutput: {directory: broken.yaml/sub}", 6, ["broken.yaml", "not a directory"]),
]


@pytest.mark.parametrize(
    ("text", "status", "words"), BROKEN_CONFIGURATIONS, ids=[repr(t[-45:]) for t, _, _ in BROKEN_CONFIGURATIONS]
)
def test_a_broken_configuration(call, tmp_path, text, status, words):
    (tmp_path / "broken.yaml").write_text(text)
    before = picture(tmp_path)
    call.quietly("run", "broken.yaml").refused(status, *words)
    assert picture(tmp_path) == before


@pytest.mark.parametrize("host", ["[::1", "[1:2]"])
def test_a_url_that_is_none_is_told_without_its_password(call, host):
    called = call.quietly("inspect", f"https://user:secret@{host}/x.zarr")
    called.refused(5, f"https://{host}/x.zarr is not a URL", "IPv6 address in brackets")
    assert "secret" not in called.err + called.out


def test_names_that_are_too_long_for_the_file_system_are_told(call, job):
    called = call("inspect", 300 * "a")
    assert called.status in (2, 5)
    assert "internal error" not in called.err
    with pytest.raises(sp.errors.ModelError, match="no such model"):
        sp.load(300 * "a")
    with pytest.raises(sp.errors.OutputError, match="is too long a path: expected names of at most 220 bytes"):
        sp.PCA(1).fit(np.arange(12.0).reshape(6, 2)).save(300 * "a")


def test_a_scheduler_that_does_not_answer_is_given_up_after_wait(call, tmp_path):
    (tmp_path / "c.yaml").write_text(GOOD + "cluster: {kind: address, address: 'tcp://127.0.0.1:1', wait: 1s}")
    began = time.monotonic()
    call.quietly("run", "c.yaml").refused(3, "no scheduler answers at tcp://127.0.0.1:1 within 1s")
    assert time.monotonic() - began < 15  # Dask's own limit is 30 s
    assert not (tmp_path / "out").exists()


def _missing(path):
    chunk_files(write_store(path))[2].unlink()


def _truncated(path):
    os.truncate(chunk_files(write_store(path))[2], 1000)


def _empty_chunk(path):
    os.truncate(chunk_files(write_store(path, chain="zstd"))[2], 0)


def _flipped(path):
    chunk = chunk_files(write_store(path, chain="zstd+crc32c"))[2]
    data = bytearray(chunk.read_bytes())
    data[50] ^= 4
    chunk.write_bytes(data)


def _with_value(value):
    def write(path):
        values = make_values()
        values[321, 5] = value
        write_store(path, values)

    return write


def _values(values, chunks):
    return lambda path: write_store(path, values, chunks=chunks)


def _v2_objects(path):
    path.mkdir()
    metadata = {"zarr_format": 2, "shape": [4, 2], "chunks": [4, 2], "dtype": "|O", "compressor": None}
    (path / ".zarray").write_text(json.dumps(metadata | {"fill_value": 0, "order": "C", "filters": [{"id": "pickle"}]}))


def _text_file(path):
    path.write_text("hello")


def _no_store(path):
    path.mkdir()
    (path / "thesis.txt").write_text("years of work")


def _cut_metadata(path):
    write_store(path)
    (path / "zarr.json").write_text('{"zarr_format": 3')


def _npy(content):
    def write(path):
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            np.save(path, content, allow_pickle=True)

    return write


def _cut_npy(path):
    np.save(path, make_values())
    os.truncate(path, 3000)


BROKEN_INPUTS = [
    ("missing chunk", "x.zarr", _missing, ["1 of 4 chunks", "c/2/0", "missing_chunks: fill"]),
    ("truncated chunk", "x.zarr", _truncated, ["c/2/0", "1,000 bytes", "6,400"]),
    ("empty chunk", "x.zarr", _empty_chunk, ["c/2/0", "zstd"]),
    ("flipped bit", "x.zarr", _flipped, ["c/2/0", "zstd+crc32c", "checksum"]),
    ("NaN", "x.zarr", _with_value(np.nan), ["x.zarr", "NaN", "row 321", "column 5"]),
    ("infinity", "x.zarr", _with_value(-np.inf), ["x.zarr", "infinity", "row 321", "column 5"]),
    ("overflow", "x.zarr", _with_value(1e200), ["x.zarr", "overflow", "column 5"]),
    ("complex", "x.zarr", _values(make_values().astype(complex), (100, 8)), ["complex128", "real"]),
    ("strings", "x.npy", _npy(np.array([["a", "b"]] * 4)), ["<U1", "expected"]),
    ("dates", "x.npy", _npy(np.zeros((4, 2), "M8[s]")), ["datetime64[s]", "expected"]),
    ("structure", "x.npy", _npy(np.zeros((4, 2), [("a", "f8")])), ["expected"]),
    ("objects v2", "x.zarr", _v2_objects, ["x.zarr", "|O"]),
    ("objects npy", "x.npy", _npy(np.array([[1, None]], dtype=object)), ["x.npy", "objects"]),
    ("no rows", "x.zarr", _values(make_values()[:0], (1, 8)), ["0 sample(s)"]),
    ("no columns", "x.zarr", _values(make_values()[:, :0], (100, 1)), ["0 feature(s)"]),
    ("one row", "x.zarr", _values(make_values()[:1], (1, 8)), ["n_samples=1", "at least 2"]),
    ("1-D", "x.zarr", _values(make_values()[:, 0], (100,)), ["1D array of shape (400,)", "2D"]),
    (
        "3-D",
        "x.zarr",
        _values(make_values().reshape(400, 4, 2), (100, 4, 2)),
        ["3 dimensions, dim_0 (400), dim_1 (4), dim_2 (2)", "samples: [dim_0]"],
    ),
    ("group without name", "x.zarr", write_group, ["name the array", "left (400, 8)", "right (400, 8)"]),
    ("not a store", "x.zarr", _no_store, ["x.zarr", "zarr.json"]),
    ("text file", "x.zarr", _text_file, ["x.zarr", "zarr"]),
    ("cut metadata", "x.zarr", _cut_metadata, ["x.zarr", "cannot be opened"]),
    ("nothing there", "x.zarr", lambda path: None, ["x.zarr: no such file or directory"]),
    ("no such npy", "x.npy", lambda path: None, ["x.npy: no such file"]),
    ("cut npy", "x.npy", _cut_npy, ["x.npy", "cut short"]),
    ("empty npy", "x.npy", _npy(b""), ["x.npy"]),
    ("not an npy", "x.npy", _npy(b"abc" * 100), ["x.npy", "not"]),
]


@pytest.mark.parametrize(("name", "place", "write", "words"), BROKEN_INPUTS, ids=[case[0] for case in BROKEN_INPUTS])
def test_a_broken_input(call, job, tmp_path, name, place, write, words):
    write(tmp_path / place)
    (tmp_path / "broken.yaml").write_text(config_text(place, "runs/broken"))
    before = picture(tmp_path)
    message = call.quietly("run", "broken.yaml").refused(5, *words)
    assert "pickle.load" not in message
    assert "allow_pickle" not in message
    # Nor does it harm the run that stands where the new one should have gone.
    assert call.quietly("run", job, "--set", f"source.path={place}").err == message
    assert picture(tmp_path) == before


@pytest.mark.parametrize("array", ["middle", "lef", "", "../left", "/left", "left/x"])
def test_a_wrong_array_name(call, tmp_path, array):
    write_group(tmp_path / "x.zarr")
    (tmp_path / "c.yaml").write_text(config_text("x.zarr", "out"))
    called = call.quietly("run", "c.yaml", "--set", f"source.array='{array}'")
    called.refused(2 if array == "" else 5, "left (400, 8), right (400, 8)" if array else "source.array")
    assert not (tmp_path / "out").exists()


def test_a_store_is_no_model_and_nothing_is_no_store(call):
    call("transform", "good.zarr", "good.zarr", "out", "--quiet").refused(5, "good.zarr is not a streampca model")
    call("inspect", "nowhere").refused(5, "nowhere: no such file or directory")


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize("case", ["strings", "NaN", "3-D", "not a store", "missing chunk", "cut npy"])
def test_a_broken_input_says_one_line_in_a_process_of_its_own(tmp_path, case):
    """Here warnings of libraries would show."""
    _, place, write, words = next(c for c in BROKEN_INPUTS if c[0] == case)
    if case == "strings":
        place, write, words = "x.zarr", _values(np.array([["a", "b"]] * 4), (4, 2)), ["<U1"]
        write = _silently(write)
    write(tmp_path / place)
    (tmp_path / "c.yaml").write_text(config_text(place, "out"))
    before = picture(tmp_path)
    call_apart("run", "c.yaml", directory=tmp_path).refused(5, *words)
    assert picture(tmp_path) == before


def _silently(write):
    def written(path):
        with warnings.catch_warnings():  # zarr before 3.4 warns that its format 3 does not specify this type
            warnings.simplefilter("ignore")
            write(path)

    return written


USAGE = [
    (["run"], ["CONFIG"]),
    (["runn", "c.yaml"], ["runn"]),
    (["run", "nowhere.yaml"], ["nowhere.yaml"]),
    (["run", "."], ["."]),
    (["run", "job.yaml", "--bad"], ["--bad"]),
    (["run", "job.yaml", "--set", "seed"], ["--set seed", "key.sub=value"]),
    (["run", "job.yaml", "--set", "sede=1"], ["did you mean seed?"]),
    (["run", "job.yaml", "--resume", "--set", "output.directory=elsewhere"], ["--resume", "elsewhere.checkpoint"]),
    (["run", "job.yaml", "--resume", "--fresh"], ["contradict"]),
    (["check", "good.zarr"], ["good.zarr"]),
    (["merge"], ["MODEL"]),
    (["verify", "runs/job", "--set", "seed=1"], ["seed", "source and resources"]),
    (["transform", "runs/job", "good.zarr", "out", "--memory", "lots"], ["lots", "2GiB"]),
    (["transform", "runs/job", "good.zarr", "out", "--orientation", "up"], ["samples_first"]),
]


@pytest.mark.parametrize(("arguments", "words"), USAGE, ids=[" ".join(a) for a, _ in USAGE])
def test_wrong_usage_has_status_2(call, job, tmp_path, arguments, words):
    before = picture(tmp_path)
    call(*arguments).refused(2, *words)
    assert picture(tmp_path) == before


def test_an_output_that_is_there_is_replaced_only_when_asked(call, job, tmp_path):
    before = picture(tmp_path)
    call.quietly("run", job, "--set", "output.overwrite=false").refused(6, "runs/job", "output.overwrite")
    assert picture(tmp_path) == before


def test_a_foreign_directory_or_file_in_it_is_left_untouched(call, job, tmp_path):
    (tmp_path / "runs/job/model.zarr/thesis").write_text("years of work")
    before = picture(tmp_path)
    call.quietly("run", job).refused(6, "model.zarr/thesis", "untouched")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/streampca.json").write_text("{}")
    call.quietly("run", job, "--set", "output.directory=mine").refused(6, "mine", "untouched")
    shutil.rmtree(tmp_path / "mine")
    assert picture(tmp_path) == before


def test_a_link_as_output_is_refused(call, job, tmp_path):
    (tmp_path / "link").symlink_to("runs/job")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = picture(tmp_path)
    call.quietly("run", job, "--set", "output.directory=link").refused(6, "link is a symbolic link")
    call.quietly("run", job, "--set", "output.directory=dangling").refused(6, "dangling is a symbolic link")
    assert picture(tmp_path) == before


def test_control_characters_of_names_are_escaped(call, tmp_path):
    (tmp_path / "c.yaml").write_text(GOOD)
    line = call.quietly("run", "c.yaml", "--set", 'source.path="no\\e[31mwhere\\n.zarr"').refused(2)
    assert "\x1b" not in line
    group = zarr.open_group(tmp_path / "evil.zarr", mode="w")
    group.create_array("a\x1b[31m\nb", shape=(3, 2, 2), dtype="f8")
    called = call("inspect", "evil.zarr")
    assert "a\\x1b[31m\\nb: 3 x 2 x 2" in called.out
    assert "\x1b" not in called.out


def status_of_main(*arguments):
    with pytest.raises(SystemExit) as leaving:
        main([*arguments])
    return leaving.value.code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_one_command_and_neither_the_next_fit_nor_its_handlers(number, call, tmp_path, monkeypatch):
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    (tmp_path / "job.yaml").write_text(config_text("good.zarr", "out", output="report: false"))

    def fit_when_a_signal_comes(*_, **__):
        signal.raise_signal(number)

    with monkeypatch.context() as patch:
        patch.setattr("streampca.runs.one_model.run_fit", fit_when_a_signal_comes)
        assert status_of_main("run", "--quiet", "job.yaml") == 128 + number
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
    assert PCA(2).fit("good.zarr").n_components_ == 2
    assert call.quietly("run", "job.yaml").status == 0


def test_a_command_in_a_thread_leaves_signals_to_the_main_thread(call):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(status_of_main, "inspect", "good.zarr").result(60) == 0


@pytest.mark.slow
def test_both_readings_are_counted_in_the_closing_lines_and_in_the_report(call, tmp_path):
    write_store(tmp_path / "x.zarr", make_values(4096, 64))  # 2 MiB
    (tmp_path / "c.yaml").write_text(config_text(tmp_path / "x.zarr", tmp_path / "run", output="report: true"))
    called = call("run", tmp_path / "c.yaml")
    assert "read 4 MiB (1 pass for the fit, 1 for the scores)" in " ".join(called.out.split())
    page = (tmp_path / "run" / "report.html").read_text()
    assert re.search(r"1 for the fit, 1 for the scores; 4(\.0+)?\sMiB in all", page)
