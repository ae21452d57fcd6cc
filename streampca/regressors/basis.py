"""Regressors of rows: indicators of groups, Legendre polynomials of positions, standardised covariates.

Without groups there is one constant. Regressors are known before anything is read, so their scatter is, too: `Regressors` has
columns that are orthogonal to each other and, within every group, to a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.polynomial import legendre

from streampca.errors import ParameterError
from streampca.labels import Labels
from streampca.regressors.removal import Removal, RowValues
from streampca.typing import Array, FloatArray, IntArray, Json, JsonValue

_SPARSE_FROM = 32  # groups from which sparse factors take less time
_SAME = 1e-9
"""Share of the length of the longest column below which what the others leave of a column is rounding."""


@dataclass(frozen=True)
class Basis:
    """How the regressors of a row are made: fixed by the rows of the fit, the same for all rows afterwards."""

    groups: str | None = None
    """The parameter where it names a coordinate."""
    labels: Array | None = None
    """Labels of the groups, ascending; None = no groups but one constant."""
    degree: int = 0
    """Degree of the trend."""
    interval: tuple[float, float] = (0.0, 0.0)
    """Smallest and largest position of the fit."""
    by_coordinate: bool = False
    """Whether positions are those of a coordinate, and not numbers of rows."""
    centres: FloatArray | None = None
    """Mean of each covariate, ``(n_covariates,)``."""
    deviations: FloatArray | None = None
    """Standard deviation of each covariate, 1 where it never varies, ``(n_covariates,)``."""
    covariate_names: tuple[str, ...] | None = None
    """Names by which covariates of other rows are found; None = by their order."""

    @classmethod
    def of(cls, removal: Removal, rows: RowValues, labels: Labels | None, weights: FloatArray | None) -> Basis:
        """Return the basis for the rows of a fit."""
        basis = cls(groups=removal.groups if isinstance(removal.groups, str) else None)
        if rows.groups is not None:
            basis = replace(basis, labels=np.unique(rows.groups))
        if rows.positions is not None and removal.trend is not None:
            interval = float(rows.positions.min()), float(rows.positions.max())
            known = labels is not None and bool(labels.samples) and labels.samples[0].coordinate is not None
            basis = replace(basis, degree=removal.trend, interval=interval, by_coordinate=known)
        if rows.covariates is not None:
            centres = np.average(rows.covariates, axis=0, weights=weights)
            squares = np.average((rows.covariates - centres) ** 2, axis=0, weights=weights)
            rounding = 64 * np.finfo(np.float64).eps * np.abs(centres)
            deviations = np.where(np.sqrt(squares) > rounding, np.sqrt(squares), 1.0)
            basis = replace(basis, centres=centres, deviations=deviations, covariate_names=removal.covariate_names)
        return basis

    @property
    def n_groups(self) -> int:
        """Return the number of groups, 1 where there are none."""
        return 1 if self.labels is None else len(self.labels)

    @property
    def n_columns(self) -> int:
        """Return the number of regressors beside the indicators of groups."""
        return self.degree + (0 if self.centres is None else len(self.centres))

    def regressors(self, rows: RowValues) -> RowRegressors:
        """Return the regressors of `rows`; `ParameterError` for a label that the fit did not see."""
        codes = np.zeros(rows.n_rows, dtype=np.int64)
        if self.labels is not None and rows.groups is not None:
            kinds = {each.dtype.kind if each.dtype.kind in "UM" else "number" for each in (rows.groups, self.labels)}
            if len(kinds) > 1:
                raise ParameterError(
                    f"remove: groups have the type {rows.groups.dtype}: those of the fit had the type {self.labels.dtype}"
                )
            codes = np.minimum(np.searchsorted(self.labels, rows.groups), len(self.labels) - 1).astype(np.int64)
            unseen = self.labels[codes] != rows.groups
            if unseen.any():
                names = ", ".join(str(label) for label in np.unique(rows.groups[unseen])[:5])
                raise ParameterError(f"remove: the fit saw no row of the group {names}, so its mean is not known")
        columns = np.empty((rows.n_rows, self.n_columns))
        if self.degree and rows.positions is not None:
            low, high = self.interval
            scaled = (rows.positions - low) / (high - low) * 2 - 1 if high > low else np.zeros(rows.n_rows)
            columns[:, : self.degree] = legendre.legvander(scaled, self.degree)[:, 1:]
        if self.centres is not None and self.deviations is not None and rows.covariates is not None:
            if rows.covariates.shape[1] != len(self.centres):
                raise ParameterError(
                    f"remove: {rows.covariates.shape[1]} covariates for each row: the fit had {len(self.centres)}"
                )
            columns[:, self.degree :] = (rows.covariates - self.centres) / self.deviations
        return RowRegressors(codes, columns, self.n_groups)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the basis as plain data."""
        labels, kind = self.labels, None if self.labels is None else self.labels.dtype.str
        if labels is not None and labels.dtype.kind == "M":
            labels = labels.astype(np.int64)
        return {
            "groups": self.groups,
            "labels": None if labels is None else labels.tolist(),
            "label_type": kind,
            "degree": self.degree,
            "interval": list(self.interval),
            "by_coordinate": self.by_coordinate,
            "centres": None if self.centres is None else self.centres.tolist(),
            "deviations": None if self.deviations is None else self.deviations.tolist(),
            "covariate_names": None if self.covariate_names is None else list(self.covariate_names),
        }

    @classmethod
    def from_dict(cls, data: Json) -> Basis:
        """Return the basis that `to_dict` gave."""
        labels = None
        if data["labels"] is not None:
            kind = np.dtype(data["label_type"])
            labels = np.array(data["labels"], dtype=np.int64 if kind.kind == "M" else kind).astype(kind)
        low, high = data["interval"]
        numbers = {
            name: None if data[name] is None else np.array(data[name], dtype=np.float64)
            for name in ("centres", "deviations")
        }
        names = data.get("covariate_names")  # models of earlier versions have none
        if names is not None:
            names = tuple(names)
            if len(names) != len(data["centres"]) or not all(isinstance(name, str) for name in names):
                raise ValueError(f"{len(names)} names of {len(data['centres'])} covariates")
        return cls(
            data["groups"], labels, data["degree"], (low, high), data["by_coordinate"], **numbers, covariate_names=names
        )


