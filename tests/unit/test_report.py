"""The page of a run: self-contained, escaped, the same twice, and there for every shape of run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from streampca.errors import DamagedChunkError, DataError, ModelError, OutputError
from streampca.models.pca import PCAModel
from streampca.models.store import load_model, save_model
from streampca.report import projection, words, write_report
from streampca.report.run_files import read_run

MIB = 2**20
NASTY = "<script>alert('x')</script>\x1b[31m\x00\u202e\ud800 \"&$x^2$ 漢字"


def make_run(
    directory: Path,
    n: int = 300,
    d: int = 12,
    k: int = 5,
    *,
    feature_shape: list[int] | None = None,
    feature_names: list[str] | None = None,
    scale: bool = False,
    whiten: bool = False,
    samples: bool = True,
    dtype: str = "float64",
    rows: np.ndarray[Any, Any] | None = None,
) -> Path:
    """Write a run directory whose model is the oracle's: three lines of numpy."""
    rng = np.random.default_rng(7)
    if rows is None:
        rows = rng.normal(size=(n, d)) * np.linspace(3, 0.5, d) + 5
        rows = np.clip(20 * rows, 0, 255).astype(dtype) if dtype == "uint8" else rows.astype(dtype)
    n, d = rows.shape
    mean = rows.astype(np.float64).mean(axis=0)
    deviation = rows.std(axis=0, ddof=1, dtype=np.float64) if n > 1 else np.zeros(d)
    constant = np.flatnonzero(deviation == 0)
    centred = rows - mean
    if scale:
        centred = centred / np.where(deviation > 0, deviation, 1.0)
    _, singular, axes = np.linalg.svd(centred, full_matrices=k > min(n, d))
    singular = np.concatenate([singular, np.zeros(d)])[:k]
    values, total = singular**2 / max(1, n - 1), float((centred**2).sum() / max(1, n - 1))
    model = PCAModel(
        components=axes[:k],
        explained_variance=values,
        mean=mean,
        scale=np.where(deviation > 0, deviation, 1.0) if scale else None,
        total_variance=total,
        n_samples=n,
        ddof=1,
        center=True,
        whiten=whiten,
        numerical_rank=int((values > 1e-12 * max(values[0], 1e-300)).sum()),
        constant_features=constant,
    )
    directory.mkdir(parents=True, exist_ok=True)
    save_model(model, directory / "model.zarr")
    if samples:
        index = np.unique(np.linspace(0, n - 1, min(n, 2000)).astype(np.int64))
        group = zarr.open_group(str(directory / "samples.zarr"), mode="w")
        group.create_array("rows", data=rows[index])
        group.create_array("index", data=index)
    ratio = values / total if total > 0 else np.zeros(k)
    reads = {"blocks": 3, "chunks": 3, "bytes": rows.nbytes, "stored_bytes": rows.nbytes // 2, "seconds": 0.5}
    plan = {
        "solver": "covariance",
        "reason": "d is small",
        "n_samples": n,
        "n_features": d,
        "passes": 1,
        "n_blocks": 3,
        "bytes_to_read": rows.nbytes,
        "flops": 2.0 * n * d * d,
        "projected_bytes": 300 * MIB,
        "memory": {"process": 200 * MIB, "other": 5},
        "notes": ["pinned"],
    }
    manifest = {
        "run_id": "0123456789abcdef",
        "name": "a run",
        "finished": "2026-01-02T03:04:05Z",
        "versions": {"numpy": "2.4"},
        "source": {
            "path": "data/x.zarr",
            "array": None,
            "shape": [n, d],
            "dtype": dtype,
            "chunks": [100, d],
            "fingerprint": "feed",
            "feature_shape": feature_shape,
            "feature_names": feature_names,
            "missing_chunks_filled": 0,
        },
        "passes": 1,
        "reads": {"fit": reads, "scores": None},
        "memory": {"allowed_bytes": 384 * MIB, "projected_bytes": 300 * MIB, "peak_bytes": 250 * MIB},
        "seconds": {"total": 2.0, "fit": 1.0, "solve": 0.2, "scores": None},
        "certificate": {
            "kind": "exact",
            "statement": "exact: every row",
            "eigen_residual": 1e-16,
            "relative_residual": 0.1,
        },
        "result": {
            "n_components": k,
            "total_variance": total,
            "explained_variance_ratio": ratio.tolist(),
            "components_for": {"0.9": None},
        },
        "warnings": [],
    }
    write_json(directory / "plan.json", plan)
    write_json(directory / "manifest.json", manifest)
    return directory


def write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def change(run: Path, **changes: Any) -> Path:
    """Change entries of the manifest; ``source__path`` is ``manifest["source"]["path"]``."""
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    for key, value in changes.items():
        *path, last = key.split("__")
        inner = manifest
        for step in path:
            inner = inner[step]
        inner[last] = value
    write_json(run / "manifest.json", manifest)
    return run


class _Audit(HTMLParser):
    """Collects tags, references and text, and insists that what is opened is closed."""

    VOID = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data + " "


def audit(run: Path) -> tuple[str, _Audit]:
    """Write the page, check what holds for every page, and return it."""
    html = write_report(run).read_text(encoding="utf-8")
    page = _Audit()
    page.feed(html)
    assert page.open == []
    assert {tag for tag, _ in page.tags}.isdisjoint(
        {"script", "link", "iframe", "object", "embed", "base", "form", "image"}
    )
    assert "http:" not in html
    assert "https:" not in html
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/png;base64,", "#"))
            assert target is None or not target.startswith("#") or target[1:] in identities
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes["aria-hidden"] == "true"
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", html)
    assert "nan" not in re.sub('base64,[^"]*', "", html).lower().replace("nano", "")
    return html, page


SHAPES: list[dict[str, Any]] = [
    {"d": 12, "k": 5},
    {"d": 12, "k": 1},
    {"d": 12, "k": 2},
    {"d": 1, "k": 1},
    {"n": 1, "d": 4, "k": 1},
    {"n": 2, "d": 4, "k": 4},
    {"d": 64, "k": 40, "feature_shape": [8, 8]},
    {"d": 64, "k": 3, "feature_shape": [8, 8, 1]},
    {"n": 1500, "d": 48, "k": 20, "feature_shape": [4, 4, 3], "dtype": "uint8"},
    {"d": 48, "k": 1, "feature_shape": [4, 4, 3]},
    {"d": 12, "k": 3, "feature_shape": [5, 5]},
    {"n": 3000, "d": 6, "k": 6, "scale": True, "whiten": True},
    {"n": 40, "d": 5000, "k": 30},
    {"n": 30, "d": 200 * 150, "k": 4, "feature_shape": [200, 150], "dtype": "float32"},
    {"rows": np.full((50, 6), 3.0), "k": 3},
    {"rows": np.full((50, 12), 7, dtype=np.uint8), "k": 3, "feature_shape": [2, 2, 3], "dtype": "uint8"},
    {"rows": np.eye(30, 9) * 1e-160, "k": 4},
    {"rows": np.random.default_rng(0).normal(size=(90, 4)) * 1e12, "k": 4},
]


CASES = [(shape, True) for shape in SHAPES] + [(shape, False) for shape in SHAPES[::4]]


@pytest.mark.parametrize(("shape", "samples"), CASES)
def test_every_shape_of_run_has_a_page(tmp_path: Path, shape: dict[str, Any], samples: bool) -> None:
    run = make_run(tmp_path / "run", **shape, samples=samples)
    html, page = audit(run)
    assert ("Rebuilt from a few numbers" in page.text) == samples
    assert ("Rows on these axes" in page.text) == samples
    if samples:
        assert write_report(run).read_text(encoding="utf-8") == html
    assert sorted(entry.name for entry in run.iterdir() if "report" in entry.name) == ["report.html"]


def test_pictures_when_features_have_a_shape_and_bars_when_they_have_none(tmp_path: Path) -> None:
    _, with_pictures = audit(make_run(tmp_path / "a", d=64, k=40, feature_shape=[8, 8]))
    alts = [attributes["alt"] for tag, attributes in with_pictures.tags if tag == "img"]
    assert [alt for alt in alts if alt and alt.startswith("Component ")] == [f"Component {i + 1}" for i in range(32)]
    assert sum("original" in (alt or "") for alt in alts) == 6
    names = [f"length {i}" for i in range(12)]
    _, without = audit(make_run(tmp_path / "b", feature_names=names))
    assert not [tag for tag, _ in without.tags if tag == "img"]
    assert "length 0" in without.text
    assert "The features that weigh most" in without.text


def test_the_summary_says_what_came_out(tmp_path: Path) -> None:
    run = change(make_run(tmp_path / "run"), name="sea surface")
    _, page = audit(run)
    text = page.text.replace("\u00a0", " ")
    share = words.share(sum(json.loads((run / "manifest.json").read_text())["result"]["explained_variance_ratio"]))
    sentence = f"First 5 of 12 components carry {share} of the variance of 300 rows; ".replace("\u00a0", " ")
    assert sentence + "computed out of core in one read of the data, peak 250 MiB of 384 MiB allowed." in text
    assert "sea surface" in text


def test_names_are_escaped_and_control_characters_written_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", feature_names=[NASTY] * 12)
    change(
        run, name=NASTY, warnings=[NASTY], source__path=NASTY, source__fingerprint=NASTY, finished=NASTY, run_id=NASTY
    )
    change(run, versions={NASTY: NASTY}, certificate__statement=NASTY, source__dtype=NASTY, source__orientation=NASTY)
    plan = json.loads((run / "plan.json").read_text())
    write_json(run / "plan.json", {**plan, "reason": NASTY, "notes": [NASTY], "memory": {NASTY: 1}, "solver": NASTY})
    html, page = audit(run)
    assert "<script" not in html
    assert "\u202e" not in html
    assert "\\x1b[31m\\x00\\u202e\\ud800" in page.text


@pytest.mark.parametrize(
    "value",
    [None, "text", 3, -1, 1e400, True, [], ["x", None], {"0.9": "x"}, 10**400],
    ids=lambda value: str(value)[:12],
)
def test_fields_of_any_type_never_end_in_a_traceback(tmp_path: Path, value: Any) -> None:
    run = make_run(tmp_path / "run", d=4, feature_shape=[2, 2], k=2, n=30)
    manifest, plan = (json.loads((run / name).read_text()) for name in ("manifest.json", "plan.json"))
    write_json(run / "plan.json", dict.fromkeys(plan, value))
    write_json(run / "manifest.json", dict.fromkeys(manifest, value))
    audit(run)
    inner = {key: dict.fromkeys(entry, value) if isinstance(entry, dict) else entry for key, entry in manifest.items()}
    write_json(run / "manifest.json", inner)
    audit(run)


def test_empty_files_are_enough(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", d=4, k=2, n=30)
    write_json(run / "plan.json", {})
    write_json(run / "manifest.json", {})
    audit(run)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
def test_scores_and_reconstructions_are_those_of_the_model(tmp_path: Path, scale: bool, whiten: bool) -> None:
    rows = np.random.default_rng(1).normal(size=(80, 9)) * 4 + 1e3
    rows[:, 4] = 17.0
    run = read_run(make_run(tmp_path / "run", rows=rows, k=6, scale=scale, whiten=whiten))
    model = load_model(tmp_path / "run" / "model.zarr")
    assert run.samples is not None
    scores = projection.score(run, run.samples)
    assert scores.axes == (0, 1, 5)
    expected = model.transform(rows)
    np.testing.assert_allclose(scores.values, expected[:, [0, 1, 5]], atol=1e-9 * np.abs(expected).max())
    deviations = run.standardised(rows)
    steps = [(count, back.copy(), left) for count, back, left in projection.rebuild(run, deviations, [1, 2, 5, 6])]
    assert [count for count, _, _ in steps] == [1, 2, 5, 6]
    np.testing.assert_allclose(run.restored(steps[-1][1]), model.inverse_transform(expected), rtol=1e-9)
    errors = np.array([left for _, _, left in steps])
    assert (np.diff(errors, axis=0) <= 1e-12).all()
    missing = np.linalg.norm(deviations - steps[0][1], axis=1) / np.linalg.norm(deviations, axis=1)
    np.testing.assert_allclose(errors[0], missing)


def test_rows_with_missing_values_are_drawn(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(60, 16))
    run = make_run(tmp_path / "run", rows=rows, k=4, feature_shape=[4, 4])
    holes = rows.copy()
    holes[::3, 2], holes[5], holes[7, 1] = np.nan, np.nan, np.inf
    zarr.open_group(str(run / "samples.zarr"), mode="w").create_array("rows", data=holes)
    audit(run)


def test_a_broken_ceiling_and_equal_rows_are_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=np.ones((20, 3)), k=2)
    _, page = audit(change(run, memory__peak_bytes=400 * MIB, source__missing_chunks_filled=2))
    text = page.text.replace("\u00a0", " ")
    assert "more than the 384 MiB allowed" in text
    assert "there is no variance to explain" in text
    assert "2 chunks missing" in text


@pytest.mark.parametrize("name", ["plan.json", "manifest.json", "model.zarr"])
def test_a_run_without_its_files_is_refused(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path / "run")
    (run / name).rename(run / "gone")
    with pytest.raises(DataError, match=re.escape(name)):
        write_report(run)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "{", "\xff\x00"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str) -> None:
    run = make_run(tmp_path / "run")
    (run / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"manifest\.json"):
        write_report(run)


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    chunk = run / "model.zarr" / "components" / "c" / "0" / "0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    with pytest.raises(DamagedChunkError, match="components"):
        write_report(run)
    chunk.unlink()
    with pytest.raises(ModelError, match="lacks chunks"):
        write_report(run)


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "run", d=3, k=2, n=20)
    before = write_report(run).read_bytes()

    def full(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"report\.html cannot be written"):
        write_report(run)
    assert (run / "report.html").read_bytes() == before
    assert not list(run.glob("report.html.*"))


def test_importing_the_report_imports_nothing_heavy() -> None:
    heavy = ["matplotlib", "zarr", "jinja2", "PIL", "dask"]
    code = f"import sys, streampca.report; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
