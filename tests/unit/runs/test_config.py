"""The YAML file: what is accepted, what is refused and with which words, what is never written out."""

import copy
import json
import pickle
import traceback
from pathlib import Path

import pytest
import yaml
from facade import parse_config
from stores import Command

import streampca as sp
from streampca.errors import ConfigError

CONFIGS = Path(__file__).parents[3] / "configs"
SOURCE = "source: {path: data/x.zarr}\n"
OPTIONS = SOURCE + "cluster: {kind: slurm, options: "
KERNEL = SOURCE + "model: {kind: kernel_pca, "
SECRET = "hunter2-canary"


def parse(text, *overrides):
    return parse_config(text, name="c.yaml", overrides=overrides)


def refusal(text, *overrides):
    """Return the message that a text is refused with, having checked that it is one line that names the file."""
    with pytest.raises(ConfigError) as caught:
        parse(text, *overrides)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert message.startswith("c.yaml: ")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return message.removeprefix("c.yaml: ")


BROKEN = [
    ("", "source.path is missing, allowed: a local path, a URL, or builtin:NAME"),
    ("# nothing", "source.path is missing"),
    ("[a, b]", "found a list at the top, allowed: keys such as source"),
    ("just text", "found the text 'just text' at the top"),
    ("soruce: {path: x}", "soruce is not a key of the file: did you mean source? (keys: version, name, source, "),
    (SOURCE + "model: {sovler: auto}", "model.sovler is not a key of model: did you mean solver? (keys: kind, n_comp"),
    (SOURCE + "model: {Solver: auto}", "model.Solver is not a key of model: did you mean solver?"),
    (SOURCE + "model: {zzz: 1}", "model.zzz is not a key of model (keys: kind, n_components"),
    (SOURCE + "model: {memory: 1GiB}", "model.memory is not a key of model: did you mean resources.memory?"),
    (SOURCE + "model: {random_state: 1}", "model.random_state is not a key of model: did you mean seed?"),
    (SOURCE + "n_components: 5", "n_components is not a key of the file: did you mean model.n_components?"),
    (SOURCE + "model: {gamma: 1}", "model.gamma is not a key of model of kind pca: it belongs to kind kernel_pca"),
    (
        SOURCE + "checkpoint: {evry: 1s}",
        "checkpoint.evry is not a key of checkpoint: did you mean every? (keys: every)",
    ),
    (SOURCE + "output: {overwite: true}", "output.overwite is not a key of output: did you mean overwrite?"),
    (SOURCE + "model: {kind: pcaa}", "model.kind: found the text 'pcaa', allowed: pca, kernel_pca"),
    (SOURCE + "model: {kind: [pca]}", "model.kind: found a list, allowed: pca, kernel_pca"),
    (SOURCE + "model: {kind: null}", "model.kind: found nothing (null), allowed: pca, kernel_pca"),
    (
        SOURCE + "model: pca",
        "model: found the text 'pca', allowed: a mapping with kind (pca, kernel_pca, mca, cca, factor_analysis)",
    ),
    (SOURCE + "model:", "model: found nothing (null), allowed: a mapping"),
    (SOURCE + "preprocess:", "preprocess: found nothing (null), allowed: a mapping with keys center, scale, missing"),
    (SOURCE + "version: 2", "version: found 2, allowed: 1"),
    (SOURCE + "version: true", "version: found true, allowed: 1"),
    (SOURCE + "version: 1.0", "version: found 1.0, allowed: 1"),
    (SOURCE + "seed: true", "seed: found true, allowed: a whole number of at least 0"),
    (SOURCE + "seed: '3'", "seed: found the text '3', allowed: a whole number"),
    (SOURCE + "seed: -1", "seed: found -1, allowed: a whole number of at least 0"),
    (SOURCE + "seed: 99999999999999999999", "line 2: seed does not fit in 64 bits"),
    (SOURCE + "name: 5", "name: found 5, allowed: a name for the run"),
    (SOURCE + "name: ../up", "name: found the text '../up', allowed: a name for the run"),
    (SOURCE + "name: '..'", "name: found the text '..', allowed: a name"),
    (SOURCE + "preprocess: {center: 1}", "preprocess.center: found 1, allowed: true or false"),
    (SOURCE + "preprocess: {scale: on}", "preprocess.scale: found the text 'on', allowed: true or false"),
    (
        SOURCE + "preprocess: {missing: drop}",
        "preprocess.missing: found the text 'drop', allowed: error, drop_rows, mean",
    ),
    (SOURCE + "preprocess: {sample_weight: 3}", "preprocess.sample_weight: found 3, allowed: the path of an .npy file"),
    (
        SOURCE + "model: {n_components: 0}",
        "model.n_components: found 0, allowed: a whole number of at least 1, a share",
    ),
    (SOURCE + "model: {n_components: 1.0}", "model.n_components: found 1.0, allowed: "),
    (SOURCE + "model: {n_components: true}", "model.n_components: found true, allowed: "),
    (SOURCE + "model: {n_components: 010}", "model.n_components: found the text '010', allowed: "),
    (SOURCE + "model: {n_components: {threshold: 2.0}}", "model.n_components: found a mapping, allowed: "),
    (SOURCE + "model: {n_components: {frobenius: 1.0}}", "model.n_components: found a mapping, allowed: "),
    (SOURCE + "model: {n_components: {frobenios: 0.9}}", "model.n_components: found a mapping, allowed: "),
    (SOURCE + "model: {kind: kernel_pca, n_components: mle}", "model.n_components: found the text 'mle', allowed: "),
    (
        SOURCE + "model: {kind: kernel_pca, n_components: {frobenius: 0.9}}",
        "model.n_components: found a mapping, allowed: ",
    ),
    (SOURCE + "model: {n_components: {treshold: 0.1}}", "model.n_components: found a mapping, allowed: "),
    (SOURCE + "model: {tolerance: .nan}", "model.tolerance: found a number that is not finite"),
    (SOURCE + "model: {tolerance: 1e999}", "model.tolerance: found a number that is not finite"),
    (SOURCE + "model: {tolerance: -1}", "model.tolerance: found -1, allowed: a number of at least 0, or null"),
    (
        SOURCE + "model: {solver: auot}",
        "model.solver: found the text 'auot', allowed: auto, covariance, gram, qr, sketch, a",
    ),
    (SOURCE + "model: {solver: []}", "model.solver: found an empty list, allowed: auto"),
    (
        SOURCE + "model: {max_passes: 1.5}",
        "model.max_passes: found 1.5, allowed: auto, or a whole number of at least 1",
    ),
    (SOURCE + "model: {pilot: -1}", "model.pilot: found -1, allowed: auto, or a whole number of at least 0"),
    (SOURCE + "resources: {memory: 2}", "resources.memory: found 2, allowed: a size of at least 64 MiB such as 2GiB"),
    (SOURCE + "resources: {memory: 63MiB}", "resources.memory: found the text '63MiB', allowed: a size"),
    (SOURCE + "resources: {memory: 2 gigs}", "resources.memory: found the text '2 gigs', allowed: a size"),
    (SOURCE + "resources: {memory: 999999999999PB}", "resources.memory: found the text '999999999999PB'"),
    (SOURCE + "resources: {memory: true}", "resources.memory: found true, allowed: a size"),
    (SOURCE + "resources: {threads: 0}", "resources.threads: found 0, allowed: auto, or a whole number of at least 1"),
    (
        SOURCE + "cluster: {kind: loca}",
        "cluster.kind: found the text 'loca', allowed: threads, local, address, slurm",
    ),
    (
        SOURCE + "cluster: {kind: local, n_worker: 2}",
        "cluster.n_worker is not a key of cluster: did you mean n_workers?",
    ),
    (SOURCE + "cluster: {kind: address}", "cluster.address is missing, allowed: the address of a scheduler, tls://"),
    (
        SOURCE + "cluster: {kind: address, address: here}",
        "cluster.address: found the text 'here', allowed: the address",
    ),
    (SOURCE + "cluster: {kind: address, address: 'h:0'}", "cluster.address: found the text 'h:0', allowed: the addr"),
    (SOURCE + "cluster: {kind: address, address: 'ucx://h:1'}", "cluster.address: found the text 'ucx://h:1', allo"),
    (SOURCE + "cluster: {kind: address, address: 'tls://h:1'}", "cluster: address is that of another machine, to whic"),
    (
        SOURCE + "cluster: {kind: address, address: 'tcp://h:1', allow_remote: true}",
        "cluster: address is that of another machine and the connection would not be encrypted: write tls://HOST:PORT",
    ),
    (
        SOURCE + "cluster: {kind: address, address: 'tcp://127.0.0.1:1', tls: {ca_file: a, cert: b, key: c}}",
        "cluster: tls is given, but address is not encrypted: write tls://HOST:PORT",
    ),
    (
        SOURCE + "cluster: {kind: address, address: 'tcp://h:1', wait: null}",
        "cluster.wait: found nothing (null), allowed: a dur",
    ),
    (
        SOURCE + "cluster: {kind: local, allow_remote: true}",
        "cluster.allow_remote is not a key of cluster of kind local: ",
    ),
    (
        SOURCE + "cluster: {kind: slurm, n_workers: 0}",
        "cluster.n_workers: found 0, allowed: a whole number of at least 1",
    ),
    (SOURCE + "cluster: {kind: slurm, wait: 10}", "cluster.wait: found 10, allowed: a duration such as 30s"),
    (
        SOURCE + "cluster: {kind: slurm, options: {security: null}}",
        "cluster: options may not hold security: cluster.tls s",
    ),
    (
        SOURCE + "cluster: {kind: slurm, options: {n_workers: 3}}",
        "cluster: options may not hold n_workers: cluster.n",
    ),
    (SOURCE + "cluster: {kind: kubernetes}", "cluster: kind kubernetes was removed: have the Dask operator"),
    (SOURCE + "checkpoint: {every: 30}", "checkpoint.every: found 30, allowed: a duration such as 30s"),
    (SOURCE + "checkpoint: {every: 0s}", "checkpoint.every: found the text '0s', allowed: a duration"),
    (
        SOURCE + "output: {directory: s3://b/x}",
        "output.directory: found the text 's3://b/x', allowed: a local directory, with names of at most 220 bytes; copy it to a store",
    ),
    (SOURCE + "output: {scores: 'yes'}", "output.scores: found the text 'yes', allowed: true or false"),
    ("source: x.zarr", "source: found the text 'x.zarr', allowed: a mapping with keys path, array"),
    ("source: {path: ''}", "source.path: found the text '', allowed: a local path"),
    ("source: {path: []}", "source.path: found an empty list, allowed: a local path"),
    ("source: {path: ['http://[x']}", "source.path: found a list, allowed: a local path"),
    ("source: {path: [a, 3]}", "source.path: found a list, allowed: a local path"),
    ("source: {path: x, array: {a: 1}}", "source.array: found a mapping, allowed: the name of an array"),
    (
        "source: {path: x, orientation: rows}",
        "source.orientation: found the text 'rows', allowed: samples_first, featu",
    ),
    (
        "source: {path: x, samples: []}",
        "source.samples: found an empty list, allowed: a name, a list of different names",
    ),
    ("source: {path: x, samples: [a, a]}", "source.samples: found a list, allowed: a name, a list"),
    ("source: {path: x, variables: [a, 3]}", "source.variables: found a list, allowed: a name, a list"),
    ("source: {path: x, features: {a: b}}", "source.features: found a mapping, allowed: a name, a list"),
    ("source: {path: x, mask: [a]}", "source.mask: found a list, allowed: observed, survey, the path of an .npy file"),
    ("source: {path: x, array: a, variables: b}", "source: array and variables both name what is read"),
    (
        "source: {path: x, samples: t, orientation: samples_first}",
        "source: samples and features already give the orientation",
    ),
    ("source: {path: x, sample: t}", "source.sample is not a key of source: did you mean samples? (keys: path, array"),
    (KERNEL + "kernel: {gama: 1}}", "model.kernel.gama is not a key of model.kernel: did you mean gamma? (keys: name"),
    (KERNEL + "kernel: {name: rbg}}", "model.kernel.name: found the text 'rbg', allowed: linear, rbf, poly"),
    (KERNEL + "kernel: rbg}", "model.kernel: found the text 'rbg', allowed: the name of a kernel, a mapping"),
    (KERNEL + "kernel: [rbf, rbg]}", "model.kernel[1]: found the text 'rbg', allowed: the name of a kernel"),
    (SOURCE + "model: {threshold: 0.1}", "model.threshold is not a key of model: did you mean model.n_components.thr"),
    (KERNEL + "kernel: [rbf, {weight: 0}]}", "model.kernel[1].weight: found 0, allowed: a number above 0"),
    (KERNEL + "kernel: [rbf, 3]}", "model.kernel[1]: found 3, allowed: the name of a kernel"),
    (KERNEL + "kernel: []}", "model.kernel: found an empty list, allowed: the name of a kernel"),
    (KERNEL + "kernel: {name: linear, gamma: 1}}", "model.kernel: kernel linear has no gamma (keys: name, weight)"),
    (KERNEL + "kernel: {gamma: 1, sigma: 2}}", "model.kernel: gamma and sigma both set the width"),
    (KERNEL + "sampling: [1, 1]}", "model.sampling: found a list, allowed: auto, uniform"),
    (KERNEL + "solver: auto}", "model.solver is not a key of model of kind kernel_pca: it belongs to kind pca"),
]


