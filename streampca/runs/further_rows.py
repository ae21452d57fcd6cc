"""Rows of the source of a finished run, read for its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from streampca.errors import ConfigError, DataError, NotAvailableError
from streampca.models.persistence.models import load_saved
from streampca.runs.config import load_config
from streampca.runs.diagnostics import read_rows
from streampca.runs.from_config import source_of
from streampca.runs.manifest import read_manifest
from streampca.runs.report.run_files import FurtherRows


def further_rows(directory: Path, rows: Sequence[int]) -> FurtherRows | None:
    """Return rows of the source that the run in `directory` has read, by their numbers from 0; None for none.

    Raises
    ------
    ConfigError
        If there is no row of such a number.
    DataError
        If the source is gone, or is not the one that the run has read.
    NotAvailableError
        For kernel PCA.
    """
    if not rows:
        return None
    manifest = read_manifest(directory)
    model = load_saved(directory / "model.zarr")[0]
    if model.linear is None:
        raise NotAvailableError(
            f"{directory}: rows are rebuilt for PCA only, and this is a run of kernel PCA: give no --row"
        )
    n = int(manifest["source"]["shape"][0])
    wrong = [row for row in rows if not 0 <= row < n]
    if wrong:
        raise ConfigError(
            f"--row {wrong[0]}: expected the number of a row from 0 to {n - 1}, those of the run in {directory}"
        )
    mask = None if model.labels is None else model.labels.mask
    source = source_of(load_config(directory / "config.yaml"), mask=mask)
    if source.fingerprint != manifest["source"]["fingerprint"]:
        raise DataError(
            f"{source.description} is not what the run in {directory} has read: restore it, or run again, to draw rows of it"
        )
    with source.reading():
        values = read_rows(source, list(rows))[0]
    return FurtherRows(values, np.array(rows, dtype=np.int64))
