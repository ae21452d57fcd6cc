"""Common parts of all forms of AnnData: names of cells and features, the mask in ``var``, and the options that apply."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streampca.errors import DataError, ParameterError
from streampca.labels import Dimension, Labels, SampleColumns, Variable
from streampca.sources.alignment import of_features
from streampca.sources.base import Source
from streampca.sources.formats import ReadOptions
from streampca.sources.normalization import Normalization
from streampca.sources.steps import ChosenFeatures, SteppedSource
from streampca.suggestions import nearest
from streampca.typing import Array, BoolArray

MOST_NAMES = 2**20
"""Cells of which names are read; more would take hundreds of megabytes."""
RAW = "raw/X"
"""The value of the option `layer` for the matrix of ``raw``, whose features are those of ``raw.var``."""
OBSM = "obsm"
"""Where matrices are that have the cells and features of their own: ``obsm/X_pca`` is the value of `layer` for one."""


class Cells(NamedTuple):
    """What AnnData of every form consists of before options apply to it."""

    rows: Source
    """Rows of all features."""
    mask: BoolArray | None
    """Features that `mask_var` names, None where it is not given."""
    cells: Array | None
    """Names of the cells, where known."""
    features: Array | None
    """Names of the features, where known."""
    columns: SampleColumns
    """Columns of ``obs``."""


def checked(options: ReadOptions, kind: str, label: str) -> ReadOptions:
    """Return the options of a `kind` of AnnData, in which `layer` names the matrix that `array` names, such as ``obsm/X_pca``.

    Raises
    ------
    NotAvailableError
        For options that it does not take.
    DataError
        If `array` names something else than a matrix of cells.
    ParameterError
        If `verify` or `mask` names a file.
    """
    options.require_only(kind, label)
    if options.verify is not None and str(options.verify) != "manifest":
        raise ParameterError(
            f"{label}: verify={str(options.verify)[:60]!r}: expected manifest: each array of the matrix has a fingerprint of its own"
        )
    if isinstance(options.mask, str) or hasattr(options.mask, "__fspath__"):
        raise ParameterError(
            f"{label}: mask={str(options.mask)[:60]!r}: expected truth values, or mask_var, the name of a column of var"
        )
    if options.array is None:
        return options
    head, _, name = options.array.partition("/")
    if options.array not in ("X", RAW) and (head not in ("layers", OBSM) or not name):
        raise DataError(
            f"{label} has no matrix of cells {options.array[:60]!r}: expected X, layers/NAME, {RAW} or {OBSM}/NAME; without array, X is read"
        )
    layer = {"X": None, "layers": name}.get(head, options.array)
    return replace(options, array=None, layer=layer)


def require_layer(layer: str | None, layers: Iterable[str], label: str) -> None:
    """Raise `DataError` unless `layer` is None or among `layers`, of those in ``obsm`` with that before their names."""
    known = sorted(layers)
    if layer is None or layer in known:
        return
    close = nearest(layer, known)
    raise DataError(
        f"{label} has no layer {layer[:60]!r}: expected {', '.join(known[:12]) or 'none, it has no layers'}"
        + (f"; did you mean {close[0]}?" if close else "")
    )


def mask_of(values: Any, n_features: int, label: str, known: Sequence[str] = ()) -> BoolArray:
    """Return a column of ``var``, or `values` that were given, as a mask of `n_features` features.

    Raises
    ------
    DataError
        If there is none among the columns `known`, or they are not truth values, not as many, or all false.
    """
    if values is None:
        shown = ", ".join(name[:40] for name in known[:12])
        raise DataError(f"{label}: var has no such column: expected one of {shown or 'none'}")
    if str(values.dtype) == "boolean":  # nullable, of pandas
        if values.isna().any():
            raise DataError(f"{label} has missing values: expected true or false for every feature")
        values = values.to_numpy(bool)
    if values.dtype.kind != "b":
        raise DataError(f"{label} has dtype {values.dtype}: expected truth values (bool)")
    if values.shape != (n_features,):
        raise DataError(
            f"{label} has shape {values.shape}: expected one value for each of {n_features:,} features; a model with a mask takes cells "
            "with all features of its fit, in their order"
        )
    if not values.any():
        raise DataError(f"{label} is true for none of {n_features:,} features: expected some")
    return np.asarray(values, dtype=bool)


def text_of(values: Any) -> Array:
    """Return names or texts of any form as an array of text."""
    listed = np.asarray(values).tolist()
    if any(isinstance(v, bytes) for v in listed):
        listed = [v.decode("utf-8", "replace") if isinstance(v, bytes) else v for v in listed]
    return np.array(listed, dtype=str)


class CellsTable(SteppedSource):
    """Rows of AnnData after the steps that were asked for."""

    normalization: Normalization | None = None
    """How counts are normalised, with the figures that were read."""
    opened: tuple[Cells, ReadOptions]
    """What it was made of."""

    def of_genes(self, used: BoolArray, normalize: Mapping[str, Any]) -> CellsTable:
        """Return the cells with the features that are `used`, named highly variable, normalised anew; nothing is opened again."""
        parts, options = self.opened
        return table_of(
            parts._replace(mask=used),
            replace(options, mask=None, mask_var="highly_variable", normalize=normalize),
        )

    @property
    def normalized(self) -> bool:
        """Return whether a step depends on which features are used: sums of cells are those of all features."""
        return self.normalization is not None and self.normalization.of_used

    def plan_notes(self) -> tuple[str, ...]:
        """Return the notes of the rows, and that features without names are not compared."""
        axis = None if self.labels is None else self.labels.features[0]
        nameless = axis is not None and axis.name == "var_names" and axis.coordinate is None
        note = f"{self.description}: names of features are not read (var has none, or more than {MOST_NAMES:,}): their order is not compared"
        return (*super().plan_notes(), *((note,) if nameless else ()))

    def describe(self) -> dict[str, object]:
        """Return the description of the table for a manifest, with what new rows are normalised by."""
        known = None if self.normalization is None else self.normalization.to_dict()
        return super().describe() | {"normalize": known}


def table_of(parts: Cells, options: ReadOptions) -> CellsTable:
    """Return AnnData as a table of cells: its rows with the steps that the options ask for."""
    normalization = None if options.normalize is None else Normalization.of(options.normalize)
    rows, mask, cells, features, columns = parts
    is_own = (options.layer or "").startswith(f"{OBSM}/")
    axis = "column" if is_own else "var_names"
    labels = Labels(
        (Dimension("obs_names", rows.shape[0], cells),),
        (Dimension(axis, rows.shape[1], features),),
        (Variable(options.layer or "X", (axis,), (rows.shape[1],)),),
    )
    if mask is None and options.mask is not None:
        what = f"{rows.description}: mask"
        mask = mask_of(np.asarray(of_features(what, options.mask, labels)), rows.shape[1], what)
    if mask is not None:
        labels = labels.with_mask(mask)
    if normalization is None:
        chosen = [] if labels.mask is None else [ChosenFeatures(labels.mask)]
        source = CellsTable(rows, chosen, mark="|None|")
    else:
        source = normalization.table(rows, labels.mask, CellsTable)
    source.normalization, source.opened = normalization, (parts, options)
    source.details = {
        "array": options.layer or "X" if is_own or options.layer in (None, RAW) else f"layers/{options.layer}",
        "layer": options.layer,
        "mask_var": options.mask_var,
        "normalize": None,  # whose figures `describe` has
        "n_masked": rows.shape[1] - source.shape[1],
        **({} if options.genes == "same" else {"genes": options.genes}),
    }
    source.labels = labels
    source.feature_names, source.sample_columns = source.labels.column_names(), columns
    return source


def is_cells(source: Source) -> bool:
    """Return whether a table is one of AnnData."""
    return isinstance(source, SteppedSource) and "mask_var" in source.details


def require_length(found: int, expected: int, what: str, label: str) -> None:
    """Raise `DataError` unless ``obs`` or ``var`` has as many entries as the matrix has rows or columns."""
    if found != expected:
        raise DataError(f"{label}: {what} has {found:,} names and the matrix {expected:,}: expected as many")
