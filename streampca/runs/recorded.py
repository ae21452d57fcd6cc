"""Comparison of the figures in the documents of a run with its model, its plan and the digests in its commit record."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.runs.checks import Check
from streampca.runs.manifest import read_json
from streampca.storage.figures import changed_figures
from streampca.typing import Json

_ABSENT = object()


def figures(
    directory: Path,
    record: Json,
    manifest: Mapping[str, object],
    model: PCAModel | KernelModel,
    diagnostics: Json | None = None,
) -> list[Check]:
    """Return a check for each figure of manifest and plan that differs, under its name, or one for all of them.

    Figures of the manifest are computed again from the model and the plan where they follow from them; all others, and
    those of the plan, are compared with the digests in the commit record (`streampca.storage.figures`).

    Parameters
    ----------
    directory : Path
        The run.
    record : dict
        Its commit record; runs of version 0.1 hold no digests.
    manifest : dict
        Its manifest.
    model : PCAModel or KernelModel
        Its model, whose arrays and attributes were compared with their own digests when it was loaded.
    diagnostics : dict, optional
        What it is to record of T² and Q, as the model and the stored values give it.
    """
    plan: Json = read_json(directory, "plan.json")
    differing: dict[tuple[str, str], Check] = {}
    derived = _expected(manifest, plan, model)
    derived |= {f"diagnostics.{name}": value for name, value in (diagnostics or {}).items()}
    for name, expected in derived.items():
        actual = _at(manifest, name)
        if actual is _ABSENT or actual != expected:
            stated = None if actual is _ABSENT else actual
            differing["manifest.json", name] = _different("manifest.json", name, stated, expected)
    digests = record.get("figures")
    for document, name in changed_figures(directory, digests) if isinstance(digests, dict) else ():
        if (document, name) not in differing:
            value = _at(manifest, name) if document == "manifest.json" else _at(plan, name)
            differing[document, name] = _different(document, name, None if value is _ABSENT else value, None)
    if differing:
        return [differing[key] for key in sorted(differing)]
    if not isinstance(digests, dict):
        return [
            Check("manifest", holds=True, note="its results are those of the model; there are no digests of the others")
        ]
    return [
        Check(
            "manifest", holds=True, note="its figures, and those of the plan, are those of the model and of the commit"
        )
    ]


def _different(document: str, name: str, actual: object, expected: object) -> Check:
    """Return the check of one figure; `recorded` is the value in the document, `measured` the one computed from the model."""
    label = f"{document.partition('.')[0]} {name}".strip()
    if expected is None:
        return Check(label, recorded=actual, holds=False, note="is not what was committed with the run")
    note = "is not what follows from the model"
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        worst = next(i for i, (one, other) in enumerate(zip(actual, expected, strict=True)) if one != other)
        actual, expected, note = actual[worst], expected[worst], f"entry {worst} {note}"
    return Check(label, recorded=_plain(actual), measured=_plain(expected), holds=False, note=note)


def _plain(value: object) -> object:
    return value if isinstance(value, int | float | str) or value is None else json.dumps(value)


def _expected(manifest: Mapping[str, object], plan: Json, model: PCAModel | KernelModel) -> Json:
    """Return the expected figures of the manifest by their names, as JSON data."""
    values = {f"certificate.{name}": value for name, value in model.certificate.items()}
    values |= {f"result.{name}": value for name, value in model.summary().items()}
    if (
        _at(manifest, "result.component_rules") is _ABSENT
    ):  # in runs of version 0.1; that it was removed is seen by its digest
        values.pop("result.component_rules", None)
    source = manifest.get("source")
    stated = source if isinstance(source, dict) else {}
    values |= {f"source.{name}": value for name, value in model.source.items() if name in stated and name != "path"}
    values |= {f"memory.{name}": plan[name] for name in ("allowed_bytes", "projected_bytes") if name in plan}
    if "n_passes" in model.certificate:
        values["passes"] = model.certificate["n_passes"] + (plan.get("sampling_errors") == "reading")
    elif model.certificate.get("kind") == "exact" and "passes" in plan:
        values["passes"] = plan["passes"]
    if "sketch" in plan:
        values["approximation"] = plan["sketch"] or None
    plain: Json = json.loads(json.dumps(values))
    return plain


def _at(document: Mapping[str, object], name: str) -> object:
    """Return the entry of a name such as ``"result.total_variance"``."""
    first, _, second = name.partition(".")
    value = document.get(first, _ABSENT)
    if not second:
        return value
    return value.get(second, _ABSENT) if isinstance(value, dict) else _ABSENT
