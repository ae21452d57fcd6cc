"""Stores and models that lie: each ends in a named error or in what it holds, within its memory, and nothing else is touched."""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from facade import inspect_path, peak_bytes
from numcodecs import Delta, Zlib
from numpy.typing import NDArray
from score import Score, again
from stores import make_values, seal_of, write_store

import streampca as sp
from streampca.errors import DataError, ParameterError, PlanError
from streampca.sources import open_source

LIMIT = 2**29
"""What a fit may take in bytes."""
_EXTRA = 2**26
_SECONDS = 10.0
_CANARIES = ("evil_canary", "antigravity", "this")
"""Modules that nothing here imports, but that documents name."""
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 64, 2**31, 2**32, 2**53, 2**62, 2**64, -(2**63), 10**400),
    *(
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
        "",
        "x",
        "NaN",
        "0",
        "/",
        "..",
        "../../x",
        "\\..\\x",
        "/etc/passwd",
    ),
    *(
        "evil_canary.Codec",
        "antigravity",
        "this",
        "os.system",
        "pickle",
        "__reduce__",
        "|O",
        "<f8",
        "<i4",
        ">f4",
        "<M8[s]",
    ),
    *("float32", "int64", "r16", "string", "bytes", "zstd", "gzip", "blosc", "crc32c", "sharding_indexed", "transpose"),
    *("\x1b[31mred", "<script>alert(1)</script>", "a" * 5000, "\ud800", "\0", [], {}, [[]], [{}], [1, 2], [10**9, 64]),
    *([0, 0], [-1, 8], [2**40, 2**40], ["a", "b"], {"name": "zstd"}, {"id": "pickle"}, {"id": "evil_canary"}),
    *([{"id": "pickle"}], [["a", "<f8"]], {"name": "evil_canary.Codec", "configuration": {}}, list(range(2000))),
)


@dataclass
class Subject:
    """Something whose documents are changed, as it was written."""

    path: Path
    """Directory."""
    documents: list[Path]
    """Its JSON files."""
    open: Callable[[], None]
    """Reads it and checks what was read; raises a named error, or nothing."""
    texts: dict[Path, bytes] = field(default_factory=dict)
    """What the documents hold."""

    def __post_init__(self) -> None:
        self.texts = {document: document.read_bytes() for document in self.documents}


def make_subjects(directory: Path) -> list[Subject]:
    """Write stores of both formats, groups and models."""
    values, described = make_values(60, 4), {"feature_names": [*"abcd"], "feature_shape": [2, 2], "units": None}
    plain: dict[str, dict[str, Any]] = {
        "v3": {"chain": "zstd+crc32c", "chunks": (20, 4)},
        "v3-plain": {"chunks": (20, 3)},
        "sharded": {"chain": "gzip", "chunks": (10, 4), "shards": (20, 4)},
        "v2": {"version": 2, "chain": "zstd", "chunks": (20, 4)},
        "v2-filters": {"version": 2, "chunks": (20, 4), "filters": [Delta(dtype="<f8")], "compressors": Zlib(1)},
    }
    subjects = []
    for name, options in plain.items():
        compressors = {"compressors": options.pop("compressors")} if "compressors" in options else {}
        path = _write(directory / name, values, attributes=described, **options, **compressors)
        subjects.append(Subject(path, _documents(path), partial(_read, path, None, values)))
    for version in (2, 3):
        path = directory / f"group-{version}"
        group = zarr.open_group(path, mode="w", zarr_format=version)
        for name in ("x", "y"):
            group.create_array(name, data=values, chunks=(20, 4), config={"write_empty_chunks": True})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            zarr.consolidate_metadata(str(path), zarr_format=version)
        subjects.append(Subject(path, _documents(path), partial(_read, path, "x", values)))
    model = sp.PCA(2, solver="covariance").fit(values)
    path = Path(model.save(directory / "model.zarr", state=True))
    subjects.append(Subject(path, _documents(path), partial(_load, path, model.components_, "components_")))
    kernel = sp.KernelPCA(2, method="nystrom", n_landmarks=10).fit(values)
    path = Path(kernel.save(directory / "kernel.zarr"))
    subjects.append(Subject(path, _documents(path), partial(_load, path, kernel.eigenvalues_, "eigenvalues_")))
    return subjects