@dataclass(frozen=True)
class RowRegressors:
    """Regressors of consecutive rows."""

    codes: IntArray
    """Index of the group of each row, ``(n_rows,)``."""
    columns: FloatArray
    """The other regressors, ``(n_rows, n_columns)``."""
    n_groups: int
    """Number of groups."""
    start: int = 0
    """Index of the first row within the source."""

    @property
    def size(self) -> int:
        """Return the number of regressors."""
        return self.n_groups + int(self.columns.shape[1])

    def slice(self, start: int, stop: int) -> RowRegressors:
        """Return a copy of the regressors of rows `start` to `stop` of the source."""
        part = slice(start - self.start, stop - self.start)
        return replace(self, codes=self.codes[part].copy(), columns=self.columns[part].copy(), start=start)

    def take(self, rows: IntArray) -> RowRegressors:
        """Return the regressors of some rows, given by their indices within the source."""
        at = rows - self.start
        return replace(self, codes=self.codes[at], columns=self.columns[at], start=0)

    def spread(self, places: IntArray, n_rows: int) -> RowRegressors:
        """Return regressors of `n_rows` rows of which these are those at `places`; those of the others mean nothing."""
        codes, columns = np.zeros(n_rows, dtype=self.codes.dtype), np.zeros((n_rows, self.columns.shape[1]))
        codes[places], columns[places] = self.codes, self.columns
        return replace(self, codes=codes, columns=columns)

    def dense(self, start: int, stop: int) -> FloatArray:
        """Return the regressors of rows `start` to `stop` of the source, ``(stop - start, size)``."""
        part = slice(start - self.start, stop - self.start)
        codes = self.codes[part]
        matrix = np.zeros((len(codes), self.size))
        matrix[np.arange(len(codes)), codes] = 1.0
        matrix[:, self.n_groups :] = self.columns[part]
        return matrix

    def fitted(self, coefficients: FloatArray, start: int, stop: int) -> FloatArray:
        """Return the regressors of rows `start` to `stop` times `coefficients`, ``(size, n_features)``."""
        part = slice(start - self.start, stop - self.start)
        values = coefficients[: self.n_groups][self.codes[part]]
        if self.columns.shape[1]:
            values += self.columns[part] @ coefficients[self.n_groups :]
        return values