@pytest.mark.parametrize(("text", "expected"), BROKEN, ids=[repr(text[-40:]) for text, _ in BROKEN])
def test_a_broken_file_is_refused_with_the_key_and_what_is_allowed(text, expected):
    assert refusal(text).startswith(expected)


UNREADABLE = [
    ("a: !!python/object/apply:os.system [ls]", "line 1: tags (!) are not allowed"),
    ("source:\n  path: !!str x", "line 2: tags"),
    ("a: &x 1\nb: *x", "line 1: anchors (&) and aliases (*) are not allowed"),
    ("a: &a [*a]", "line 1: anchors"),
    ("source:\n  path: x\n  array: y\n  path: z", "line 4: source.path is given twice, first on line 2"),
    ("seed: 1\nseed: 1", "line 2: seed is given twice, first on line 1"),
    ("model: {solver: auto, solver: auto}", "line 1: model.solver is given twice"),
    ("<<: {a: 1}\n" + SOURCE, "'<<' is not a key of the file"),
    ("? [a]\n: b", "line 1: a key is a list or mapping: keys are text"),
    ("source: {1: x}", "line 1: a key in source is '1': keys are text"),
    ("true: x", "line 1: a key is 'true': keys are text"),
    ("[" * 4000, "line 1: nested deeper than 20 levels"),
    ("- " * 4000, "line 1: nested deeper than 20 levels"),
    ("{a: " * 4000, "line 1: nested deeper than 20 levels"),
    ("a: [" + "1," * 20_000 + "]", "line 1: more than 10000 values"),
    ("a" * (256 * 1024 + 1), "larger than the 256 KiB"),
    ("é" * (200 * 1024), "larger than the 256 KiB"),
    ("a: 1\n---\nb: 2", "line 2: not YAML: expected a single document"),
    ("a: 1\nb: [1", "line 2: not YAML: while parsing a flow sequence"),
    ("a: 1\n\tb: 1", "line 2: not YAML: while scanning"),
    ("a: 1\nb: \x07", r"line 2: the control character '\x07' is not allowed"),
    ("a: 1\nb: \x00", r"line 2: the control character '\x00' is not allowed"),
    ("a: \ud800", r"line 1: the control character '\ud800' is not allowed"),
    ('a: "\\x1b[31m"', "line 1: a holds a control character"),
    ('a: "\\ud800"', "line 1: a holds a control character"),
    ('a: "\\U00110000"', "line 1: not YAML: an escape or directive cannot be read"),
    ("%YAML 1." + "9" * 9000 + "\n---\na: 1", "line 1: not YAML: an escape or directive"),
    ("a: " + "9" * 9000, "line 1: a does not fit in 64 bits"),
    ('"a\\nb": 1\n' + SOURCE, r"'a\nb' is not a key of the file"),
]


