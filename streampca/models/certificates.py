"""Certificates: what a fit says of its own numerical errors, each figure under a documented name.

A model holds one, a model on disk and the manifest of a run hold its `to_dict`. Its sentences are in `certificate_sentences`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from streampca.formatting import lines_as_html
from streampca.models.plain import hints_of, optional_of, plain, record_of
from streampca.typing import Json, JsonValue

Interval = tuple[float, float]
_MOST_SHOWN = 6


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate(Mapping[str, JsonValue]):
    """What every fit says of its errors: attributes, and a read-only mapping of the same values as JSON has them.

    The mapping has lists where attributes are tuples, and no entry for what only some fits have (those with a default) where it is None.
    Printed, it is its `statement`.
    """

    kind: Literal["exact", "approximate", "statistical", "none"]
    """How far bounds hold: rounding only; proven and statistical ones; statistical ones; there are none."""
    statement: str
    """The same in words."""
    captured_variance: float
    """Share of the total variance (of the trace of the kernel matrix) that the components carry at least."""
    relative_residual: float
    """Share that they leave, ‖X − XVVᵀ‖²_F / ‖X‖²_F for centred rows."""
    relative_residual_interval: Interval
    """Where this share lies."""

    def __getitem__(self, name: str) -> JsonValue:
        if name not in hints_of(type(self)) or (
            (value := getattr(self, name)) is None and name in optional_of(type(self))
        ):
            raise KeyError(name)
        return plain(value)

    def __iter__(self) -> Iterator[str]:
        optional = optional_of(type(self))
        return (name for name in hints_of(type(self)) if name not in optional or getattr(self, name) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __str__(self) -> str:
        return self.statement

    def _repr_html_(self) -> str:
        return lines_as_html((name, _as_cell(value)) for name, value in self.items())

    def to_dict(self) -> Json:
        """Return the mapping as plain data for JSON, from which `of` makes the certificate."""
        return dict(self)

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Self:
        """Return the certificate with `values`, as `to_dict` gives them; entries of other names are left out.

        Raises
        ------
        ModelError
            If a value is missing, or is not of its type.
        """
        return record_of(cls, values, "its certificate is")

    def saying(self, clause: str, **changes: Any) -> Self:
        """Return the certificate with `clause` at the end of its statement, and with `changes` of its figures."""
        return replace(self, statement=f"{self.statement}; {clause}", **changes)


def _as_cell(value: JsonValue) -> str:
    """Return a figure of a certificate as text; of many, the first ones."""
    if isinstance(value, list):
        more = f", … ({len(value)})" if len(value) > _MOST_SHOWN else ""
        return ", ".join(_as_cell(each) for each in value[:_MOST_SHOWN]) + more
    return f"{value:.4g}" if isinstance(value, float) else "none" if value is None else str(value)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExactCertificate(Certificate):
    """Certificate of an exact solver of PCA: rounding is the only error."""

    kind: Literal["exact", "statistical", "none"]
    """As of every certificate, but for ``"approximate"``, which `ApproximateCertificate` has: type checkers tell the classes apart by it."""
    eigen_residual: float | None
    """Largest ‖Cv − λv‖₂ of the components relative to the first eigenvalue, beside the rounding of C, `trusted_above`; None where it
    is not bounded."""
    orthonormality: float
    """Largest entry of VᵀV − I in modulus."""
    component_errors: tuple[float | None, ...]
    """Bound of |λ̂ − λ| / λ for each component, beside rounding; 1 for one that was not found; None where there is no bound."""
    numerical_rank: int
    """How many of the eigenvalues stand above rounding."""
    trusted_above: float
    """Rounding of the accumulation, relative to the first eigenvalue; of ``qr`` the square of the relative rounding of singular values."""
    eigen_solver: str
    """How the eigenproblem was solved; of approximate solvers: how eigenpairs were recovered."""
    integer_rounding: float | None = None
    """What rounding of integers beyond 2**53 to float64 may change of an eigenvalue, relative to the first; None: there are none."""
    rows_left_out: int | None = None
    """Rows that were left out because of missing values; None unless ``missing="drop_rows"``."""
    missing_values: int | None = None
    """Number of missing values; None where they are an error or their rows are left out."""
    clipped_mass: float | None = None
    """Sum of the moduli of negative eigenvalues, which ``missing="pairwise"`` clips; None elsewhere."""
    group_means: int | None = None
    """Number of group means that were subtracted, of the model within groups of `fit_groups`; None elsewhere."""

    @property
    def converted(self) -> bool:
        """Whether eigenpairs are those of the literature's conversion, which need not lie in their intervals."""
        return self.eigen_solver == "conversion"

    def widened(self, room: float) -> Self:
        """Return the certificate with intervals of eigenvalues, where it has some, that are wider by `room` on either side."""
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class ApproximateCertificate(ExactCertificate):
    """Certificate of an approximate solver of PCA."""

    kind: Literal["approximate"]  # type: ignore[assignment]  # not among those of the base
    """Always ``"approximate"``."""
    n_passes: int
    """Readings of the data that it follows from."""
    largest_relative_width: float | None
    """Largest of `component_errors`, which `tolerance` is compared with; None without a certificate."""
    nuclear_error: float | None
    """Trace of what is left out of the matrix, as a share of the total variance; proven."""
    sigma: float | None
    """Statistical bound of the largest eigenvalue of what is left out; None where nothing was held out."""
    eigenvalue_intervals: tuple[Interval, ...] | None
    """Where each eigenvalue lies: lower ends are proven, upper ends statistical; None for ``missing="pairwise"``."""
    angle_bounds: tuple[float | None, ...]
    """Bound of the sine of the angle between each component and the exact one; None where there is none."""
    subspace_angle_bound: float | None
    """The same for the space of all components."""
    unresolved_clusters: tuple[tuple[int, int, float | None], ...]
    """First and last component (from 0) that are not told apart, and the bound of the sine of the angle of their span."""
    components_for: Mapping[str, tuple[int, int | None]]
    """Between which numbers of components the shares 0.9, 0.95 and 0.99 of the variance are reached; None: more than there are."""
    proven_upper_bounds: tuple[float, ...] | None = None
    """Upper ends of the eigenvalues that are proven; None as `eigenvalue_intervals`."""
    bounded_by: tuple[str, ...] | None = None
    """What gives the upper end of each interval: ``"trace"`` of what is left out, which is proven, ``"sigma"`` or the ``"residual"`` of
    the eigenpair, or ``"rounding"`` where half of the interval is that; None as `eigenvalue_intervals`."""
    residual_bounds: tuple[float, ...] | None = None
    """Bound of ‖Cv − λv‖₂ of each component that was found, in the units of the eigenvalues; None where there is none."""
    confidence: float | None = None
    """Probability with which all bounds of the fit that are not proven hold together, at least; None where all are."""
    components_missing: bool | None = None
    """True where the sketch gives fewer components than were asked for; None elsewhere."""

    @property
    def bounded(self) -> bool:
        """Whether there are intervals at all."""
        return self.eigenvalue_intervals is not None

    @property
    def clusters(self) -> tuple[tuple[int, int, float | None], ...]:
        """The components that are not told apart, as `unresolved_clusters`; empty for the conversion, none of which has a bound."""
        return () if self.converted else self.unresolved_clusters

    @property
    def largest_error(self) -> float:
        """The largest of `component_errors` that are known; 0 where none is."""
        return max((error for error in self.component_errors if error is not None), default=0.0)

    def widened(self, room: float) -> Self:
        """Return the certificate with wider intervals; itself where there are none."""
        if self.eigenvalue_intervals is None or self.proven_upper_bounds is None:
            return self
        return replace(
            self,
            eigenvalue_intervals=tuple((max(0.0, low - room), high + room) for low, high in self.eigenvalue_intervals),
            proven_upper_bounds=tuple(upper + room for upper in self.proven_upper_bounds),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelCertificate(Certificate):
    """Certificate of kernel PCA; eigenvalues are those of the centred kernel matrix."""

    definite: bool | None
    """Whether the kernel is positive semi-definite; None: not known."""
    trace: str
    """What of the trace of the kernel matrix is exact."""
    residual_trace: float | None
    """tr(K − K̂), a proven bound of the error of every eigenvalue; None where there is no bound."""
    sigma: float | None
    """Estimate of the largest eigenvalue of K − K̂ from above; None where there is none."""
    eigenvalue_intervals: tuple[Interval, ...] | None
    """Where each eigenvalue lies; None where there is no bound."""
    proven_intervals: tuple[Interval, ...] | None = None
    """The same from proven bounds alone (method "nystrom")."""
    residual_trace_rounding: float | None = None
    """Rounding of `residual_trace` (method "nystrom")."""
    rounding: float | None = None
    """Share of the first eigenvalue that rounding of the kernel values may take."""
    trace_of_kernel: float | None = None
    """Σ κ(x, x) before centring (method "nystrom")."""
    held_out_rows: int | None = None
    """Rows that `sigma` is estimated from (method "nystrom")."""
    landmark_rank: int | None = None
    """Numerical rank of the kernel matrix of the landmarks (method "nystrom")."""
    landmark_condition: float | None = None
    """Condition of that matrix, as far as it is used (method "nystrom")."""
    eigen_residual: float | None = None
    """Largest residual of an eigenpair relative to the first eigenvalue (method "exact")."""
    numerical_rank: int | None = None
    """How many of the eigenvalues stand above rounding (method "exact")."""
    integer_rounding: float | None = None
    """By what part of their distance from their mean rounding of integers beyond 2**53 to float64 may move rows; None: there are none."""
    eigen_solver: str | None = None
    """How the eigenproblem was solved (method "exact")."""
    components_missing: int | None = None
    """How many components fewer than asked for have a positive eigenvalue; None: none."""
    components_found: int | None = None
    """How many have one; None: all."""


AnyCertificate = ExactCertificate | ApproximateCertificate | KernelCertificate
"""The certificate of a fit."""


def certificate_of(values: Mapping[str, object]) -> ExactCertificate:
    """Return the certificate of a PCA model from its `to_dict`; `ModelError` as `Certificate.of`."""
    return (ApproximateCertificate if values.get("kind") == "approximate" else ExactCertificate).of(values)


def any_certificate_of(values: Mapping[str, object]) -> AnyCertificate:
    """Return the certificate of a model of either kind from its `to_dict`; `ModelError` as `Certificate.of`."""
    return KernelCertificate.of(values) if "trace" in values else certificate_of(values)
