"""Figures of data quality measured again, and compared with those in the manifest of a run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from streampca.accumulators.quality import QualityState
from streampca.errors import ModelError
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.runs.checks import Check
from streampca.runs.further_measurements import Further
from streampca.runs.manifest import Manifest
from streampca.runs.quality import quality_figures, quality_from
from streampca.solvers.quality import QualityFound
from streampca.sources.base import Source

_RELATIVE, _ABSOLUTE = 1e-6, 1e-8
"""Differences of figures that blocks of other sizes make: sums are rounded in another order."""
_SKIPPED = ("examined",)
"""What the others follow from."""


def quality_measurements(source: Source, manifest: Manifest, model: PCAModel | KernelModel, directory: Path) -> Further:
    """Return the accumulator that examines the rows of `source` again, with the checks of its state.

    None where nothing is recorded, or the pass reads residuals.

    Raises
    ------
    ModelError
        If the record of what was examined is damaged.
    """
    recorded = manifest.get("quality")
    if recorded is None or (isinstance(model, PCAModel) and model.removal is not None):
        return []
    try:
        quality = quality_from(recorded["examined"], source)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"manifest.json: quality.examined is damaged ({type(error).__name__}: {error})") from error

    def checked(state: QualityState) -> list[Check]:
        scores = directory / "scores.zarr"
        written = scores if (scores / "scores").is_dir() else None
        measured = quality_figures(QualityFound(quality, state), source, model, written)
        return [_check(name, recorded.get(name), again) for name, again in measured.items() if name not in _SKIPPED]

    return [(quality, checked)]


def _check(name: str, recorded: object, measured: object) -> Check:
    """Return the check of one group of figures; the first that differs is shown."""
    label = f"quality {name.replace('_', ' ')}"
    if isinstance(recorded, dict) and isinstance(measured, dict) and "compared" in measured:
        before, now = recorded.get("compared"), measured["compared"]
        if before != now:
            return Check(label, before, now, note="blocks are other ones, which hold other units: not compared")
    differing = next(_differences(recorded, measured, ""), None)
    if differing is None:
        return Check(label, holds=True, note="all figures")
    where, before, now = differing
    return Check(label, _shown(before), _shown(now), holds=False, note=where.lstrip(".") or "is not what was measured")


def _differences(recorded: object, measured: object, where: str) -> Iterator[tuple[str, object, object]]:
    """Yield name, recorded and measured value of every figure that differs by more than rounding."""
    if isinstance(recorded, dict) and isinstance(measured, dict) and recorded.keys() == measured.keys():
        for key, value in recorded.items():
            yield from _differences(value, measured[key], f"{where}.{key}")
    elif isinstance(recorded, list) and isinstance(measured, list) and len(recorded) == len(measured):
        for index, (one, other) in enumerate(zip(recorded, measured, strict=True)):
            yield from _differences(one, other, f"{where}[{index}]")
    elif isinstance(recorded, int | float) and isinstance(measured, float) and not isinstance(recorded, bool):
        if not math.isclose(recorded, measured, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE):
            yield where, recorded, measured
    elif recorded != measured:
        yield where, recorded, measured


def _shown(value: object) -> object:
    return value if isinstance(value, int | float | str) or value is None else "another list"