@dataclass(frozen=True)
class Regressors:
    """Regressors of all rows of a fit, with columns that are orthogonal to each other and, within every group, to a constant."""

    basis: Basis
    """How regressors are made."""
    rows: RowRegressors
    """Regressors of the rows as `basis` makes them."""
    orthogonal: RowRegressors
    """The same span: indicators of groups, and columns with Σ w z zᵀ = Σ w."""
    group_weights: FloatArray
    """Sum of the weights of the rows of each group, ``(n_groups,)``."""
    group_means: FloatArray
    """Weighted mean of the columns of `rows` in each group, ``(n_groups, n_columns)``."""
    mixing: FloatArray
    """What columns minus their means in the group are multiplied by, ``(n_columns, rank)``."""
    weighted: bool
    """Whether rows have weights."""

    @classmethod
    def of(cls, basis: Basis, rows: RowRegressors, weights: FloatArray | None) -> Regressors:
        """Return the regressors of the rows of a fit with these sample weights.

        Raises
        ------
        ParameterError
            If the rows of a group all have weight 0, or there are not more rows than regressors.
        """
        n, counted = len(rows.codes), None if weights is None else weights > 0
        known = np.ones(n) if weights is None else weights
        group_weights = np.bincount(rows.codes, known, rows.n_groups).astype(np.float64)
        if not group_weights.all():
            label = "" if basis.labels is None else basis.labels[int(np.flatnonzero(group_weights == 0)[0])]
            raise ParameterError(f"remove: all rows of the group {label} have weight 0, so its mean is not known")
        p = rows.columns.shape[1]
        means = np.zeros((rows.n_groups, p))
        for i in range(p):
            means[:, i] = np.bincount(rows.codes, known * rows.columns[:, i], rows.n_groups) / group_weights
        columns = rows.columns - means[rows.codes]
        mixing = np.zeros((p, 0))
        if p:
            root = np.sqrt(known)[:, None]
            lengths = np.linalg.norm(rows.columns * root, axis=0)
            values, axes = np.linalg.svd(np.linalg.qr(columns * root, mode="r"))[1:]
            rank = int(np.count_nonzero(values > _SAME * lengths.max(initial=0.0)))
            mixing = axes[:rank].T / values[:rank] * np.sqrt(known.sum())
        orthogonal = replace(rows, columns=columns @ mixing)
        n_rows = n if counted is None else int(counted.sum())
        if n_rows <= orthogonal.size:
            raise ParameterError(
                f"remove: {orthogonal.size} means and slopes would be fitted to each feature of only {n_rows} rows: nothing would be left"
            )
        return cls(basis, rows, orthogonal, group_weights, means, mixing, weights is not None)

    @property
    def only_groups(self) -> bool:
        """Return whether they are indicators of groups alone, so many that sparse factors take less time than dense ones."""
        return self.orthogonal.columns.shape[1] == 0 and self.orthogonal.size >= _SPARSE_FROM

    @property
    def norms(self) -> FloatArray:
        """Return the weighted lengths of the orthogonal regressors, ``(size,)``."""
        n_columns = self.orthogonal.columns.shape[1]
        norms: FloatArray = np.sqrt(np.concatenate([self.group_weights, np.full(n_columns, self.group_weights.sum())]))
        return norms

    def mean_squares(self, coefficients: FloatArray) -> FloatArray:
        """Return the weighted mean squares of what is fitted with `coefficients` of a `FittedRegression`, ``(n_features,)``."""
        g = self.basis.n_groups
        effects = coefficients[:g] + self.group_means @ coefficients[g:]
        slopes = np.linalg.pinv(self.mixing) @ coefficients[g:]  # of the orthogonal columns
        shares = self.group_weights / self.group_weights.sum()
        return np.asarray(shares @ effects**2 + (slopes**2).sum(axis=0))

    def fitted_regression(self, origin: FloatArray, coefficients: FloatArray) -> FittedRegression:
        """Return the fitted part from the coefficients of the orthogonal regressors about `origin`, ``(orthogonal.size, n_features)``.

        Effects of groups are differences of coefficients: with an origin of 1e8 in both they would have half their digits.
        """
        g = self.basis.n_groups
        offset = self.group_weights / self.group_weights.sum() @ coefficients[:g]
        slopes = self.mixing @ coefficients[g:]
        effects = coefficients[:g] - offset - self.group_means @ slopes
        mean = origin + offset
        added = mean - origin
        remainder = (origin - (mean - added)) + (offset - added)  # exact: TwoSum of Knuth (1969)
        coefficients = np.concatenate([effects, slopes])
        return FittedRegression(self.basis, coefficients, mean, self.rows, self.orthogonal.size, remainder)


@dataclass(frozen=True)
class FittedRegression:
    """The part of the rows that the parameter `remove` takes out: departures from the mean, for each feature."""

    basis: Basis
    """How the regressors of a row are made."""
    coefficients: FloatArray
    """Coefficients of the regressors, ``(n_groups + n_columns, n_features)``, without the mean."""
    mean: FloatArray
    """Mean of each feature, ``(n_features,)``."""
    rows: RowRegressors | None = None
    """Regressors of the rows of the fit, where they are known."""
    rank: int | None = None
    """How many of the regressors were linearly independent in the fit; None = all."""
    mean_remainder: FloatArray | None = None
    """What rounding of `mean` to float64 left out, ``(n_features,)``: it counts for later readings of a fit where a mean is 1e10
    standard deviations. Models do not have it."""

    @property
    def n_means(self) -> int:
        """Return how many means and slopes each feature lost: the degrees of freedom that they take."""
        return len(self.coefficients) if self.rank is None else self.rank

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the basis and the rank as plain data."""
        return self.basis.to_dict() | {"rank": self.rank}

    def of_features(self, start: int, stop: int) -> FittedRegression:
        """Return what is fitted to some features."""
        part = slice(start, stop)
        remainder = None if self.mean_remainder is None else self.mean_remainder[part]
        coefficients, mean = self.coefficients[:, part], self.mean[part]
        return replace(self, coefficients=coefficients, mean=mean, rows=None, mean_remainder=remainder)

    def parameter(self) -> Json:
        """Return the parameter `remove` of the fit, with arrays up to rounding; labels of groups alone where rows are not known."""
        basis, rows = self.basis, self.rows
        given: Json = {}
        if basis.labels is not None:
            known = basis.labels if rows is None else basis.labels[rows.codes]
            given["groups"] = known if basis.groups is None else basis.groups
        if basis.degree:
            given["trend"] = basis.degree
        if basis.centres is not None and basis.deviations is not None:
            columns = np.zeros((1, len(basis.centres))) if rows is None else rows.columns[:, basis.degree :]
            given["covariates"] = columns * basis.deviations + basis.centres
        return given
