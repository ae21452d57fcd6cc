"""Certificates of the numerical errors of a fit, with a documented name for each figure.

A model holds a certificate; a model on disk and the manifest of a run hold its `to_dict`. `certificate_sentences`
writes its sentences.
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
    """Errors of a fit, as attributes and as a read-only mapping of the same values in the form of JSON.

    The mapping has lists in place of tuples, and omits figures with a default if they are None. ``print`` writes the
    `statement`.
    """

    kind: Literal["exact", "approximate", "statistical", "none"]
    """Kind of the bounds: rounding only; proven and statistical; statistical; none."""
    statement: str
    """The certificate in words."""
    captured_variance: float
    """Lower bound of the share of the total variance (or of the trace of the kernel matrix) that the components explain."""
    relative_residual: float
    """Share that they do not explain, ‖X − XVVᵀ‖²_F / ‖X‖²_F for centred rows."""
    relative_residual_interval: Interval
    """Interval that contains this share."""

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
    """As for every certificate, without ``"approximate"``, by which type checkers recognise `ApproximateCertificate`."""
    eigen_residual: float | None
    """Largest ‖Cv − λv‖₂ of the components relative to the first eigenvalue, in addition to the rounding of C, `trusted_above`; None if unbounded."""
    orthonormality: float
    """Largest entry of VᵀV − I in modulus."""
    component_errors: tuple[float | None, ...]
    """Bound of |λ̂ − λ| / λ for each component, in addition to rounding; 1 for a component that was not found; None without a bound."""
    numerical_rank: int
    """Number of eigenvalues above rounding."""
    trusted_above: float
    """Rounding of the accumulation, relative to the first eigenvalue; for ``qr``, the square of the relative rounding of singular values."""
    eigen_solver: str
    """How the eigenproblem was solved; for approximate solvers, how eigenpairs were recovered."""
    integer_rounding: float | None = None
    """Largest change of an eigenvalue by rounding integers beyond 2**53 to float64, relative to the first; None without such integers."""
    rows_left_out: int | None = None
    """Rows left out because of missing values; None unless ``missing="drop_rows"``."""
    missing_values: int | None = None
    """Number of missing values; None if they are an error or their rows are left out."""
    clipped_mass: float | None = None
    """Sum of the moduli of negative eigenvalues, which ``missing="pairwise"`` clips; otherwise None."""
    group_means: int | None = None
    """Number of group means subtracted, for the model within groups of `fit_groups`; otherwise None."""

    @property
    def converted(self) -> bool:
        """Whether eigenpairs come from the conversion of the literature, which need not lie in their intervals."""
        return self.eigen_solver == "conversion"

    def widened(self, room: float) -> Self:
        """Return the certificate with intervals of eigenvalues, if it has any, widened by `room` on either side."""
        return self


@dataclass(frozen=True, kw_only=True, eq=False)
class ApproximateCertificate(ExactCertificate):
    """Certificate of an approximate solver of PCA."""

    kind: Literal["approximate"]  # type: ignore[assignment]  # not among those of the base
    """Always ``"approximate"``."""
    n_passes: int
    """Number of passes that it is computed from."""
    largest_relative_width: float | None
    """Largest of `component_errors`, which is compared with `tolerance`; None without a certificate."""
    nuclear_error: float | None
    """Trace of the part of the matrix left out, as a share of the total variance; proven."""
    sigma: float | None
    """Statistical bound of the largest eigenvalue of the part left out; None if no columns were held out."""
    eigenvalue_intervals: tuple[Interval, ...] | None
    """Interval of each eigenvalue: lower ends are proven, upper ends statistical; None for ``missing="pairwise"``."""
    angle_bounds: tuple[float | None, ...]
    """Bound of the sine of the angle between each component and the exact one; None without a bound."""
    subspace_angle_bound: float | None
    """The same for the space of all components."""
    unresolved_clusters: tuple[tuple[int, int, float | None], ...]
    """First and last component (from 0) of each group that cannot be told apart, and the bound of the sine of the angle of its span."""
    components_for: Mapping[str, tuple[int, int | None]]
    """Smallest and largest possible number of components that reach shares 0.9, 0.95 and 0.99 of the variance; None: more than were computed."""
    proven_upper_bounds: tuple[float, ...] | None = None
    """Proven upper bounds of the eigenvalues; None as for `eigenvalue_intervals`."""
    bounded_by: tuple[str, ...] | None = None
    """Source of the upper end of each interval: the ``"trace"`` of the part left out (proven), ``"sigma"``, the ``"residual"`` of the eigenpair, or ``"rounding"`` if it makes up half of the interval; None as for `eigenvalue_intervals`."""
    residual_bounds: tuple[float, ...] | None = None
    """Bound of ‖Cv − λv‖₂ of each component that was found, in the units of the eigenvalues; None without a bound."""
    confidence: float | None = None
    """Lower bound of the probability that all unproven bounds of the fit hold together; None if all are proven."""
    components_missing: bool | None = None
    """True if the sketch gives fewer components than requested; otherwise None."""

    @property
    def bounded(self) -> bool:
        """Whether the certificate has intervals."""
        return self.eigenvalue_intervals is not None

    @property
    def clusters(self) -> tuple[tuple[int, int, float | None], ...]:
        """Components that cannot be told apart, as in `unresolved_clusters`; empty for the conversion, which has no bounds."""
        return () if self.converted else self.unresolved_clusters

    @property
    def largest_error(self) -> float:
        """The largest known value of `component_errors`; 0 if none is known."""
        return max((error for error in self.component_errors if error is not None), default=0.0)

    def widened(self, room: float) -> Self:
        """Return the certificate with wider intervals, or itself if it has none."""
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
    """Whether the kernel is positive semi-definite; None if unknown."""
    trace: str
    """Which part of the trace of the kernel matrix is exact."""
    residual_trace: float | None
    """tr(K − K̂), a proven bound of the error of every eigenvalue; None without a bound."""
    sigma: float | None
    """Upper estimate of the largest eigenvalue of K − K̂; None without an estimate."""
    eigenvalue_intervals: tuple[Interval, ...] | None
    """Interval of each eigenvalue; None without a bound."""
    proven_intervals: tuple[Interval, ...] | None = None
    """The same from proven bounds alone (method "nystrom")."""
    residual_trace_rounding: float | None = None
    """Rounding of `residual_trace` (method "nystrom")."""
    rounding: float | None = None
    """Possible rounding error of the kernel values, as a share of the first eigenvalue."""
    trace_of_kernel: float | None = None
    """Σ κ(x, x) before centring (method "nystrom")."""
    held_out_rows: int | None = None
    """Rows that `sigma` is estimated from (method "nystrom")."""
    landmark_rank: int | None = None
    """Numerical rank of the kernel matrix of the landmarks (method "nystrom")."""
    landmark_condition: float | None = None
    """Condition number of the used part of that matrix (method "nystrom")."""
    eigen_residual: float | None = None
    """Largest residual of an eigenpair relative to the first eigenvalue (method "exact")."""
    numerical_rank: int | None = None
    """Number of eigenvalues above rounding (method "exact")."""
    integer_rounding: float | None = None
    """Largest change of rows by rounding integers beyond 2**53 to float64, relative to their distance from the mean; None without such integers."""
    eigen_solver: str | None = None
    """How the eigenproblem was solved (method "exact")."""
    components_missing: int | None = None
    """Number of requested components without a positive eigenvalue; None if all have one."""
    components_found: int | None = None
    """Number of components with a positive eigenvalue; None if all have one."""


AnyCertificate = ExactCertificate | ApproximateCertificate | KernelCertificate
"""The certificate of a fit."""


def certificate_of(values: Mapping[str, object]) -> ExactCertificate:
    """Return the certificate of a PCA model from its `to_dict`; `ModelError` as `Certificate.of`."""
    return (ApproximateCertificate if values.get("kind") == "approximate" else ExactCertificate).of(values)


def any_certificate_of(values: Mapping[str, object]) -> AnyCertificate:
    """Return the certificate of a model of either kind from its `to_dict`; `ModelError` as `Certificate.of`."""
    return KernelCertificate.of(values) if "trace" in values else certificate_of(values)
