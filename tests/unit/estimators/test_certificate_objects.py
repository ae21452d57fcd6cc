"""`error_` and `certificate_` are one object: documented attributes, and a read-only mapping of the same values."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import streampca as sp
from streampca import PCA, KernelPCA
from streampca.errors import NotAvailableError

ROWS = np.random.default_rng(0).normal(size=(120, 8)) * np.arange(1.0, 9.0)
HOLES = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.02, np.nan, ROWS)
FITTED: dict[str, tuple[Any, Any, str]] = {
    "covariance": (PCA(3, solver="covariance"), ROWS, "ExactCertificate"),
    "gram": (PCA(3, solver="gram"), ROWS, "ExactCertificate"),
    "qr": (PCA(3, solver="qr"), ROWS, "ExactCertificate"),
    "drop_rows": (PCA(3, missing="drop_rows"), HOLES, "ExactCertificate"),
    "mean": (PCA(3, missing="mean"), HOLES, "ExactCertificate"),
    "pairwise": (PCA(3, missing="pairwise"), HOLES, "ExactCertificate"),
    "sketch": (PCA(3, solver="sketch", sketch_size=6), ROWS, "ApproximateCertificate"),
    "conversion": (PCA(3, solver="sketch", sketch_size=6, recovery="conversion"), ROWS, "ApproximateCertificate"),
    "adaptive": (PCA(3, solver="adaptive", sketch_size=6), ROWS, "ApproximateCertificate"),
    "sketch, pairwise": (PCA(3, solver="sketch", sketch_size=6, missing="pairwise"), HOLES, "ApproximateCertificate"),
    "kernel exact": (KernelPCA(3, gamma=0.1, method="exact"), ROWS, "KernelCertificate"),
    "nystrom": (KernelPCA(3, gamma=0.1, method="nystrom", n_landmarks=30), ROWS, "KernelCertificate"),
    "not definite": (KernelPCA(3, kernel="sigmoid", method="nystrom", n_landmarks=30), ROWS, "KernelCertificate"),
    "extension": (KernelPCA(3, gamma=0.1, method="nystrom_extension", n_landmarks=30), ROWS, "KernelCertificate"),
    "empirical map": (KernelPCA(3, gamma=0.1, method="empirical_map"), ROWS, "KernelCertificate"),
}


def thawed(value: Any) -> Any:
    """Return `value` with tuples as lists."""
    if isinstance(value, Mapping):
        return {key: thawed(item) for key, item in value.items()}
    return [thawed(item) for item in value] if isinstance(value, tuple) else value


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FITTED)
def test_object_and_mapping_have_the_same_values(name: str, tmp_path: Any) -> None:
    estimator, rows, kind = FITTED[name]
    fitted = clone(estimator).fit(rows)
    certificate, mapping = fitted.certificate_, fitted.error_
    assert certificate is mapping
    assert str(certificate) == certificate.statement == mapping["statement"]
    assert json.loads(json.dumps(dict(mapping))) == dict(mapping)
    assert type(certificate).__name__ == kind
    named = {field.name: getattr(certificate, field.name) for field in fields(certificate)}
    assert set(mapping) <= set(named)
    assert {key: thawed(named[key]) for key in mapping} == thawed({**mapping})
    assert all(named[key] is None for key in set(named) - set(mapping))
    assert sp.load(fitted.save(tmp_path / "model.zarr")).certificate_ == certificate


def test_certificate_and_mapping_are_read_only() -> None:
    fitted = PCA(2).fit(ROWS)
    with pytest.raises(FrozenInstanceError):
        fitted.certificate_.kind = "approximate"  # type: ignore[misc]
    with pytest.raises(TypeError):
        fitted.error_["kind"] = "approximate"  # type: ignore[index]
    assert isinstance(fitted.certificate_.component_errors, tuple)


def test_certificate_of_copies_is_that_of_the_original() -> None:
    for fitted in (PCA(2).fit(ROWS), KernelPCA(2, gamma=0.1).fit(ROWS)):
        for twin in (copy.copy(fitted), copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
            assert twin.certificate_ == fitted.certificate_
            assert twin.error_ == fitted.error_


def test_certificate_after_added_rows_is_that_of_all_rows() -> None:
    pca = PCA(3, solver="covariance").partial_fit(ROWS[:60]).partial_fit(ROWS[60:])
    whole = PCA(3, solver="covariance").fit(ROWS)
    assert pca.certificate_.captured_variance == pytest.approx(whole.certificate_.captured_variance, rel=1e-12)


def test_unfitted_estimator_has_no_certificate() -> None:
    for estimator in (PCA(2), KernelPCA(2)):
        assert not hasattr(estimator, "certificate_")
        assert not hasattr(estimator, "error_")


@pytest.mark.parametrize("kind", [PCA, KernelPCA])
def test_attributes_of_fits_without_sampling_errors_can_be_listed(kind: type[PCA] | type[KernelPCA]) -> None:
    fitted = kind(2).fit(np.random.default_rng(0).standard_normal((30, 4)))
    assert "components_" in dir(fitted) or "eigenvalues_" in dir(fitted)
    assert not hasattr(fitted, "sampling_error_")
    with pytest.raises(NotAvailableError, match="sampling_errors=20"):
        _ = fitted.sampling_error_
    with pytest.raises(AttributeError, match="no attribute 'nothing_'"):
        _ = fitted.nothing_
