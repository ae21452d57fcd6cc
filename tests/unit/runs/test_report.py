"""The page of a run: self-contained, escaped, the same twice, and there for every shape of run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import zarr
from pages import MIB, audit, certify, change, make_run, write_json, written
from stores import Command

NASTY = "<script>alert('x')</script>\x1b[31m\x00\u202e\ud800 \"&$x^2$ 漢字"


SHAPES: list[dict[str, Any]] = [
    {"d": 12, "k": 5},
    {"d": 12, "k": 1},
    {"d": 1, "k": 1},
    {"n": 1, "d": 4, "k": 1},
    {"n": 2, "d": 4, "k": 2},
    {"d": 64, "k": 40, "feature_shape": [8, 8]},
    {"d": 64, "k": 3, "feature_shape": [8, 8, 1]},
    {"n": 1500, "d": 48, "k": 20, "feature_shape": [4, 4, 3], "dtype": "uint8"},
    {"d": 12, "k": 3, "feature_shape": [5, 5]},
    {"n": 3000, "d": 6, "k": 6, "scale": True, "whiten": True},
    {"n": 40, "d": 5000, "k": 30},
    {"n": 20, "d": 120 * 100, "k": 2, "feature_shape": [120, 100], "dtype": "float32"},
    {"rows": np.full((50, 6), 3.0), "k": 3},
    {"rows": np.full((50, 12), 7, dtype=np.uint8), "k": 3, "feature_shape": [2, 2, 3], "dtype": "uint8"},
    {"rows": np.random.default_rng(0).normal(size=(90, 4)) * 1e12, "k": 4},
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return what the page of a run of complete rows consists of."""
    return audit(make_run(tmp_path_factory.mktemp("plain") / "run"))[1]


CASES = [(shape, True) for shape in SHAPES] + [(shape, False) for shape in SHAPES[::6]]


@pytest.mark.slow
@pytest.mark.deep(keep=4)
@pytest.mark.parametrize(("shape", "samples"), CASES)
@pytest.mark.usefixtures("charts")
def test_every_shape_of_run_has_a_page(tmp_path: Path, shape: dict[str, Any], samples: bool) -> None:
    run = make_run(tmp_path / "run", **shape, samples=samples)
    html, page = audit(run)
    assert ("Reconstruction" in page.text) == samples
    assert ("Scores of the samples" in page.text) == samples
    if shape is SHAPES[0] and samples:
        assert written(run) == html
    assert sorted(entry.name for entry in run.iterdir() if "report" in entry.name) == ["report.html"]


@pytest.mark.slow
def test_pictures_when_features_have_a_shape_and_bars_when_they_have_none(tmp_path: Path) -> None:
    _, with_pictures = audit(make_run(tmp_path / "a", d=64, k=40, feature_shape=[8, 8]))
    alts = [attributes["alt"] for tag, attributes in with_pictures.tags if tag == "img"]
    assert [alt for alt in alts if alt and alt.startswith("Component ")] == [f"Component {i + 1}" for i in range(32)]
    assert sum("original" in (alt or "") for alt in alts) == 6
    names = [f"length {i}" for i in range(12)]
    _, without = audit(make_run(tmp_path / "b", feature_names=names))
    assert not [tag for tag, _ in without.tags if tag == "img"]
    assert "length 0" in without.text
    assert "The features with the largest entries" in without.text


@pytest.mark.slow
def test_the_summary_says_what_came_out(tmp_path: Path) -> None:
    run = change(make_run(tmp_path / "run", samples=False), name="sea surface")
    _, page = audit(run)
    text = page.text.replace("\u00a0", " ")
    share = sum(json.loads((run / "manifest.json").read_text())["result"]["explained_variance_ratio"])
    sentence = f"First 5 of 12 components carry {100 * share:.1f} % of the variance of 300 samples; "
    assert sentence + "computed out of core in one pass over the data, peak 250 MiB of 384 MiB allowed." in text
    assert "sea surface" in text


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_names_are_escaped_and_control_characters_written_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", feature_names=[NASTY] * 12)
    change(
        run, name=NASTY, warnings=[NASTY], source__path=NASTY, source__fingerprint=NASTY, finished=NASTY, run_id=NASTY
    )
    certify(run, {"statement": NASTY})
    change(run, versions={NASTY: NASTY}, source__dtype=NASTY, source__orientation=NASTY)
    plan = json.loads((run / "plan.json").read_text())
    write_json(run / "plan.json", {**plan, "reason": NASTY, "notes": [NASTY], "memory": {NASTY: 1}, "solver": NASTY})
    html, page = audit(run)
    assert "<script" not in html
    assert "\u202e" not in html
    assert "\\x1b[31m\\x00\\u202e\\ud800" in page.text


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    "value",
    [None, "text", -1, 1e400, ["x", None], {"0.9": "x"}, 10**400],
    ids=lambda value: str(value)[:12],
)
@pytest.mark.usefixtures("charts")
def test_fields_of_any_type_never_end_in_a_traceback(tmp_path: Path, value: Any) -> None:
    run = make_run(tmp_path / "run", d=4, feature_shape=[2, 2], k=2, n=30)
    manifest, plan = (json.loads((run / name).read_text()) for name in ("manifest.json", "plan.json"))
    write_json(run / "plan.json", dict.fromkeys(plan, value))
    kind = {"format": manifest.pop("format")}
    write_json(run / "manifest.json", dict.fromkeys(manifest, value) | kind)
    audit(run)
    inner = {key: dict.fromkeys(entry, value) if isinstance(entry, dict) else entry for key, entry in manifest.items()}
    write_json(run / "manifest.json", inner | kind)
    audit(run)