@pytest.mark.parametrize(("text", "expected"), UNREADABLE, ids=[repr(text[:30]) for text, _ in UNREADABLE])
def test_yaml_beyond_plain_data_is_refused_with_the_line(text, expected):
    assert refusal(text).startswith(expected)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-6", 1e-6),
        ("1.0e-6", 1e-6),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-2.", -2.0),
        ("+3", 3),
        ("0", 0),
        ("-7", -7),
        ("True", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("", None),
        *(
            (text, text)
            for text in ("on", "off", "yes", "No", "y", "010", "0o17", "0x1F", "1_000", "12:30:45", "1:2.5")
        ),
        *(
            (text, text)
            for text in ("2024-01-01", "2024-01-01T00:00:00Z", "=", "<<", "1e", "e5", ".", "-", "1.2.3", "2GiB")
        ),
    ],
)
def test_scalars_are_those_of_yaml_1_2(written, value):
    given = "'-'" if written == "-" else written
    config = parse(f"{OPTIONS}{{\n    a: {given}\n  }}}}")
    read = config.cluster.options["a"]
    assert read == value
    assert type(read) is type(value)
    assert parse(config.to_yaml()).cluster.options["a"] == value


def test_quoted_numbers_are_text_and_stay_so():
    texts = ["1e-6", "010", "10", "true", "null", "~", "", " a ", "a: b", "#", "2024-01-01", ".inf", "1e5", "é\u2028"]
    config = parse(f"{OPTIONS}{json.dumps({'a': texts})}}}")
    assert config.cluster.options["a"] == texts
    assert parse(config.to_yaml()).cluster.options["a"] == texts


