"""Normalisation row by row: the steps of the option `normalize`, whose keys are stated in `streampca.counts`, and tables after them.

A new key has a class here, mostly an `ElementwiseCounts`, and an entry there. Values are float64 between the steps; zeros stay zeros,
but for keys that are `dense`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
import xxhash
from scipy.sparse import issparse
from scipy.sparse.linalg import norm as sparse_norm

from streampca.counts import NORMALIZE, CountKey, keys_in_words
from streampca.errors import DataError, NotAvailableError, NotFiniteError, ParameterError
from streampca.sources.arrays import DenseRows
from streampca.sources.base import Source
from streampca.sources.steps import Cast, ChosenFeatures, Elementwise, FittedStep, Step, SteppedSource, slabs
from streampca.suggestions import did_you_mean
from streampca.system.workspace import borrow
from streampca.typing import Array, BoolArray, DType, FloatArray, JsonValue

_THETA = 100.0
_Table = TypeVar("_Table", bound=SteppedSource)


class FittedCounts(FittedStep):
    """A step of a key whose figures are given with its value, or read; `named` are those of them that are numbers of the features."""

    digest = b""  # the mark of the table has all keys of `normalize`
    named: ClassVar[tuple[str, ...]] = ()

    def __init__(self, value: Any = True):
        self.asked = value
        if isinstance(value, Mapping):
            self.figures = {key: np.asarray(each) if key in self.named else each for key, each in value.items()}

    @property
    def plain(self) -> JsonValue:
        """Return plain data that make the same step, with the figures as far as they are known."""
        if self.figures is None:
            return self.asked  # type: ignore[no-any-return]
        return {key: each.tolist() if key in self.named else each for key, each in self.figures.items()}

    def require_features(self, n_features: int) -> None:
        """Raise `DataError` if the figures are those of another number of features."""
        for name in self.named if self.figures is not None else ():
            found = np.shape(self.figures.get(name))
            if found != (n_features,):
                raise DataError(
                    f"normalize: {name} of the fit has {found} features: expected the {n_features} of the table; give cells with the genes "
                    "of the fit, in their order"
                )


class ScaledCounts(FittedCounts):
    """Rows multiplied so that they add up to a total; rows that add up to zero are as they were.

    Sums are those of all features, also of those that a later step leaves out. The total is given, or is the median of the sums above 0,
    as in ``scanpy.pp.normalize_total``.
    """

    statistic = "row totals"

    def __init__(self, value: float | str):
        self.asked = value
        self.figures = None if isinstance(value, str) else value

    @property
    def total(self) -> float:
        """Return the sum of the rows after the step."""
        return float(self.known)

    @property
    def plain(self) -> JsonValue:
        """Return the total as far as it is known."""
        return self.asked if self.figures is None else self.total

    def figures_of(self, found: Any) -> float:
        """Return the median of the sums above 0; `DataError` if no row has counts."""
        sums = found.values.ravel()
        if not (sums > 0).any():
            raise DataError("normalize: target_sum='median': no row has counts: expected some above 0")
        return float(np.median(sums[sums > 0]))

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the scaled rows to `out`."""
        np.multiply(values, self._factors(np.einsum("ij->i", values))[:, None], out=out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return the scaled rows."""
        counts = np.diff(indptr)
        stored = counts[counts > 0]
        if not len(stored):
            return data, indices, indptr
        totals = np.add.reduceat(data, np.cumsum(stored) - stored)
        return data * np.repeat(self._factors(totals), stored), indices, indptr

    def _factors(self, totals: FloatArray) -> FloatArray:
        return self.total / np.where(totals == 0, self.total, totals)


class InverseFrequencies(FittedCounts):
    """Each feature times n over the sum of its counts (0 where it has none), the inverse document frequency of peaks.

    Between ``target_sum`` = s and ``log1p`` that is log(1 + s · TF · IDF) with TF = x / (sum of the row), as Signac's ``RunTFIDF``
    with method 1 (Stuart et al. 2021, Nature Methods 18:1333) and ``muon.atac.pp.tfidf`` with log_tfidf.
    """

    statistic = "moments"
    named = ("idf",)

    def fitted_to(self, rows: SteppedSource) -> Source:
        """Return the counts, before they were scaled."""
        return rows.before(1)

    def figures_of(self, found: Any) -> dict[str, FloatArray]:
        """Return 1 / mean of each feature."""
        mean = found.mean
        return {"idf": np.divide(1.0, mean, out=np.zeros_like(mean), where=mean > 0)}

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the weighted rows to `out`."""
        np.multiply(values, self.known["idf"], out=out)

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return the weighted rows."""
        return data * self.known["idf"][indices], indices, indptr


class PearsonResiduals(FittedCounts):
    """Analytic Pearson residuals (x − μ) / √(μ + μ² / θ) with μ = (sum of the row) · (share of the feature in all counts), clipped.

    Sums are those of the features that are used, as in ``scanpy.experimental.pp.normalize_pearson_residuals_pca``; features without
    counts are 0. θ = 100, and residuals are clipped at ±√n for the n rows of the fit (Lause, Berens & Kobak 2021, Genome Biology
    22:258, eqs. 2 to 4).
    """

    statistic = "moments"
    named = ("share",)

    def figures_of(self, found: Any) -> dict[str, Any]:
        """Return the share of each feature in all counts, θ, and the number at which residuals are clipped."""
        mean = found.mean
        share = mean / max(float(mean.sum()), np.finfo(float).tiny)
        return {"theta": _THETA, "clip": math.sqrt(found.n_samples), "share": share}

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of the expected counts of some rows."""
        return 2 * 8 * n_features * min(n_rows, 1 + 2**18 // (8 * n_features))

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the residuals to `out`."""
        theta, clip, share = (self.known[name] for name in ("theta", "clip", "share"))
        for rows in slabs(values):
            counts, residuals = values[rows], out[rows]
            expected = borrow("expected counts", counts.shape, np.float64)
            np.multiply(counts.sum(axis=1)[:, None], share, out=expected)
            np.subtract(counts, expected, out=residuals)
            expected += expected**2 / theta
            np.sqrt(expected, out=expected)
            expected[expected == 0] = 1.0
            residuals /= expected
            np.clip(residuals, -clip, clip, out=residuals)


class ClippedScores(FittedCounts):
    """Each feature less its mean, over its standard deviation (of n − 1; 1 where it is 0), clipped at ±`max_value`.

    As ``scanpy.pp.scale(max_value=…)`` does it. Mean and deviation are those of the rows of the fit.
    """

    statistic = "moments"
    named = ("mean", "scale")

    def figures_of(self, found: Any) -> dict[str, Any]:
        """Return the number at which scores are clipped, and means and standard deviations."""
        deviation = np.sqrt(found.scatter / max(1, found.n_samples - 1))
        scale = np.where(deviation > 0, deviation, 1.0)
        return {"max_value": float(self.asked), "mean": found.mean, "scale": scale}

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the clipped scores to `out`."""
        most, mean, scale = (self.known[name] for name in ("max_value", "mean", "scale"))
        for rows in slabs(values):
            np.subtract(values[rows], mean, out=out[rows])
            out[rows] /= scale
            np.clip(out[rows], -most, most, out=out[rows])


class ElementwiseCounts(Elementwise):
    """A step that does the same with every count, where its key of `normalize` is True."""

    digest = b""  # the mark of the table has all keys of `normalize`


class LogarithmOfCounts(ElementwiseCounts):
    """The logarithm of one more."""

    def of_values(self, values: Array, out: Array) -> None:
        """Write the logarithms to `out`."""
        np.log1p(values, out=out)


class UnitRows(Step):
    """Rows divided by their norm, which is computed in float64; rows of zeros are as they were.

    Missing values stay missing, and the norm is that of the other values of the row. Values are divided by the largest of their row
    first where their squares leave the range of float64.
    """

    digest = b""  # the mark of the table has all keys of `normalize`

    def __init__(self, norm: str):
        self.norm = norm

    def dtype(self, dtype: DType) -> DType:
        """Return the type of normalised values."""
        return normalized_dtype(dtype)

    def scratch_bytes(self, n_rows: int, n_features: int, dtype: DType) -> int:
        """Return the memory of some rows in float64, of their moduli, and of those with missing values."""
        at_once = min(n_rows, 1 + 2**18 // (n_features * normalized_dtype(dtype).itemsize))
        return (4 * 8 * n_features + 64) * at_once

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the rows of norm 1 to `out`."""
        for rows in slabs(out):
            stored = values[rows]
            exact = borrow("rows before their norm", stored.shape, np.float64)
            exact[...] = stored
            with np.errstate(over="ignore", under="ignore", invalid="ignore"):
                norms = self._norms(exact)
            unusual = np.flatnonzero(~((norms > _SMALL_NORM) & (norms < _LARGE_NORM)))
            if len(unusual):  # zero, missing values, infinity, or squares out of range
                moduli = np.abs(exact[unusual])
                moduli[np.isnan(moduli)] = 0.0
                largest = moduli.max(axis=1)
                if np.isinf(largest).any():
                    row, column = (int(index) for index in np.argwhere(np.isinf(exact))[0])
                    raise _infinite(start + rows.start + row, column)
                largest[largest == 0] = 1.0
                moduli /= largest[:, None]
                exact[unusual] /= largest[:, None]
                norms[unusual] = np.maximum(self._norms(moduli), 1.0)
            np.divide(exact, norms[:, None], out=out[rows], casting="same_kind")

    def _norms(self, values: FloatArray) -> FloatArray:
        """Return the norm of each row, ``(n_rows,)``."""
        if self.norm == "l2":
            squares: FloatArray = np.einsum("ij,ij->i", values, values)
            return np.sqrt(squares, out=squares)
        moduli = np.abs(values)
        norms: FloatArray = moduli.sum(axis=1) if self.norm == "l1" else moduli.max(axis=1)
        return norms

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return sparse rows of norm 1."""
        counts = np.diff(indptr)
        rows = np.flatnonzero(counts)
        if not len(rows):
            return data.astype(self.dtype(data.dtype)), indices, indptr
        first, counts, exact = indptr[rows], counts[rows], data.astype(np.float64)
        moduli = np.abs(exact)
        moduli[np.isnan(moduli)] = 0.0
        largest = np.maximum.reduceat(moduli, first)
        if np.isinf(largest).any():
            place = int(np.flatnonzero(np.isinf(exact))[0])
            raise _infinite(start + int(np.searchsorted(indptr, place, "right")) - 1, int(indices[place]))
        largest[largest == 0] = 1.0
        exact /= np.repeat(largest, counts)
        if self.norm != "max":
            moduli = np.abs(exact)
            moduli[np.isnan(moduli)] = 0.0
            sums = np.add.reduceat(moduli**2 if self.norm == "l2" else moduli, first)
            exact /= np.repeat(np.maximum(np.sqrt(sums) if self.norm == "l2" else sums, 1.0), counts)
        return exact.astype(self.dtype(data.dtype)), indices, indptr


_SMALL_NORM, _LARGE_NORM = 1e-140, 1e140
"""Between these, squares of values are in the range of float64 and sums of them lose nothing to its ends."""
_EXAMINED, _UNUSUAL_NORM = 1000, 2.0
_SINCE_THE_FIRST = ("target_sum", "log1p")
"""Keys that are in the fingerprint of a table whether they do anything or not."""


@dataclass(frozen=True)
class Normalization:
    """What the option `normalize` asks for: the steps of `streampca.counts`, on float64 between a check and rounding."""

    values: tuple[tuple[CountKey, Any], ...]
    """The value of every key, in the order in which they are done."""

    @classmethod
    def of(cls, given: object) -> Normalization | None:
        """Return the normalisation that a mapping describes, None where there is nothing to do.

        Raises
        ------
        ParameterError
            If `given` is no mapping, or has other keys or values outside their domain, or keys that do not go together.
        """
        known = [key.name for key in NORMALIZE]
        unknown = [key for key in given if key not in known] if isinstance(given, Mapping) else [given]
        if not isinstance(given, Mapping) or unknown:
            meant = did_you_mean(unknown[0], known)
            if given in ("l1", "l2", "max"):
                meant = f'; did you mean {{"norm": "{given}"}}?'
            raise ParameterError(
                f'normalize={str(given)[:60]!r}: expected {keys_in_words()}, such as {{"target_sum": 1e4, "log1p": True}}{meant}'
            )
        values = tuple((key, _checked(key, given.get(key.name, key.default))) for key in NORMALIZE)
        done = {key.name: key for key, value in values if value}
        for key in done.values():
            if others := [name for name in key.excludes if name in done]:
                raise ParameterError(f"normalize: {key.name} needs unchanged counts: leave out {', '.join(others)}")
        return cls(values) if done else None

    @cached_property
    def asked(self) -> tuple[Step, ...]:
        """Return the steps of the keys that do something, always the same objects, whose figures are read once."""
        return tuple(step for _, step in self._steps)

    @cached_property
    def _steps(self) -> tuple[tuple[CountKey, Step], ...]:
        """Return the keys that do something with their steps."""
        classes = ((key, globals()[key.step], value) for key, value in self.values if value)
        return tuple((key, kind() if issubclass(kind, Elementwise) else kind(value)) for key, kind, value in classes)

    @property
    def of_used(self) -> bool:
        """Return whether values depend on which features are used, also where a mask is applied between the steps."""
        return any(key.of_used for key, _ in self._steps)

    def require_of_rows(self, label: str) -> None:
        """Raise `NotAvailableError`, which calls the table `label`, if a key needs to know more than the row, as those for cells may."""
        others = [
            key.name if key.takes is not float or not isinstance(value, str) else f"{key.name}={value!r}"
            for key, value in self.values
            if value and (not key.of_rows or (key.takes is float and not isinstance(value, float)))
        ]
        if others:
            takes = ", ".join(f"{key.name} ({key.allowed_of_rows})" for key in NORMALIZE if key.of_rows)
            raise NotAvailableError(
                f"{label}: normalize: {', '.join(others)} needs figures of all rows first, and is only for AnnData: expected {takes}"
            )

    def table(self, rows: Source, mask: BoolArray | None, table: type[_Table]) -> _Table:
        """Return normalised rows of the features in `mask`, all if None, as a `table`."""
        steps, n_used = self.asked, rows.shape[1] if mask is None else int(mask.sum())
        dense_from = next((i for i, (key, _) in enumerate(self._steps) if key.dense), len(steps))
        # Steps that map values one by one need those of the used features alone, unless another one follows that needs all.
        of_all = [
            i
            for i, (key, step) in enumerate(self._steps[:dense_from])
            if not (key.of_used or isinstance(step, Elementwise))
        ]
        used_from = of_all[-1] + 1 if of_all else 0
        for i, step in enumerate(steps):
            if isinstance(step, FittedCounts):
                step.require_features(rows.shape[1] if i < used_from else n_used)
        chosen = [] if mask is None else [ChosenFeatures(mask)]
        sparse = [*self._checks(of_cells=True), *steps[:used_from], *chosen, *steps[used_from:dense_from]]
        last, mark = Cast(normalized_dtype(rows.dtype)), f"|{self}|"
        if dense_from == len(steps):
            return table(rows, [*sparse, last], mark=mark)
        used = SteppedSource(rows, sparse, mark=mark)
        return table(DenseRows(used) if used.sparse else used, [*steps[dense_from:], last])

    def _checks(self, *, of_cells: bool) -> tuple[Counts, ...]:
        """Return what checks the stored values: those of cells are counts, others where a sum of a row is asked for; a norm takes all."""
        names = {key.name for key, _ in self._steps}
        if names == {"norm"}:
            return ()
        return (Counts(exact=of_cells or "target_sum" in names),)

    def steps(self, stored: DType, *, of_cells: bool = True) -> tuple[Step, ...]:
        """Return all steps from rows of the type `stored` to normalised ones, of AnnData or of other tables."""
        last = normalized_dtype(stored)
        steps = (*self._checks(of_cells=of_cells), *self.asked)
        return steps if len(steps) == 1 and steps[0].dtype(stored) == last else (*steps, Cast(last))

    def to_dict(self) -> dict[str, JsonValue]:
        """Return plain data that `of` takes, with the figures of rows that were read: new rows are normalised with these."""
        known = {key.name: step.plain for key, step in self._steps if isinstance(step, FittedCounts)}
        return {key.name: value for key, value in self.values} | known

    def __str__(self) -> str:
        shown = []
        for key, value in self.values:
            if isinstance(value, Mapping):  # figures, by their hash
                shown.append(f"{key.name}={xxhash.xxh3_128_hexdigest(json.dumps(value).encode())}")
            elif value or key.name in _SINCE_THE_FIRST:
                shown.append(f"{key.name}={value}")
        return f"Normalization({', '.join(shown)})"


def normalized_dtype(stored: DType) -> DType:
    """Return the type of normalised values: float32 for floats of up to 32 and integers of up to 16 bits, else float64."""
    narrow = stored.itemsize <= 4 if stored.kind == "f" else stored.itemsize <= 2
    return np.dtype(np.float32 if narrow else np.float64)


def _checked(key: CountKey, value: Any) -> Any:
    """Return the value of a key; `ParameterError` if it is outside its domain."""
    named: tuple[str, ...] = getattr(globals()[key.step], "named", ())
    if isinstance(value, Mapping) and named and set(named) <= set(value):
        return value  # figures of a fit
    if key.takes is bool and isinstance(value, bool):
        return value
    if value is None and key.takes is not bool:
        return None
    if isinstance(value, str) and value in key.words:
        return value
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if key.takes is float and number and math.isfinite(value) and value > 0:
        return float(value)
    raise ParameterError(f"normalize: {key.name}={str(value)[:40]!r}: expected {key.allowed}")


class Counts(Step):
    """Values as float64; the first that `normalize` cannot take is an error that names its row and column.

    Parameters
    ----------
    exact : bool
        Whether they are counts, 0 or more and finite; otherwise they are above -1, whose logarithms are finite, or missing.
    """

    digest = b""

    def __init__(self, *, exact: bool = True):
        self.exact = exact

    def dtype(self, dtype: DType) -> DType:
        """Return float64."""
        return np.dtype(np.float64)

    def apply(self, values: Array, start: int, out: Array) -> None:
        """Write the values to `out`."""
        if self._may_be_bad(values):
            row, column = np.divmod(np.arange(values.size), values.shape[1])
            self._require(values.reshape(-1), row, column, start)
        out[...] = values

    def apply_stored(self, data: Array, indices: Array, indptr: Array, start: int) -> tuple[Array, Array, Array]:
        """Return the values."""
        if self._may_be_bad(data):
            self._require(data, np.repeat(np.arange(len(indptr) - 1), np.diff(indptr)), indices, start)
        return data.astype(np.float64), indices, indptr

    def _may_be_bad(self, values: Array) -> bool:
        """Return whether a value is not finite or too small."""
        if not values.size or values.dtype.kind in "ub":
            return False
        least = values.min()
        return not ((least >= 0 if self.exact else least > -1) and values.max() < np.inf)  # NaN is neither

    def _require(self, values: Array, row: Array, column: Array, start: int) -> None:
        """Raise an error that names the first value that is not finite or too small."""
        bad = (values < 0) | ~np.isfinite(values) if self.exact else (values <= -1) | np.isinf(values)
        if not bad.any():
            return
        first = int(np.flatnonzero(bad)[0])
        where = start + int(row[first]), int(column[first])
        if not np.isfinite(values[first]):
            raise _infinite(*where)
        found = f"value {values[first]:g} at row {where[0]}, column {where[1]}: normalize"
        if self.exact:
            raise DataError(
                f"negative {found} is for counts, which are 0 or more; leave normalize out for data "
                "that are normalised or centred already"
            )
        raise DataError(f"{found}: log1p needs values above -1: leave log1p out")


def _infinite(row: int, column: int) -> NotFiniteError:
    return NotFiniteError(
        f"Input contains NaN or infinity: first at row {row}, column {column}: expected finite numbers"
    )


class NormalizedRows(SteppedSource):
    """The rows of any table after the keys of `normalize` that need to know nothing but the row.

    Parameters
    ----------
    table : Source
        The rows before, with the features that are used.
    normalization : Normalization
        What is done to them.

    Raises
    ------
    NotAvailableError
        If a key has to know all rows first.
    """

    def __init__(self, table: Source, normalization: Normalization):
        normalization.require_of_rows(table.description)
        super().__init__(table, normalization.steps(table.dtype, of_cells=False), mark=f"|{normalization}|")
        self.table, self.normalization = table, normalization

    @property
    def normalized(self) -> bool:
        """Return True."""
        return True

    def describe(self) -> dict[str, object]:
        """Return the description of the rows before, with the type of these and what is done."""
        own = {"dtype": str(self.dtype), "fingerprint": self.fingerprint}
        asked = {key.name: value for key, value in self.normalization.values if value}
        return self.table.describe() | own | {"normalize": asked}

    def plan_notes(self) -> tuple[str, ...]:
        """Return the notes of the rows before, and what is done to each."""
        asked = ", ".join(f"{key.name}: {value}" for key, value in self.normalization.values if value)
        return (
            *super().plan_notes(),
            f"{self.description}: rows are normalised while they are read ({asked.replace('True', 'true')})",
        )


def warn_of_norms(rows: Any, described: Mapping[str, Any]) -> None:
    """Warn if the first of `rows` are not such as those of a fit whose source is `described`, which were divided by their norms.

    Arrays are taken as normalised rows, also those that `inverse_transform` gives, whose norms are a little larger or smaller.
    """
    given = described.get("normalize") or {}
    if given.get("norm") is None or given.get("max_value") is not None:
        return
    order = {"l2": 2, "l1": 1, "max": np.inf}[given["norm"]]
    norm = sparse_norm if issparse(rows) else np.linalg.norm
    with np.errstate(over="ignore"):
        found = norm(rows[:_EXAMINED].astype(np.float64), ord=order, axis=1)
    if (found > _UNUSUAL_NORM).any():  # NaN, of rows with missing values, is not
        asked = {key: True if isinstance(value, Mapping) else value for key, value in given.items() if value}
        warnings.warn(
            f"rows of the array have {given['norm']} norms of up to {np.nanmax(found):.3g}, and arrays are taken as they are, normalised as "
            f"the rows of the fit: give others as sp.open(array, normalize={asked}), or the path",
            UserWarning,
            stacklevel=4,
        )
