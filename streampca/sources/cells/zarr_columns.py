"""Columns of ``obs`` in AnnData stores of zarr."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import zarr

from streampca.errors import DataError
from streampca.labels import SampleColumns
from streampca.sources.cells.columns import column_of, names_in
from streampca.sources.options import ReadOptions
from streampca.sources.zarr.group import values_of
from streampca.typing import Array


class StoredObs(SampleColumns):
    """Columns of ``obs`` of an AnnData store of zarr.

    Parameters
    ----------
    group : zarr.Group
        Root of the store.
    options : ReadOptions
        How the data are opened.
    label : str
        Name of the store in messages.
    """

    def __init__(self, group: zarr.Group, options: ReadOptions, label: str):
        self._group, self._options, self._label = group, options, label

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns."""
        return names_in(self._group.get("obs"))

    def values(self, name: str) -> Array | None:
        """Return a column, None if there is none of that name; `DataError` if it is damaged, or has missing values."""
        return column_of(self._group.get("obs"), name, self._label, self._read)

    def _read(self, node: Any) -> Array:
        place = f"{self._label}/{node.path}"
        options = self._options
        if node.path.endswith("/mask"):  # of which anndata leaves out the chunks that are all false
            options = replace(options, missing_chunks="fill_labels")
        values = values_of(node, place, options)
        if values is None:
            raise DataError(f"{place} has the type {node.dtype}: expected numbers or text")
        return values