def test_defaults():
    config = parse(SOURCE)
    assert (config.version, config.name, config.seed) == (1, "x", 0)
    assert config.source.model_dump() == {
        "path": "data/x.zarr",
        "array": None,
        "variables": None,
        "samples": None,
        "features": None,
        "columns": None,
        "id_column": None,
        "mask": None,
        "labels": None,
        "orientation": None,
        "missing_chunks": "error",
        "missing_value": None,
        "verify": None,
        "follow_symlinks": False,
        "decode": "auto",
        "layer": None,
        "mask_var": None,
        "quantization": None,
        "normalize": None,
        "genes": "same",
        "lags": None,
        "where": None,
        "storage_options": {},
        "branch": None,
        "tag": None,
        "snapshot": None,
    }
    assert config.model == parse(SOURCE + "model: {kind: pca}").model
    assert config.resources.memory_bytes is None
    assert config.cluster.kind == "threads"
    assert config.checkpoint.every_seconds == 30.0
    assert config.output.directory == Path("runs/x")
    assert (config.output.scores, config.output.report, config.output.overwrite) == (True, True, False)
    assert config.output.anndata is False


def test_copies_to_object_stores_are_no_longer_made():
    said = refusal(SOURCE + "output: {publish: 's3://bucket/runs/x', storage_options: {secret: abcdef}}")
    assert said.startswith("output: publish was removed: leave it out, and copy the directory")
    assert "abcdef" not in said
    earlier = parse(SOURCE + "output: {publish: null, storage_options: {}}")  # of a run of an earlier version
    assert earlier.output == parse(SOURCE).output
    with pytest.raises(AttributeError, match=r"publish.: it was removed; copy the directory"):
        sp.publish("runs/x", "s3://bucket/x")


