"""Certificates as objects: what a fit can say of its own errors, each figure under a documented name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Literal, Self

import numpy as np

from streampca.errors import ModelError
from streampca.linalg.eigen import Spectrum
from streampca.typing import Json

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What every fit says of its errors; the values are those of the mapping `error_`."""

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

    @classmethod
    def of(cls, values: Json) -> Self:
        """Return the certificate with `values`, lists turned into tuples; `ModelError` if one of them is missing."""
        named: Json = {}
        for field in fields(cls):
            if field.name in values:
                named[field.name] = _frozen(values[field.name])
            elif field.default is MISSING:
                raise ModelError(f"the certificate has no {field.name}: fit again to have one")
        return cls(**named)


@dataclass(frozen=True, kw_only=True)
class ExactCertificate(Certificate):
    """Certificate of an exact solver of PCA: rounding is the only error."""

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
    """How the eigenproblem was solved."""
    integer_rounding: float | None = None
    """What rounding of integers beyond 2**53 to float64 may change of an eigenvalue, relative to the first; None: there are none."""
    rows_left_out: int | None = None
    """Rows that were left out because of missing values; None unless ``missing="drop_rows"``."""
    missing_values: int | None = None
    """Number of missing values; None where they are an error or their rows are left out."""
    clipped_mass: float | None = None
    """Sum of the moduli of negative eigenvalues, which ``missing="pairwise"`` clips; None elsewhere."""


@dataclass(frozen=True, kw_only=True)
class ApproximateCertificate(ExactCertificate):
    """Certificate of an approximate solver of PCA."""

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


@dataclass(frozen=True, kw_only=True)
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


def certificate_of(values: Json) -> ExactCertificate | ApproximateCertificate:
    """Return the certificate of a PCA model from its values by name."""
    return (ApproximateCertificate if values.get("kind") == "approximate" else ExactCertificate).of(values)


def _frozen(value: object) -> object:
    """Return `value` with lists as tuples, also within."""
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in value)
    return {key: _frozen(item) for key, item in value.items()} if isinstance(value, dict) else value


def exact_certificate(spectrum: Spectrum, precision: float) -> Json:
    """Return the certificate of an exact solver whose eigenvalues have the relative `precision`."""
    vectors = spectrum.vectors
    orthonormality = float(np.abs(vectors @ vectors.T - np.eye(len(vectors))).max())
    captured = min(1.0, float(spectrum.values.sum()) / spectrum.total) if spectrum.total > 0 else 0.0
    return {
        "kind": "exact",
        "statement": (
            "exact: the matrix holds every row; eigenvalues carry the rounding of the accumulation "
            f"(relative to the first: {precision:.0e}), nothing else; a singular value is trusted above {np.sqrt(precision):.0e} of the first"
        ),
        "eigen_residual": spectrum.residual,
        "orthonormality": orthonormality,
        "relative_residual": 1.0 - captured,
        "relative_residual_interval": [max(0.0, 1.0 - captured - precision), min(1.0, 1.0 - captured + precision)],
        "captured_variance": captured,
        "component_errors": [0.0] * len(spectrum.values),
        "numerical_rank": spectrum.numerical_rank,
        "trusted_above": precision,
        "eigen_solver": spectrum.method,
    }
