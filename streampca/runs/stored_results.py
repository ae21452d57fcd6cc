"""Scores, T² and Q of a finished run as they are stored, and their comparison with what was measured again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.runs.checks import Check, close
from streampca.runs.config import RunConfig
from streampca.runs.diagnostics import read_rows, unusual_rows_of
from streampca.runs.measuring import MeasuredState
from streampca.sources import Source
from streampca.sources.zarr.strictness import strict
from streampca.storage.directories import DIAGNOSTICS
from streampca.storage.zarr_interface import ZarrArray
from streampca.typing import Json

_ROUNDING = 1e-10
"""Allowed difference of T² and Q, which both sides compute from the stored scores in float64."""


def stored_scores(
    directory: Path, config: RunConfig, model: PCAModel | KernelModel, source: Source
) -> tuple[ZarrArray | None, Check | None]:
    """Return the stored scores of the run, or a message if there are none."""
    path = directory / "scores.zarr"
    if not config.output.scores:
        return None, Check("scores", note="none were written")
    if not (path / "scores").is_dir():
        return None, Check("scores", holds=False, note="scores.zarr is gone")
    array = strict(zarr.open_array(path / "scores", mode="r"))
    expected = (source.shape[0], model.n_components)
    if tuple(array.shape) != expected:
        return None, Check("scores", list(expected), list(array.shape), holds=False, note="shape")
    return array, None


def stored_diagnostics(directory: Path, config: RunConfig, source: Source) -> tuple[tuple[ZarrArray, ...], list[Check]]:
    """Return the stored T² and Q of the run, none where they were not asked for, or checks that fail."""
    if not config.output.diagnostics:
        return (), []
    places = {name: directory / "scores.zarr" / name for name in DIAGNOSTICS}
    gone = [name for name, place in places.items() if not place.is_dir()]
    if gone or not (directory / "scores.zarr" / "scores").is_dir():
        return (), [Check(name, holds=False, note="scores.zarr does not have it") for name in gone]
    arrays = {name: strict(zarr.open_array(place, mode="r")) for name, place in places.items()}
    expected = (source.shape[0],)
    wrong = [name for name, array in arrays.items() if tuple(array.shape) != expected]
    if wrong:
        found = [list(arrays[name].shape) for name in wrong]
        return (), [
            Check(name, list(expected), shape, holds=False, note="shape")
            for name, shape in zip(wrong, found, strict=True)
        ]
    return tuple(arrays.values()), []


def diagnostics_measured(state: MeasuredState) -> list[Check]:
    """Return the checks of T² and Q of all rows, given the stored scores, which have a check of their own."""
    notes = ("largest difference of T, relative to 1 + T", "largest difference of √Q, relative to the row")
    return [
        close(name, 0.0, float(worst), 1.0, _ROUNDING, note, difference=float(worst))
        for name, worst, note in zip(DIAGNOSTICS, state.diagnostic_errors, notes, strict=True)
    ]


def unusual_rows_checked(directory: Path, config: RunConfig, source: Source, summary: Json) -> list[Check]:
    """Compare the copies of the rows that fit least with the rows of the source, bit by bit."""
    if not config.output.report:
        return []
    stored, listed = unusual_rows_of(directory / "samples.zarr"), [row["row"] for row in summary["unusual_rows"]]
    if stored is None:
        return [Check("unusual rows", holds=False, note="samples.zarr does not have them")]
    rows, index = stored
    if index.tolist() != listed[: len(index)] or (listed and not len(index)):
        return [
            Check("unusual rows", holds=False, note="those of samples.zarr are not the rows with the largest T² and Q")
        ]
    expected = read_rows(source, index.tolist())[0]
    same = rows.shape == expected.shape and bool(np.array_equal(rows, expected, equal_nan=rows.dtype.kind == "f"))
    return [Check("unusual rows", len(rows), len(expected), holds=same, note="copies of the rows that fit least")]