def test_values_are_kept_and_resolved():
    config = parse(
        SOURCE + "model: {n_components: {threshold: 1e-3}, tolerance: 1e-6}\nresources: {memory: 1.5 GiB, threads: 2}\n"
        "checkpoint: {every: 5min}\ncluster: {kind: local, n_workers: 2}\noutput: {directory: ~/out}"
    )
    assert config.model.n_components == {"threshold": 1e-3}
    assert config.model.tolerance == 1e-6
    assert config.resources.memory_bytes == 3 * 2**29
    assert config.checkpoint.every_seconds == 300.0
    assert config.cluster.threads_per_worker == "auto"
    assert config.output.directory == Path.home() / "out"
    assert parse("source: {path: ~/x.zarr}").source.path == str(Path.home() / "x.zarr")
    assert parse(SOURCE + "resources: {memory: 67108864}").resources.memory_bytes == 2**26
    assert parse(SOURCE + "checkpoint: {every: null}").checkpoint.every_seconds is None
    assert parse(SOURCE + "model: {n_components: 0.95}").model.n_components == 0.95
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 3


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("data/sea surface.zarr", "sea-surface"),
        ("builtin:photo-patches", "photo-patches"),
        ("s3://bucket/a/b.zarr/", "b"),
        (f"https://host/x.zarr?token={SECRET}", "x"),
        ("..", "run"),
        ("/", "run"),
        ("s3://", "s3"),
        ("${HOME}", "home"),
        ("${HOME}/b.zarr", "b"),
    ],
)
def test_the_name_follows_from_the_path(path, name):
    config = parse(f"source: {{path: '{path}'}}")
    assert config.name == name
    assert config.output.directory == Path("runs") / name


