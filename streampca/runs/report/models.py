"""The page of a run of several models: what each of them carries, with links to their pages."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path

from streampca.runs.manifest import read_json
from streampca.runs.report.small_page import table, write_small_page
from streampca.runs.report.words import clean
from streampca.runs.summary import carried
from streampca.typing import Json

_HEADS = ("model", "solver", "components", "variance carried", "passes of its own", "certificate")


def write_models_report(directory: Path, runs: Mapping[str, Path]) -> Path:
    """Write ``report.html`` of the run of several models in `directory`, with `runs` by name, and return its path."""
    manifest = read_json(directory, "manifest.json")
    samples, features = manifest["source"]["shape"]
    summary = f"{len(runs)} models of {samples:,} samples x {features:,} features from {manifest['passes']} reading(s)."
    body = table("Models", _HEADS, [_row(name, path) for name, path in runs.items()])
    return write_small_page(directory, manifest, "models", summary, body)


def _row(name: str, path: Path) -> list[str]:
    """Return the cells of the model `name`, whose run is at `path`, as HTML."""
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
    return [shown, *(escape(str(cell)) for cell in cells)]


def _carried(manifest: Json) -> str:
    """Return the share of the variance, or of the trace of a kernel matrix."""
    certificate = manifest["certificate"]
    return carried(certificate) if "captured_variance" in certificate else "–"
