"""The interface of estimators without scikit-learn: the same answers as those of scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.base
from scipy.sparse import csc_array
from sklearn.utils import validation

from streampca.errors import NotFittedError, ParameterError
from streampca.estimators import plain

ROWS = np.arange(12.0).reshape(4, 3)


class _Signature:
    def __init__(self, inner: Any = None, *, k: int | None = None, names: tuple[str, ...] = ()):
        self.inner, self.k, self.names = inner, k, names

    def fit(self) -> _Signature:
        self.k_ = self.k
        return self


class Ours(_Signature, plain.ClassNamePrefixFeaturesOutMixin, plain.BaseEstimator):
    _n_features_out = 2


class Theirs(_Signature, sklearn.base.ClassNamePrefixFeaturesOutMixin, sklearn.base.BaseEstimator):
    _n_features_out = 2


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value.k if isinstance(value, _Signature) else value for key, value in values.items()}


def test_parameters_are_those_of_scikit_learn() -> None:
    ours, theirs = (kind(kind(k=1), k=2, names=("a",)) for kind in (Ours, Theirs))
    for deep in (True, False):
        assert _plain(ours.get_params(deep=deep)) == _plain(theirs.get_params(deep=deep))
    for estimator in (ours, theirs):
        estimator.set_params(k=5, inner__k=7)
        assert (estimator.k, estimator.inner.k) == (5, 7)
        with pytest.raises(ValueError, match="Invalid parameter 'nothing'"):
            estimator.set_params(nothing=1)
    assert repr(Ours(k=3)) == "Ours(k=3)"


def test_clones_are_not_fitted_and_share_nothing() -> None:
    first = Ours(Ours(k=1), names=(["a"],)).fit()  # type: ignore[arg-type]
    second = plain.clone(first)
    assert not hasattr(second, "k_")
    assert second.inner is not first.inner
    assert second.names == first.names
    assert second.names[0] is not first.names[0]


def test_an_estimator_without_fitted_attributes_is_not_fitted() -> None:
    with pytest.raises(NotFittedError):
        plain.check_is_fitted(Ours())
    fitted, peer = Ours().fit(), Theirs().fit()
    plain.check_is_fitted(fitted)
    assert [name.removeprefix("ours") for name in fitted.get_feature_names_out()] == [
        name.removeprefix("theirs") for name in peer.get_feature_names_out()
    ]


@pytest.mark.parametrize(
    ("rows", "finite"),
    [
        (ROWS, True),
        (ROWS.tolist(), True),
        (ROWS.astype(np.int8), True),
        (ROWS.astype(object), True),
        (csc_array(ROWS), True),
        (np.full((2, 3), np.nan), "allow-nan"),
        (np.full((2, 3), np.inf), False),
        (ROWS[0], True),
        (ROWS[:, :0], True),
        (ROWS[:0], True),
        (ROWS * 1j, True),
        (np.full((2, 3), "a"), True),
        (np.full((2, 3), np.nan), True),
        (np.full((2, 3), np.inf), "allow-nan"),
        (csc_array(np.full((2, 3), np.inf)), True),
    ],
)
def test_rows_are_taken_and_refused_as_by_scikit_learn(rows: Any, finite: bool | str) -> None:
    ours, theirs = Ours(), Theirs()
    try:
        expected = validation.validate_data(theirs, rows, accept_sparse="csr", ensure_all_finite=finite)
    except ValueError:
        with pytest.raises(ParameterError):
            plain.validate_data(ours, rows, ensure_all_finite=finite)
        return
    taken = plain.validate_data(ours, rows, ensure_all_finite=finite)
    assert (type(taken), taken.dtype) == (type(expected), expected.dtype)
    np.testing.assert_array_equal(*(each.toarray() if hasattr(each, "toarray") else each for each in (taken, expected)))
    assert vars(ours) == vars(theirs)


def test_features_are_compared_with_those_of_the_fit() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=["a", "b", "c"])
    ours, theirs = Ours(), Theirs()
    for estimator, validate in ((ours, plain.validate_data), (theirs, validation.validate_data)):
        validate(estimator, frame)
        assert estimator.feature_names_in_.tolist() == ["a", "b", "c"]
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            validate(estimator, ROWS, reset=False)
        with pytest.raises(ValueError, match="feature names should match"):
            validate(estimator, frame[["b", "a", "c"]], reset=False)
        validate(estimator, ROWS)
        assert not hasattr(estimator, "feature_names_in_")
        with pytest.raises(ValueError, match=r"2 features, but .* is expecting 3 features as input"):
            validate(estimator, ROWS[:, :2], reset=False)
        with pytest.warns(UserWarning, match="was fitted without feature names"):
            validate(estimator, frame, reset=False)
