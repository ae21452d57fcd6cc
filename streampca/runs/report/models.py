"""The page of a run of several models: what each of them carries, with links to their pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streampca.runs.manifest import read_json
from streampca.runs.report.parts import ReportTable
from streampca.runs.report.small_page import Parts, write_small_page
from streampca.runs.report.words import clean
from streampca.runs.summary import carried
from streampca.typing import Json

_HEADS = ("model", "solver", "components", "variance carried", "passes of its own", "certificate")


def write_models_report(directory: Path, runs: Mapping[str, Path]) -> Path:
    """Write ``report.html`` of the run of several models in `directory`, with `runs` by name, and return its path."""
    manifest = read_json(directory, "manifest.json")
    samples, features = manifest["source"]["shape"]
    summary = f"{len(runs)} models of {samples:,} samples x {features:,} features from {manifest['passes']} reading(s)."
    parts, table = (
        Parts(),
        ReportTable("Models of the run", _HEADS, tuple(_row(name, path) for name, path in runs.items())),
    )
    pages = {name: f"models/{name}/report.html" for name, path in runs.items() if (path / "report.html").exists()}
    body = f"""<section>
{parts.heading("Models")}
<div class="card">{parts.table(table, pages)}</div>
</section>"""
    return write_small_page(directory, manifest, "models", summary, body)


def _row(name: str, path: Path) -> tuple[str, ...]:
    """Return the cells of the model `name`, whose run is at `path`."""
    manifest, plan = read_json(path, "manifest.json"), read_json(path, "plan.json")
    cells = (
        plan["solver"],
        manifest["result"]["n_components"],
        _carried(manifest),
        manifest["passes"],
        clean(str(manifest["certificate"]["statement"]), 300),
    )
    return (name, *map(str, cells))


def _carried(manifest: Json) -> str:
    """Return the share of the variance, or of the trace of a kernel matrix."""
    certificate = manifest["certificate"]
    return carried(certificate) if "captured_variance" in certificate else "–"