def _write(path: Path, values: NDArray[Any], **options: Any) -> Path:
    if "compressors" not in options:
        return write_store(path, values, **options)
    options.pop("chain", None)
    array = zarr.create_array(
        str(path),
        shape=values.shape,
        dtype=values.dtype,
        zarr_format=options.pop("version"),
        config={"write_empty_chunks": True},
        **options,
    )
    array[...] = values
    return path


def _documents(path: Path) -> list[Path]:
    names = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
    return sorted(file for file in path.rglob("*") if file.name in names)


def _read(path: Path, array: str | None, written: NDArray[Any]) -> None:
    """Fit a store; what it read is what zarr reads too, or what was written."""
    source = open_source(path, array=array)
    fitted = sp.PCA(1, solver="covariance", memory=LIMIT).fit(source)
    try:
        expected = np.asarray(zarr.open_array(path if array is None else path / array, mode="r")[...], dtype=np.float64)
    except Exception:  # noqa: BLE001 zarr may be stricter: then it has to be what was written
        expected = written
    np.testing.assert_allclose(fitted.mean_, expected.mean(axis=0), rtol=1e-9, atol=1e-300)


def _load(path: Path, expected: NDArray[Any], name: str) -> None:
    """Load a model; its numbers are those that were saved, and everything can be told of it."""
    estimator = sp.load(path)
    np.testing.assert_array_equal(getattr(estimator, name), expected)
    json.dumps(inspect_path(str(path)), default=str)


def _places(node: Any) -> list[tuple[Any, Any]]:
    found = []
    for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        found.append((node, key))
        found += _places(node[key])
    return found


def mutated(text: bytes, rng: random.Random) -> bytes:
    """Return a document with one to three changes, as JSON or as bytes."""
    if rng.random() < 0.25:
        return _mutated_bytes(text, rng)
    document = json.loads(text)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _places(document)
        if not places:
            break
        node, key = rng.choice(places)
        how = rng.choice(("delete", "replace", "replace", "replace", "number", "rename", "add", "swap"))
        if how == "delete":
            del node[key]
        elif how == "replace":
            node[key] = copy.deepcopy(rng.choice(_VALUES))
        elif how == "number":
            node[key] = rng.choice((-1, 1)) * rng.getrandbits(rng.randrange(1, 70))
        elif how == "swap":
            other, place = rng.choice(places)
            node[key], other[place] = other[place], node[key]
        elif isinstance(node, dict):
            node[str(rng.choice(_VALUES))[:40]] = (
                node.pop(key) if how == "rename" else copy.deepcopy(rng.choice(_VALUES))
            )
        else:
            node.append(copy.deepcopy(rng.choice(_VALUES)))
    attributes = document.get("attributes") if isinstance(document, dict) else None
    if (
        isinstance(attributes, dict) and "seal" in attributes and rng.random() < 0.7
    ):  # whoever can change it can seal it
        with suppress(ValueError, RecursionError):
            attributes["seal"] = seal_of({name: value for name, value in attributes.items() if name != "seal"})
    try:
        return json.dumps(document).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):  # one that holds itself, by a swap
        return _mutated_bytes(text, rng)


def _mutated_bytes(text: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(text))
    how = rng.choice(("flip", "truncate", "brackets", "double", "insert", "encoding", "digits"))
    if how == "flip":
        return text[:at] + bytes([text[at] ^ 1 << rng.randrange(8)]) + text[at + 1 :]
    if how == "truncate":
        return text[:at]
    if how == "brackets":
        return text[:at] + rng.choice((b"[", b"{", b'{"a":', b"\\", b'"')) * rng.choice((1, 100, 100_000)) + text[at:]
    if how == "double":
        first = text.index(b"{") + 1
        key = rng.choice((b'"shape": [1, 1],', b'"zarr_format": 2,', b'"a": 1, "a": 2,', b'"attributes": {},'))
        return text[:first] + key + text[first:]
    if how == "insert":
        return text[:at] + rng.randbytes(rng.randrange(1, 9)) + text[at:]
    if how == "digits":
        return text.replace(b"6", b"6" * rng.choice((2, 18, 5000)), 1)
    return text.decode().encode(rng.choice(("utf-16", "utf-32", "utf-8-sig")))


