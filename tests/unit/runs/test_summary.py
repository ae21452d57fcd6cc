"""What is said of a finished fit: a warning for every reason to doubt it, none without, and each says what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.models.certificate_sentences import accuracy, warnings_of_pca
from streampca.models.certificates import ApproximateCertificate

SIZES = {"columns": 40, "passes": 2, "tolerance": None, "pilot_rows": 0, "rows_per_update": 0}


def said(**changes: Any) -> ApproximateCertificate:
    """Return the certificate of ten components that are known well, changed."""
    return ApproximateCertificate.of(
        {
            "kind": "approximate",
            "statement": "approximate",
            "eigenvalue_intervals": [[1.0, 1.01]] * 10,
            "component_errors": [0.01] * 10,
            "largest_relative_width": 0.01,
            "unresolved_clusters": [],
            "n_passes": 1,
            "eigen_solver": "nystrom",
            "captured_variance": 0.5,
            "relative_residual": 0.5,
            "relative_residual_interval": [0.4, 0.5],
            "eigen_residual": 0.001,
            "orthonormality": 0.0,
            "numerical_rank": 10,
            "trusted_above": 1e-13,
            "nuclear_error": 0.1,
            "sigma": 0.1,
            "angle_bounds": [0.1] * 10,
            "subspace_angle_bound": 0.1,
            "components_for": {},
        }
        | changes
    )


def test_a_good_answer_and_an_exact_one_have_no_warning() -> None:
    assert warnings_of_pca(said(), SIZES) == []
    assert warnings_of_pca(sp.PCA(2).fit(np.eye(4)).error_, {}) == []


@pytest.mark.parametrize(
    ("changes", "sizes", "words", "without"),
    [
        ({}, {}, ["62%", "set tolerance", "larger sketch_size", "solver: adaptive"], "max_passes"),
        ({}, {"rows_per_update": 32}, ["62%", "set tolerance", "larger sketch_size"], "solver: adaptive"),
        ({}, {"tolerance": 0.0}, ["set max_passes higher"], "set tolerance"),
        ({"eigen_solver": "conversion"}, {}, ["use recovery: nystrom"], "adaptive"),
        ({"n_passes": 2}, {"tolerance": 0.001}, ["after 2 passes", "62%", "0.1%", "max_passes"], "only"),
        ({"eigenvalue_intervals": None, "largest_relative_width": None}, {}, ["no bound"], "certified"),
    ],
)
def test_a_wide_certificate_is_one_warning_that_says_what_to_do(
    changes: dict[str, Any], sizes: dict[str, Any], words: list[str], without: str
) -> None:
    (warning,) = warnings_of_pca(said(**({"largest_relative_width": 0.62} | changes)), SIZES | sizes)
    for word in words:
        assert word in warning
    assert without not in warning


def test_a_tolerance_that_was_met_or_may_still_be_met_is_no_warning() -> None:
    asked = SIZES | {"tolerance": 0.02}
    assert warnings_of_pca(said(n_passes=2), asked) == []
    missed = said(n_passes=2, largest_relative_width=0.03)
    assert len(warnings_of_pca(missed, asked)) == 1
    assert warnings_of_pca(missed, SIZES | {"tolerance": 0.0}) == []


def test_unresolved_clusters_are_named_from_one() -> None:
    (warning,) = warnings_of_pca(said(unresolved_clusters=[[2, 4, None], [9, 9, None]]), SIZES)
    assert warning.startswith("components 3 to 5, 10 are not separated")
    (warning,) = warnings_of_pca(said(unresolved_clusters=[[9, 9, None]]), SIZES)
    assert warning.startswith("component 10 is not separated")
    converted = said(unresolved_clusters=[[0, 9, None]], eigen_solver="conversion")
    assert warnings_of_pca(converted, SIZES) == []
    many = said(unresolved_clusters=[[i, i, None] for i in range(0, 40, 2)])
    assert "15, …" in warnings_of_pca(many, SIZES)[0]


def test_fewer_components_than_asked_for_is_a_warning() -> None:
    (warning,) = warnings_of_pca(said(components_missing=True), SIZES)
    assert "40 columns gives 10 components" in warning
    assert "larger sketch_size" in warning


def test_accuracy_in_a_few_words() -> None:
    assert accuracy(sp.PCA(2).fit(np.eye(4)).error_, None) is None
    assert accuracy(said(), None) == "eigenvalues certified to within 1%, 10 of 10 components separated, after one pass"
    told = accuracy(said(unresolved_clusters=[[1, 3, None]]), SIZES | {"tolerance": 0.02, "pilot_rows": 500})
    assert told == (
        "eigenvalues certified to within 1% (2% asked), 7 of 10 components separated, after one pass of at most 2 and a "
        "sample of 500 rows"
    )
    unknown = said(largest_relative_width=None, eigenvalue_intervals=None, n_passes=2)
    assert accuracy(unknown, SIZES) == "no bound of the error, after 2 passes"


@pytest.mark.parametrize(
    ("width", "text"), [(0.62, "62%"), (1.0, "100%"), (0.0083, "0.83%"), (0.05, "5%"), (3e-9, "3.0e-09"), (0, "0%")]
)
def test_percentages(width: float, text: str) -> None:
    told = accuracy(said(largest_relative_width=width), None)
    assert told is not None
    assert told.startswith(f"eigenvalues certified to within {text}, ")


def test_directions_beyond_the_rank_are_bounded_from_zero() -> None:
    """Three directions carry all; the other three that were asked for have none, and their intervals say so."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 3)) @ rng.standard_normal((3, 40))
    found = sp.PCA(6, solver="sketch", sketch_size=12, pilot=0).fit(rows)
    intervals = np.array(found.error_["eigenvalue_intervals"])
    exact = np.maximum(np.linalg.eigvalsh(np.cov(rows.T))[::-1][:6], 0.0)
    assert (intervals[:, 0] <= exact).all()
    assert (exact <= intervals[:, 1]).all()
    assert (intervals[3:, 0] == 0).all()
    assert (intervals[3:, 1] < 1e-8 * exact[0]).all()
    assert (np.array(found.error_["proven_upper_bounds"])[3:] < 1e-8 * exact[0]).all()
