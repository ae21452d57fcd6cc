"""The interface of estimators: the same answers as those of scikit-learn, with it and without."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import installed
import numpy as np
import pytest
import sklearn.base
import sklearn.exceptions
from scipy.sparse import csc_array
from sklearn.pipeline import make_pipeline
from sklearn.utils import validation

from streampca.errors import NotFittedError, ParameterError
from streampca.estimators import interface

ROWS = np.arange(12.0).reshape(4, 3)


class _Signature:
    def __init__(self, inner: Any = None, *, k: int | None = None, names: tuple[str, ...] = ()):
        self.inner, self.k, self.names = inner, k, names

    def fit(self) -> _Signature:
        self.k_ = self.k
        return self


class Ours(_Signature, interface.BaseEstimator):
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
    second = interface.clone(first)
    assert not hasattr(second, "k_")
    assert second.inner is not first.inner
    assert second.names == first.names
    assert second.names[0] is not first.names[0]


def test_an_estimator_without_fitted_attributes_is_not_fitted() -> None:
    with pytest.raises(sklearn.exceptions.NotFittedError):
        interface.check_is_fitted(Ours())
    with installed.modules(sklearn=None), pytest.raises(NotFittedError):
        interface.check_is_fitted(Ours())
    fitted, peer = Ours().fit(), Theirs().fit()
    interface.check_is_fitted(fitted)
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
@pytest.mark.parametrize("there", [True, False])
def test_rows_are_taken_and_refused_as_by_scikit_learn(rows: Any, finite: bool | str, there: bool) -> None:
    ours, theirs = Ours(), Theirs()
    try:
        expected = validation.validate_data(theirs, rows, accept_sparse="csr", ensure_all_finite=finite)
    except ValueError:
        with _with_scikit_learn(there), pytest.raises(ValueError if there else ParameterError):
            interface.validate_data(ours, rows, ensure_all_finite=finite)
        return
    with _with_scikit_learn(there):
        taken = interface.validate_data(ours, rows, ensure_all_finite=finite)
    assert (type(taken), taken.dtype) == (type(expected), expected.dtype)
    np.testing.assert_array_equal(*(each.toarray() if hasattr(each, "toarray") else each for each in (taken, expected)))
    assert vars(ours) == vars(theirs)


def _with_scikit_learn(there: bool) -> AbstractContextManager[None]:
    """Return a context in which scikit-learn is or is not installed."""
    return nullcontext() if there else installed.modules(sklearn=None)


@pytest.mark.parametrize("there", [True, False])
def test_features_are_compared_with_those_of_the_fit(there: bool) -> None:
    with _with_scikit_learn(there):
        _compare_features()


def _compare_features() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=["a", "b", "c"])
    ours, theirs = Ours(), Theirs()
    for estimator, validate in ((ours, interface.validate_data), (theirs, validation.validate_data)):
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


class Scaled(Ours):
    def transform(self, X: Any) -> Any:
        return np.asarray(X, dtype=np.float64)[:, :2]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_scores_become_frames_where_these_were_asked_for(library: str) -> None:
    frames = pytest.importorskip(library)
    assert type(Scaled().fit().transform(ROWS)) is np.ndarray
    scores = Scaled().fit().set_output(transform=library).transform(ROWS)
    assert isinstance(scores, frames.DataFrame)
    assert list(scores.columns) == ["scaled0", "scaled1"]
    np.testing.assert_array_equal(scores.to_numpy(), ROWS[:, :2])
    with sklearn.config_context(transform_output=library):
        assert isinstance(Scaled().fit().transform(ROWS), frames.DataFrame)
        assert type(Scaled().fit().set_output(transform="default").transform(ROWS)) is np.ndarray
    copy = interface.clone(Scaled().set_output(transform=library)).fit()
    assert isinstance(copy.transform(ROWS), frames.DataFrame)


def test_frames_have_the_index_of_the_rows_and_unknown_libraries_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, index=["a", "b", "c", "d"])
    assert list(Scaled().fit().set_output(transform="pandas").transform(frame).index) == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match="output config must be in"):
        Scaled().fit().set_output(transform="excel").transform(frame)


class Weighted(Scaled):
    def fit(self, X: Any = None, y: Any = None, sample_weight: Any = None) -> Weighted:  # type: ignore[override]
        self.k_, self.weight_ = 1, sample_weight
        return self


def test_pipelines_pass_weights_on_where_they_are_asked_for() -> None:
    weights = np.arange(4.0)
    with sklearn.config_context(enable_metadata_routing=True):
        asking = make_pipeline(Weighted().set_fit_request(sample_weight=True))
        for pipeline in (asking, sklearn.base.clone(asking)):
            assert pipeline.fit(ROWS, sample_weight=weights)[-1].weight_ is weights
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError):
            make_pipeline(Weighted()).fit(ROWS, sample_weight=weights)
    pipeline = make_pipeline(Weighted()).fit(ROWS, weighted__sample_weight=weights)
    assert pipeline[-1].weight_ is weights