def test_kernels_come_as_a_name_a_mapping_or_a_list():
    assert [kernel.name for kernel in parse(KERNEL + "kernel: poly}").model.kernel] == ["poly"]
    assert parse(KERNEL + "kernel: {name: rbf, gamma: 1}}").model.kernel[0].gamma == 1.0
    total = parse(KERNEL + "kernel: [{gamma: 1e-4}, {name: poly, degree: 5, weight: 2}], sampling: [3, 1]}").model
    assert [kernel.weight for kernel in total.kernel] == [1.0, 2.0]
    assert total.sampling == (3, 1)


def test_several_problems_are_counted_and_the_first_in_the_file_is_told():
    text = SOURCE + "model: {ddof: -1, sovler: auto}\nsed: 3\npreprocess: {center: 3}"
    assert refusal(text).startswith("model.ddof: found -1, allowed: a whole number of at least 0 (and 3 more)")
    assert refusal("sorce: {path: x}").endswith("(and 1 more)")
    assert "more)" not in refusal(SOURCE + 'name: "a/b"')


class TestEnvironment:
    """``${NAME}``: taken, kept as written, never shown."""

    TEXT = (
        "source: {path: 's3://${STREAMPCA_BUCKET}/x.zarr', "
        "storage_options: {profile: abc, secret: '${STREAMPCA_SECRET}', deep: {list: ['${STREAMPCA_SECRET}']}}}\n"
        "name: run-${STREAMPCA_BUCKET}\n"
    )

    @pytest.fixture(autouse=True)
    def _variables(self, monkeypatch):
        monkeypatch.setenv("STREAMPCA_BUCKET", "a-bucket")
        monkeypatch.setenv("STREAMPCA_SECRET", SECRET)
        monkeypatch.delenv("STREAMPCA_NONE", raising=False)

    def test_values_are_taken(self):
        config = parse(self.TEXT)
        assert config.source.path == "s3://a-bucket/x.zarr"
        assert config.source.storage_options == {"profile": "abc", "secret": SECRET, "deep": {"list": [SECRET]}}
        assert config.output.directory == Path("runs/run-a-bucket")

    def test_values_are_never_shown(self):
        config = parse(self.TEXT)
        options = config.source.storage_options
        for kept in (config, pickle.loads(pickle.dumps(config)), copy.deepcopy(config), config.model_copy()):
            assert kept == config
            shown = [
                repr(kept),
                str(kept),
                f"{kept}",
                kept.to_yaml(),
                repr(kept.source),
                repr(kept.source.storage_options),
            ]
            assert not [text for text in shown if SECRET in text or "a-bucket" in text]
        assert "abc" not in f"{options} {options!r} {options['deep']}"
        assert options["secret"] == SECRET
        assert config.source.path_as_written == "s3://${STREAMPCA_BUCKET}/x.zarr"
        assert "directory: runs/run-${STREAMPCA_BUCKET}" in config.to_yaml()

    def test_errors_tell_neither_variables_nor_options(self):
        assert "hidden" not in refusal(SOURCE.replace("}", ", storage_options: hidden}"))
        assert "7391" not in refusal("source: {path: x, storage_options: 7391}")
        assert refusal("source: {path: x, orientation: '${STREAMPCA_SECRET}'}").startswith(
            "source.orientation: found the text '${STREAMPCA_SECRET}', allowed: "
        )
        refusal("source: {path: x}\nname: '${STREAMPCA_SECRET}/x'")
        refusal("source: {path: x}\nresources: {memory: '${STREAMPCA_SECRET}'}")
        refusal(self.TEXT + "seed: x")

    def test_a_missing_variable_is_named_with_its_key(self):
        expected = "the environment variable STREAMPCA_NONE is not set"
        assert refusal("source: {path: '${STREAMPCA_NONE}/x'}") == f"source.path: {expected}"
        assert (
            refusal("source: {path: x, storage_options: {a: ['${STREAMPCA_NONE}']}}")
            == f"source.storage_options.a[0]: {expected}"
        )

    @pytest.mark.parametrize("text", ["${", "${}", "${1A}", "${A:-b}", "${A", "a${B-C}d"])
    def test_what_looks_like_a_reference_must_be_one(self, text):
        assert refusal(f"source: {{path: '{text}'}}").startswith("source.path: a ${ that opens no reference")

    def test_a_value_is_not_resolved_again(self, monkeypatch):
        monkeypatch.setenv("STREAMPCA_BUCKET", "${STREAMPCA_SECRET}")
        assert parse("source: {path: '${STREAMPCA_BUCKET}'}").source.path == "${STREAMPCA_SECRET}"

    def test_round_trip_keeps_references(self):
        config = parse(self.TEXT)
        again = parse(config.to_yaml())
        assert again == config
        assert again.to_yaml() == config.to_yaml()


