"""The page of a run of several models: what each of them carries, with links to their pages."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

from streampca.runs.manifest import read_json
from streampca.runs.report.words import clean
from streampca.runs.summary import carried
from streampca.storage.files import write_atomically
from streampca.typing import Json

_HEADS = ("model", "solver", "components", "variance carried", "passes of its own", "certificate")


def write_models_report(directory: Path, runs: Mapping[str, Path]) -> Path:
    """Write ``report.html`` of the run of several models in `directory`, with `runs` by name, and return its path."""
    manifest = read_json(directory, "manifest.json")
    rows = "\n".join(_row(name, path) for name, path in runs.items())
    style = files("streampca.runs.report").joinpath("page.css").read_text(encoding="utf-8")
    name = escape(clean(str(manifest["name"]), 120))
    heads = "".join(f'<th scope="col">{head}</th>' for head in _HEADS)
    notes = "".join(f"<li>{escape(clean(str(note), 600))}</li>" for note in manifest["notes"])
    samples, features = manifest["source"]["shape"]
    html = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{name} · models</title>
<style>
{style}
</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p>{len(runs)} models of {samples:,} samples x {features:,} features from {manifest["passes"]} reading(s).</p>
<div class="scroll" tabindex="0" role="region" aria-label="Models">
<table aria-label="Models">
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
<ul>{notes}</ul>
</main>
</body>
</html>
"""
    target = directory / "report.html"
    write_atomically(target, [html.encode("utf-8")])
    return target


def _row(name: str, path: Path) -> str:
    """Return the row of the model `name`, whose run is at `path`."""
    manifest, plan = read_json(path, "manifest.json"), read_json(path, "plan.json")
    page = f"models/{name}/report.html"
    shown = f'<a href="{escape(page)}">{escape(name)}</a>' if (path / "report.html").exists() else escape(name)
    cells = (
        plan["solver"],
        manifest["result"]["n_components"],
        _carried(manifest),
        manifest["passes"],
        clean(str(manifest["certificate"]["statement"]), 300),
    )
    return f'<tr><th scope="row">{shown}</th>{"".join(f"<td>{escape(str(cell))}</td>" for cell in cells)}</tr>'


def _carried(manifest: Json) -> str:
    """Return the share of the variance, or of the trace of a kernel matrix."""
    certificate = manifest["certificate"]
    return carried(certificate) if "captured_variance" in certificate else "–"
