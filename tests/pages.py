"""Run directories made by hand, and what holds for every page that is drawn of one."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import zarr
from facade import NOT_DRAWN, run_command
from numpy.typing import NDArray

import streampca as sp

MIB = 2**20


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
    """Write a run directory with a model of rows, a sample of them, and a manifest that later changes may make say anything."""
    rng = np.random.default_rng(7)
    if rows is None:
        rows = rng.normal(size=(n, d)) * np.linspace(3, 0.5, d) + 5
        rows = np.clip(20 * rows, 0, 255).astype(dtype) if dtype == "uint8" else rows.astype(dtype)
    n, d = rows.shape
    model = sp.PCA(k, scale=scale, whiten=whiten, ddof=min(1, n - 1)).fit(rows)
    directory.mkdir(parents=True, exist_ok=True)
    model.save(directory / "model.zarr")
    total = float(model.total_variance_)
    if samples:
        index = np.unique(np.linspace(0, n - 1, min(n, 2000)).astype(np.int64))
        group = zarr.open_group(str(directory / "samples.zarr"), mode="w")
        group.create_array("rows", data=rows[index], config={"write_empty_chunks": True})
        group.create_array("index", data=index, config={"write_empty_chunks": True})
    ratio = model.explained_variance_ / total if total > 0 else np.zeros(k)
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
        "format": "streampca-run",
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
        "certificate": model.error_.to_dict(),
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


def certificate(k: int, **changes: Any) -> dict[str, Any]:
    """Return a certificate of `k` components, of which the last two form an unresolved cluster."""
    values = [float(10 - i) for i in range(k)]
    said = {
        "kind": "approximate",
        "statement": "approximate, from 2 passes: no eigenvalue is below its interval (proven)",
        "eigen_residual": 1e-3,
        "orthonormality": 1e-15,
        "relative_residual": 0.2,
        "relative_residual_interval": [0.19, 0.2],
        "captured_variance": 0.8,
        "component_errors": [0.01 * (i + 1) for i in range(k)],
        "numerical_rank": k,
        "trusted_above": 1e-13,
        "eigen_solver": "nystrom",
        "n_passes": 2,
        "largest_relative_width": 0.01 * k,
        "nuclear_error": 0.15,
        "sigma": 0.1,
        "confidence": 0.9999,
        "components_for": {"0.9": [2, 3], "0.95": [3, None], "0.99": [4, None]},
        "eigenvalue_intervals": [[value, value * (1 + 0.01 * (i + 1))] for i, value in enumerate(values)],
        "proven_upper_bounds": [value + 2 for value in values],
        "angle_bounds": [0.001 * (i + 1) if i < k - 2 else None for i in range(k)],
        "subspace_angle_bound": 0.5,
        "unresolved_clusters": [[k - 2, k - 1, 0.01]] if k > 1 else [[0, 0, None]],
    }
    return said | changes


def certify(run: Path, values: dict[str, Any]) -> Path:
    """Change entries of the certificate of the model of a run, as a model of an early version, whose attributes have no seal."""
    place = run / "model.zarr" / "zarr.json"
    document = json.loads(place.read_text(encoding="utf-8"))
    document["attributes"]["certificate"] |= values
    document["attributes"].pop("seal", None)
    write_json(place, document)
    return run


class _Audit(HTMLParser):
    """Collects tags, references, text and the cells of tables, and insists that what is opened is closed."""

    VOID = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.tables: dict[str, list[list[str]]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables[str(dict(attrs).get("aria-label"))] = []
        elif tag == "tr":
            list(self.tables.values())[-1].append([])
        elif tag in ("td", "th"):
            list(self.tables.values())[-1][-1].append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text += data + " "
        if {"td", "th"} & set(self.open[-3:]):
            list(self.tables.values())[-1][-1][-1] += data


def checks_of(run: Path, *overrides: str) -> dict[str, bool | None]:
    """Return which figures of a run ``streampca verify`` has measured again, and whether they hold."""
    with redirect_stdout(io.StringIO()) as output:
        status = run_command(
            "verify", run, "--quiet", "--json", *(word for each in overrides for word in ("--set", each))
        )
    told = json.loads(output.getvalue())
    assert status == (0 if told["holds"] else 5), told
    return {check["name"]: check["holds"] for check in told["checks"]}


def failed_of(run: Path, *overrides: str) -> set[str]:
    """Return the figures of a run that do not hold."""
    return {name for name, holds in checks_of(run, *overrides).items() if holds is False}


def written(run: Path) -> str:
    """Write the page of `run` and return it."""
    assert run_command("report", run) == 0
    return (run / "report.html").read_text(encoding="utf-8")


def marks_of(html: str) -> dict[str, NDArray[Any]]:
    """Return the places of what each chart of a page draws of its data, ``(n, 2)``, by its title; of the last with a title."""
    return dict(_marks(html))


def _marks(html: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the title of each chart of a page and the places of what it draws of its data, ``(n, 2)``.

    These are the corners of paths and the places of marks that are cut at the edge of the axes, as lines of a grid are, and have a colour, as those
    have not: texts, axes and legends do not count. A chart of nothing but axes and words has none.
    """
    for title, chart in re.findall(r"<h3[^>]*>([^<]*)<(?:(?!</figure>|<h3).)*?(<svg.*?</svg>)", html, re.DOTALL):
        places: list[tuple[float, float]] = []
        nodes = list(ElementTree.fromstring(chart).iter())
        places += [(float(node.get("x", 0)), float(node.get("y", 0))) for node in nodes if node.tag.endswith("image")]
        clipped = [node for node in nodes if "clip-path" in node.attrib]
        for node in (inner for outer in clipped for inner in outer.iter()):
            colours = re.findall(r"(?:fill|stroke): #([0-9a-f]{6})", node.get("style", ""))
            if any(len({colour[:2], colour[2:4], colour[4:]}) > 1 for colour in colours):
                numbers = [float(number) for number in re.findall(r"-?\d+\.?\d*", node.get("d", ""))]
                numbers = numbers or [float(node.get("x", 0)), float(node.get("y", 0))]
                places += zip(numbers[::2], numbers[1::2], strict=True)
        yield title, np.array(places).reshape(-1, 2)


def audit(run: Path) -> tuple[str, _Audit]:
    """Write the page, check what holds for every page, and return it."""
    return audited(written(run))


def audit_of_run(run: Path) -> tuple[str, _Audit]:
    """Check the page that a run has written, as `audit` does, and return it."""
    return audited((run / "report.html").read_text(encoding="utf-8"))


def audited(html: str) -> tuple[str, _Audit]:
    """Check what holds for every page, and return it and what it consists of."""
    page = _Audit()
    page.feed(html)
    assert page.open == []
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    assert not re.search("https?:", re.sub(r'xmlns(:xlink)?="http://www\.w3\.org/[^"]*"', "", html))
    assert "@import" not in html
    assert not re.search(r"url\((?!#)", html)
    identities = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(identities) == len(set(identities))
    for tag, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/png;base64,", "#"))
            assert target is None or not target.startswith("#") or target[1:] in identities
        if tag == "img":
            assert attributes["alt"]
    charts = list(_marks(html))
    assert len(charts) == html.count("<svg")
    assert NOT_DRAWN in html or [title for title, places in charts if not len(places)] == []
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", html)
    assert "nan" not in re.sub('base64,[^"]*', "", html).lower().replace("nano", "")
    return html, page
