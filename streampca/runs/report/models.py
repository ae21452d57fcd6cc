"""The page of a run of several models: what each of them carries, with links to their pages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streampca.formatting import clean
from streampca.models.certificate_sentences import carried
from streampca.models.certificates import any_certificate_of
from streampca.runs.manifest import read_json
from streampca.runs.report.parts import ReportTable
from streampca.runs.report.templates import write_page

_HEADS = ("model", "solver", "components", "variance carried", "passes of its own", "certificate")


def write_models_report(directory: Path, runs: Mapping[str, Path]) -> Path:
    """Write ``report.html`` of the run of several models in `directory`, with `runs` by name, and return its path."""
    manifest = read_json(directory, "manifest.json")
    samples, features = manifest["source"]["shape"]
    page = {
        "name": clean(manifest["name"], 120),
        "summary": f"{len(runs)} models of {samples:,} samples x {features:,} features from {manifest['passes']} reading(s).",
        "models": ReportTable("Models of the run", _HEADS, tuple(_row(name, path) for name, path in runs.items())),
        "links": {name: f"models/{name}/report.html" for name, path in runs.items() if (path / "report.html").exists()},
        "notes": [clean(note, 600) for note in manifest["notes"]],
    }
    return write_page(directory, "models.html", page)


def _row(name: str, path: Path) -> tuple[str, ...]:
    """Return the cells of the model `name`, whose run is at `path`."""
    manifest, plan = read_json(path, "manifest.json"), read_json(path, "plan.json")
    certificate = any_certificate_of(manifest["certificate"])
    return (
        name,
        str(plan["solver"]),
        str(manifest["result"]["n_components"]),
        carried(certificate),
        str(manifest["passes"]),
        clean(certificate.statement, 300),
    )
