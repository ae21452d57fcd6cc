"""What configurations are fuzzed with: texts, documents, mutations of valid ones, overrides, arguments; and what must come of them."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from facade import parse_config, run_command
from hypothesis import strategies as st

from streampca.errors import ConfigError

VALID: list[Any] = [
    {"source": {"path": "builtin:iris"}},
    yaml.safe_load(
        parse_config(
            "source: {path: s3://b/x.zarr, array: x, storage_options: {key: a, client: {n: [1, 2.5]}}}\n"
            "model: {n_components: {threshold: 1e-3}, tolerance: 1e-6}\nresources: {memory: 2GiB, threads: 3}\n"
            "cluster: {kind: address, address: 'tls://h:1', allow_remote: true, tls: {ca_file: a, cert: b, key: c}}",
            name="valid",
        ).to_yaml()
    ),
    yaml.safe_load(
        parse_config(
            "source: {path: x}\ncluster: {kind: slurm, options: {queue: q}}\n"
            "model: {kind: kernel_pca, n_components: 0.9, kernel: [{gamma: 1e-4}, {name: poly, degree: 5, weight: 2}],"
            " sampling: [1, 5]}",
            name="valid",
        ).to_yaml()
    ),
]
KEYS = sorted({key for document in VALID for key in json.dumps(document).split('"')[1::2] if key.isidentifier()})
_WORDS = ["auto", "${HOME}", "${NOT_SET_ANYWHERE}", "${", "2GiB", "64MiB", "30s", "1e-6", "010", "pca", "a\nb"]
_PUNCTUATION = [*"[]{}:,-?&*!|>'\"%@`#~<=. \n\t\r\\", "\n  ", "source", "path", "a", "1", "---", "${A}"]
_ARGUMENTS = [
    *("check", "plan", "inspect", "report", "verify", "transform", "merge", "run", "c.yaml", "missing.yaml", "."),
    *("--set", "--json", "--quiet", "--array", "--memory", "--out", "--help", "--version", "--", "-", "", "-x"),
    *("model.n_components=3", "seed=-1", "source.path=builtin:none", "=", "a=b=c", "2GiB", "\x1b[31m", "é"),
]

texts = st.one_of(st.text(max_size=12), st.sampled_from(_WORDS))
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
paths = st.lists(st.sampled_from(KEYS), min_size=1, max_size=3).map(".".join)


def write(document: Any) -> str:
    """Return a document as YAML."""
    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def require_configuration_or_one_line(text: str, overrides: Sequence[str] = ()) -> Any:
    """Return the configuration of a text, or None when it was refused in one line that names the document."""
    try:
        config = parse_config(text, name="fuzz.yaml", overrides=overrides)
    except ConfigError as error:
        message = str(error)
        assert message.startswith("fuzz.yaml: ")
        assert message.isprintable()
        assert len(message) < 1500
        return None
    again = parse_config(config.to_yaml(), name="again.yaml")
    assert again == config
    assert again.to_yaml() == config.to_yaml()
    return config


def places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the key path of every value."""
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


@st.composite
def mutated(draw: Any) -> Any:
    """Return a valid document after one to three deletions, retypings, renamings and moves."""
    document = copy.deepcopy(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 3))):
        found = list(places(document))
        if not found:
            break
        *above, key = draw(st.sampled_from(found))
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


def any_text(text: str) -> None:
    require_configuration_or_one_line(text)


def any_punctuation(parts: list[str]) -> None:
    require_configuration_or_one_line("".join(parts))


def any_bytes(data: bytes) -> None:
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        path = Path(name) / "bytes.yaml"
        path.write_bytes(data)
        status = run_command("check", path)
    assert status in (0, 2)
    assert err.getvalue().rstrip("\n").isprintable()


def any_document(document: Any) -> None:
    require_configuration_or_one_line(write(document))


def a_line_given_twice(document: Any, at: int) -> None:
    lines = write(document).splitlines()
    at %= len(lines)
    config = require_configuration_or_one_line("\n".join([*lines[: at + 1], *lines[at:]]))
    assert config is None or lines[at].lstrip().startswith("- ")


def any_edit(document: Any, at: int, inserted: str, deleted: int) -> None:
    text = write(document)
    at %= len(text)
    require_configuration_or_one_line(text[:at] + inserted + text[at + deleted :])


def any_override(document: Any, overrides: list[str]) -> None:
    require_configuration_or_one_line(write(document), overrides)


def any_arguments(arguments: list[str]) -> None:
    """Whatever is given to the command, it ends with a status of ours and says in one line what was wrong; nothing brings its help."""
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("c.yaml").write_text("source: {path: missing.zarr}\n")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run_command(*arguments)
        assert [path.name for path in Path(name).iterdir()] == ["c.yaml"]
    said = err.getvalue()
    assert status in (0, 2, 5, 6), (status, said)
    if status and arguments:  # without arguments it prints its help
        assert "internal error" not in said
        assert len(said.splitlines()) == 1
        assert said.rstrip("\n").isprintable()


_NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
_AT = st.integers(0, 2000)
_OVERRIDES = st.lists(
    st.one_of(st.text(max_size=20), st.builds("{}={}".format, paths, texts), st.builds("{}={}".format, paths, values)),
    max_size=3,
)
CASES: dict[str, tuple[Callable[..., None], dict[str, st.SearchStrategy[Any]]]] = {
    "any text": (any_text, {"text": st.text(max_size=300)}),
    "any punctuation": (any_punctuation, {"parts": st.lists(st.sampled_from(_PUNCTUATION))}),
    "any bytes": (any_bytes, {"data": st.binary(max_size=200)}),
    "any document": (any_document, {"document": values}),
    "any mutation of a valid document": (any_document, {"document": mutated()}),
    "a line given twice": (a_line_given_twice, {"document": st.sampled_from(VALID), "at": _AT}),
    "any edit of a valid text": (
        any_edit,
        {
            "document": st.sampled_from(VALID),
            "at": _AT,
            "inserted": st.text(max_size=6),
            "deleted": st.integers(0, 6),
        },
    ),
    "any override": (any_override, {"document": st.sampled_from(VALID), "overrides": _OVERRIDES}),
    "any arguments": (
        any_arguments,
        {"arguments": st.lists(st.one_of(st.sampled_from(_ARGUMENTS), _NAMES), max_size=5)},
    ),
}
"""What is tried, by name: a check and what it is given."""
