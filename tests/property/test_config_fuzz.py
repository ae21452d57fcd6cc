"""No text, document, mutation or override gives anything but a configuration or one helpful line."""

import copy
import json

import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streampca.config import RunConfig, load_config, parse_config
from streampca.errors import ConfigError
from streampca.yaml_loader import dump, load_strict

VALID = [
    {"source": {"path": "builtin:iris"}},
    load_strict(
        parse_config(
            "source: {path: s3://b/x.zarr, array: x, storage_options: {key: a, client: {n: [1, 2.5]}}}\n"
            "model: {n_components: {threshold: 1e-3}, tolerance: 1e-6}\nresources: {memory: 2GiB, threads: 3}\n"
            "cluster: {kind: address, address: 'tls://h:1', tls: {ca_file: a, cert: b, key: c}}",
            name="valid",
        ).to_yaml(),
        "valid",
    ),
    load_strict(
        parse_config(
            "source: {path: x}\ncluster: {kind: slurm, options: {queue: q}}\n"
            "model: {kind: kernel_pca, n_components: 0.9, kernel: [{gamma: 1e-4}, {name: poly, degree: 5, weight: 2}],"
            " sampling: [1, 5]}",
            name="valid",
        ).to_yaml(),
        "valid",
    ),
]
KEYS = sorted({key for document in VALID for key in json.dumps(document).split('"')[1::2] if key.isidentifier()})

texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["auto", "${HOME}", "${NOT_SET_ANYWHERE}", "${", "2GiB", "64MiB", "30s", "1e-6", "010", "pca", "a\nb"]
    ),
)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from([0, 1, -1, 0.5, 2**63, 2**64]), texts
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(KEYS), texts), inner, max_size=4)
    ),
    max_leaves=12,
)


def assert_configuration_or_one_line(text, overrides=()):
    """Return the configuration of a text, or None when it was refused in one line that names the document."""
    try:
        config = parse_config(text, name="fuzz.yaml", overrides=overrides)
    except ConfigError as error:
        message = str(error)
        assert message.startswith("fuzz.yaml: ")
        assert message.isprintable()
        assert len(message) < 1500
        return None
    assert isinstance(config, RunConfig)
    again = parse_config(config.to_yaml(), name="again.yaml")
    assert again == config
    assert again.to_yaml() == config.to_yaml()
    return config


def places(node, path=()):
    """Yield the key path of every value."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def mutated(draw):
    """A valid document after one to three deletions, retypings, renamings and moves."""
    document = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        paths = list(places(document))
        if not paths:
            break
        *above, key = draw(st.sampled_from(paths))
        parent = document
        for part in above:
            parent = parent[part]
        match draw(st.sampled_from(["delete", "retype", "rename", "copy"])):
            case "delete":
                del parent[key]
            case "retype":
                parent[key] = draw(values)
            case "rename" if isinstance(parent, dict):
                name = draw(st.one_of(st.sampled_from(KEYS), texts, st.just(str(key)[1:]), st.just(f"{key}s")))
                parent[name] = parent.pop(key)
            case _:
                if isinstance(parent, dict):
                    parent[draw(st.sampled_from(KEYS))] = copy.deepcopy(parent[key])
    return document


def write(document):
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=300))
def test_any_text(text):
    assert_configuration_or_one_line(text)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*"[]{}:,-?&*!|>'\"%@`#~<=. \n\t\r\\", "\n  ", "source", "path", "a", "1", "---", "${A}"]))
)
def test_any_punctuation(parts):
    assert_configuration_or_one_line("".join(parts))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(data)
    message = ""
    try:
        load_config(path)
    except ConfigError as error:
        message = str(error)
    assert message.isprintable()


@settings(max_examples=300, deadline=None)
@given(values)
def test_any_document(document):
    assert_configuration_or_one_line(write(document))


@settings(max_examples=300, deadline=None)
@given(mutated())
def test_any_mutation_of_a_valid_document(document):
    assert_configuration_or_one_line(write(document))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VALID), st.data())
def test_a_line_given_twice_is_refused_with_its_line(document, data):
    lines = write(document).splitlines()
    at = data.draw(st.integers(0, len(lines) - 1))
    text = "\n".join([*lines[: at + 1], *lines[at:]])
    config = assert_configuration_or_one_line(text)
    assert config is None or lines[at].lstrip().startswith("- ")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(VALID), st.integers(0, 2000), st.text(max_size=6), st.integers(0, 6))
def test_any_edit_of_a_valid_text(document, at, inserted, deleted):
    text = write(document)
    at %= len(text)
    assert_configuration_or_one_line(text[:at] + inserted + text[at + deleted :])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(VALID),
    st.lists(
        st.one_of(
            st.text(max_size=20),
            st.builds("{}={}".format, st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(".".join), texts),
            st.builds("{}={}".format, st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(".".join), values),
        ),
        max_size=3,
    ),
)
def test_any_override(document, overrides):
    assert_configuration_or_one_line(write(document), overrides)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.text(max_size=8), scalars, max_size=5))
def test_what_is_dumped_is_loaded(document):
    # PyYAML writes this control character, which no configuration may hold, as the line break that it once was.
    assume(not any("\x85" in str(part) for item in document.items() for part in item))
    text = dump(document)
    try:
        loaded = load_strict(text, "dump.yaml")
    except ConfigError:
        return  # it holds what a configuration may not hold: control characters, integers beyond 64 bits
    assert repr(loaded) == repr(document)