class TestOverrides:
    """``--set key.sub=value``."""

    def test_values_follow_the_same_rules(self):
        config = parse(
            SOURCE,
            "model.n_components={threshold: 1e-3}",
            "preprocess.scale=true",
            "name=on",
            "source.array=010",
            "source.path=s3://b/y.zarr",
            "resources.memory=",
            "seed=1",
            "seed=2",
        )
        assert config.model.n_components == {"threshold": 1e-3}
        assert config.preprocess.scale is True
        assert (config.name, config.source.array, config.source.path) == ("on", "010", "s3://b/y.zarr")
        assert config.resources.memory is None
        assert config.seed == 2

    def test_they_come_before_validation(self):
        assert parse("seed: x", "seed=4", "source.path=a").seed == 4
        assert parse("", "source={path: a}").source.path == "a"

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            ("model.sovler=auto", "--set model.sovler is not a key of model: did you mean solver?"),
            ("model.solver=auot", "--set model.solver: found the text 'auot', allowed: auto, covariance"),
            ("model={solver: auot}", "--set model: model.solver: found the text 'auot', allowed: auto"),
            ("modl.solver=auto", "--set modl.solver: modl is not a key of the file: did you mean model?"),
            ("x.y.z=1", "--set x.y.z: x is not a key of the file"),
            ("preprocess.center=on", "--set preprocess.center: found the text 'on', allowed: true or false"),
            ("seed=", "--set seed: found nothing (null), allowed: a whole number"),
            ("seed", "--set seed: write --set key.sub=value"),
            ("=3", "--set '': write --set key.sub=value"),
            ("a..b=3", "--set 'a..b': write --set key.sub=value"),
            ("a\nb=3", r"--set 'a\nb' is not a key of the file"),
            ("a." * 30 + "b=3", "--set a.a."),
            ("source.path.x=1", "--set source.path.x: source.path is the text 'data/x.zarr', which has no keys"),
            ("name=[1", "--set name: line 1: not YAML"),
            ("name=!!str x", "--set name: line 1: tags"),
            ("model={solver: auto, solver: auto}", "--set model: line 1: solver is given twice"),
            ("source.path=${STREAMPCA_NONE}", "--set source.path: the environment variable STREAMPCA_NONE is not set"),
            (f"source.storage_options={SECRET}", "--set source.storage_options: found text that is not shown"),
            ("source.storage_options.a.b=${STREAMPCA_NONE}", "--set source.storage_options.a.b: the environment"),
        ],
    )
    def test_errors_name_the_override(self, override, expected):
        assert refusal(SOURCE, override).startswith(expected)