class Watch:
    """Notes every file that is opened outside of some directories, and every module that is imported by a name of a store.

    There is no way to end an audit hook: it lasts as long as its process, and looks while it is `active`.
    """

    def __init__(self, *allowed: Path) -> None:
        own = (
            sys.prefix,
            sys.base_prefix,
            os.path.dirname(os.__file__),
            "/proc",
            "/sys",
            "/dev",
            str(Path(sp.__file__).parent),
        )
        self._allowed = tuple(os.path.realpath(path) for path in (*map(str, allowed), *own))
        self.active, self.found = False, []  # type: bool, list[str]
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Any) -> None:
        if not self.active:
            return
        if event == "open" and isinstance(arguments[0], str | bytes):
            place = os.path.realpath(os.fsdecode(arguments[0]))
            if not place.startswith(self._allowed):
                self.found.append(f"opened {place}")
        elif event == "import" and str(arguments[0]).split(".")[0] in _CANARIES:
            self.found.append(f"imported {arguments[0]}")


def run(count: int, seed: int) -> Score:
    """Change `count` documents, one after the other, and open what they describe."""
    score, began = Score("metadata of stores and models that lies"), time.monotonic()
    directory = Path(tempfile.mkdtemp())
    try:
        subjects = make_subjects(directory / "subjects")
        for subject in subjects:
            subject.open()  # whatever is imported late is imported now
        watch = Watch(directory)
        for number in range(seed, seed + count):
            _inject(subjects, number, watch, score)
    finally:
        shutil.rmtree(directory)
    score.seconds = time.monotonic() - began
    return score


def _inject(subjects: list[Subject], number: int, watch: Watch, score: Score) -> None:
    rng = random.Random(number)
    subject = rng.choice(subjects)
    document = rng.choice(subject.documents)
    changed = mutated(subject.texts[document], rng)
    if changed == subject.texts[document]:
        return
    score.injected += 1
    document.write_bytes(changed)
    began, before = time.monotonic(), peak_bytes()
    watch.found, watch.active = [], True
    try:
        kind, problem = _opened(subject)
    finally:
        watch.active = False
        document.write_bytes(subject.texts[document])
    now, seconds = peak_bytes(), time.monotonic() - began
    if watch.found:
        kind, problem = "wrong", "; ".join(watch.found)
    elif now > LIMIT + _EXTRA and now - before > _EXTRA // 4:
        kind, problem = "wrong", f"memory grew by {now - before >> 20} MiB to {now >> 20} MiB"
    elif seconds > _SECONDS:
        kind, problem = "hangs", f"it took {seconds:.0f} s"
    setattr(score, kind, getattr(score, kind) + 1)
    if problem:
        where = f"{subject.path.name}/{document.relative_to(subject.path)}"
        score.notes.append(f"{where}: {problem}: {again('hostile', number)}")


def _opened(subject: Subject) -> tuple[str, str]:
    """Open what was changed; return what it came to, as `Score` names it, and what was wrong with that."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            subject.open()
    except (DataError, PlanError, ParameterError) as error:
        message = str(error)
        if len(message.splitlines()) != 1 or len(message) > 2000:
            return "wrong", f"a message of {len(message.splitlines())} lines and {len(message)} letters"
        return "detected", ""
    except AssertionError as error:
        return "wrong", f"wrong numbers: {' '.join(str(error).split())[:200]}"
    except Exception as error:  # noqa: BLE001 whatever was raised is what was found
        return "tracebacks", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return "survived", ""