@pytest.mark.usefixtures("charts")
def test_empty_files_are_enough(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", d=4, k=2, n=30)
    write_json(run / "plan.json", {})
    write_json(run / "manifest.json", {"format": "streampca-run"})
    audit(run)


@pytest.mark.usefixtures("charts")
def test_rows_with_missing_values_are_drawn(tmp_path: Path) -> None:
    rows = np.random.default_rng(2).normal(size=(60, 16))
    run = make_run(tmp_path / "run", rows=rows, k=4, feature_shape=[4, 4])
    holes = rows.copy()
    holes[::3, 2], holes[5], holes[7, 1] = np.nan, np.nan, np.inf
    zarr.open_group(str(run / "samples.zarr"), mode="w").create_array("rows", data=holes)
    audit(run)


@pytest.mark.slow
def test_notes_are_not_warnings(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", n=30, k=2, samples=False)
    html, _ = audit(change(run, warnings=["eigenvalues are uncertain."], notes=["2 features never vary."]))
    assert "Please note" not in html
    warnings, notes = html.index('class="warnings"'), html.index('class="warnings notes"')
    assert warnings < html.index("Eigenvalues are uncertain.") < notes < html.index("2 features never vary.")
    assert (
        "n_components=5: only 3" in audit(change(run, warnings=["n_components=5: only 3"]))[0]
    )  # a name keeps its case
    _, page = audit(change(run, warnings=[]))
    assert 'class="warnings"' not in page.text
    assert "Warning" not in page.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("missing_values", "Missing values are replaced by the means of their features."),
        (
            "rows_left_out",
            "The 300 complete samples of 300 are drawn. Samples with missing values are not.",
        ),
    ],
)
def test_what_is_drawn_of_rows_with_missing_values_is_said(tmp_path: Path, plain: Any, key: str, words: str) -> None:
    run = make_run(tmp_path / "run")
    assert words not in plain.text
    _, page = audit(certify(run, {key: 7}))
    assert words in page.text


def test_a_broken_ceiling_and_equal_rows_are_said(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rows=np.ones((20, 3)), k=2)
    _, page = audit(change(run, memory__peak_bytes=400 * MIB, source__missing_chunks_filled=2))
    text = page.text.replace("\u00a0", " ")
    assert "above the 384 MiB allowed" in text
    assert "there is no variance to explain" in text
    assert "2 chunks missing" in text


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.mark.parametrize("name", ["plan.json", "manifest.json", "model.zarr"])
def test_a_run_without_its_files_is_refused(tmp_path: Path, name: str, call: Command) -> None:
    run = make_run(tmp_path / "run")
    (run / name).rename(run / "gone")
    call("report", run).refused(5, name)
    assert not (run / "report.html").exists()


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "{", "\xff\x00"])
def test_a_damaged_manifest_is_refused(tmp_path: Path, text: str, call: Command) -> None:
    run = make_run(tmp_path / "run")
    (run / "manifest.json").write_bytes(text.encode("latin-1"))
    call("report", run).refused(5, "manifest.json")


def test_a_damaged_model_is_refused(tmp_path: Path, call: Command) -> None:
    run = make_run(tmp_path / "run")
    chunk = run / "model.zarr" / "components" / "c" / "0" / "0"
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    call("report", run).refused(5, "components")
    chunk.unlink()
    call("report", run).refused(5, "does not exist: expected every chunk")


@pytest.mark.slow
def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, call: Command) -> None:
    run = make_run(tmp_path / "run", d=3, k=2, n=20, samples=False)
    before = written(run)

    def full(_: int) -> None:
        raise OSError(5, "Input/output error")

    with patch("os.fsync", full):
        assert "report.html cannot be written" in call("report", run).err
    assert (run / "report.html").read_text(encoding="utf-8") == before
    assert not list(run.glob("report.html.*"))


def test_importing_the_report_imports_nothing_heavy() -> None:
    heavy = ["matplotlib", "zarr", "jinja2", "PIL", "dask"]
    code = f"import sys, streampca; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