class TestFiles:
    """Reading, and refusing to read."""

    @pytest.fixture
    def message(self, capsys):
        return lambda path: Command(capsys)("check", path).refused(2).removeprefix("streampca: error: ").rstrip()

    def test_what_is_no_readable_file_is_refused(self, tmp_path, message):
        assert message(tmp_path / "none.yaml").startswith(f"{tmp_path}/none.yaml: No such file")
        assert "directory" in message(tmp_path)
        assert message(tmp_path / "a\nb").startswith("'")

    def test_what_is_no_utf8_is_refused_with_the_line(self, tmp_path, message):
        path = tmp_path / "c.yaml"
        path.write_bytes(b"seed: 1\nname: \xff\n")
        assert message(path) == f"{path}: line 2: not UTF-8 text: save the file as UTF-8"
        path.write_bytes(SOURCE.encode("utf-16"))
        assert "line 1: not UTF-8" in message(path)
        path.write_bytes(b"#" * (256 * 1024 + 1))
        assert "larger than the 256 KiB" in message(path)

    def test_a_byte_order_mark_and_windows_lines_are_accepted(self, tmp_path, capsys):
        path = tmp_path / "c.yaml"
        path.write_bytes(b"\xef\xbb\xbf" + (SOURCE + "seed: 1\n").replace("\n", "\r\n").encode())
        for arguments in ([], ["--set", "seed=2"]):
            assert Command(capsys)("check", path, *arguments).status == 0

    @pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
    def test_every_configuration_shipped_is_valid_and_survives_a_round_trip(self, path):
        config = parse(path.read_text())
        assert parse(config.to_yaml()) == config
        assert config.source.path.startswith(("builtin:", "data/"))

    def test_the_template_holds_every_section_and_defaults_but_for_marked_lines(self):
        text = (CONFIGS / "zarr-store.yaml").read_text()
        marked = {line.partition(":")[0].strip() for line in text.splitlines() if "# <--" in line}
        written = yaml.safe_load(text)
        defaults = yaml.safe_load(parse("source: {path: builtin:iris}").to_yaml())
        assert list(written) == list(defaults)
        for section, entries in written.items():
            if isinstance(entries, dict):
                assert {key: value for key, value in entries.items() if key not in marked}.items() <= defaults[
                    section
                ].items()


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        SOURCE + "name: '1e-6'\nmodel: {n_components: {threshold: 1e-12}, tolerance: 1e-300}",
        SOURCE
        + "cluster: {kind: address, address: 'tls://h:1', allow_remote: true, tls: {ca_file: a, cert: b, key: c}}",
        SOURCE + "cluster: {kind: address, address: 'tcp://[::1]:8786', wait: 5s}",
        SOURCE + "cluster: {kind: slurm, options: {env: {A: '${STREAMPCA_KERNEL}'}}}",
        SOURCE + "cluster: {kind: slurm, options: {queue: '010', n: 1, x: [null, 1e-6]}}",
        KERNEL + "kernel: [{gamma: 1e-4}, {name: poly, coef0: -1}], sampling: [3, 1], n_components: 0.9}",
        KERNEL + "kernel: {name: '${STREAMPCA_KERNEL}'}}",
        KERNEL + "kernel: [{name: '${STREAMPCA_KERNEL}'}]}",
        KERNEL + "kernel: '${STREAMPCA_KERNEL}'}",
        KERNEL + "kernel: ['${STREAMPCA_KERNEL}']}",
        KERNEL + "kernel: [rbf, {name: '${STREAMPCA_KERNEL}'}]}",
        "source: {path: 'é ☃ # x', storage_options: {profile: \"a\\nb\\tc\", '': 0, 'a b': {}}}",
    ],
)
def test_round_trip(text, monkeypatch):
    monkeypatch.setenv("STREAMPCA_KERNEL", "poly")
    config = parse(text)
    again = parse(config.to_yaml())
    assert again == config
    assert again.to_yaml() == config.to_yaml()
