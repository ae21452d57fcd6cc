"""Charts of a fitted estimator, drawn by matplotlib, in ``pca.plot``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

import streampca.plotting as plotting
from streampca.errors import ParameterError
from streampca.estimators.interface import check_is_fitted
from streampca.suggestions import suggests_in_methods
from streampca.system.optional import optional_module
from streampca.typing import Array, FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streampca.estimators.inputs import Input, Table

_MOST_NAMES = 30
"""Names of more features are not written below a chart."""


@suggests_in_methods
class Plots:
    """Charts of a fitted estimator, drawn on matplotlib axes, which every method returns.

    Every method draws on `ax`; None makes a new figure. Colours and fonts follow the settings of matplotlib. The same
    functions draw the page of a run. Threads draw one after another, because the settings of matplotlib are global.
    All methods need matplotlib, ``pip install "streampca[report]"``, and raise `NotAvailableError` without it.
    """

    def __init__(self, estimator: Any):
        self._estimator = estimator

    def scree(self, *, ax: Axes | None = None) -> Axes:
        """Draw the eigenvalues, with intervals for approximate results and sampling errors if the fit computed them.

        The scale is logarithmic if the eigenvalues span more than a factor of 100. Neighbours that cannot be told
        apart are hatched, judged by sampling errors if the fit computed them, otherwise by the certificate.

        Parameters
        ----------
        ax : matplotlib Axes, optional
            Where to draw; None = new axes.

        Returns
        -------
        matplotlib Axes
            With the eigenvalues as points.

        Raises
        ------
        NotAvailableError
            If matplotlib is not installed.
        """
        check_is_fitted(self._estimator)
        model = self._estimator._model
        values, certificate, errors = model.spectrum, model.certificate, model.sampling_errors
        ends: Any = certificate.get("eigenvalue_intervals") or []
        bounds = np.array(ends, dtype=np.float64).T if len(ends) == len(values) else None
        mixed = [(first, last) for first, last, _ in getattr(certificate, "unresolved_clusters", ())]
        sampling = None
        if errors is not None:
            mixed, sampling = errors.degenerate_groups, errors.interval(0.95).T
        with self._drawn_on(ax) as axes:
            plotting.scree(axes, values, bounds=bounds, sampling=sampling, mixed=mixed, title=model.kind.strength)
        return axes

    def scores(
        self,
        X: Input | Table | None = None,
        *,
        scores: Any = None,
        labels: ArrayLike | None = None,
        components: Sequence[int] = (1, 2),
        ax: Axes | None = None,
    ) -> Axes:
        """Draw rows at their scores on two components, as points, or as a density for more than 700 rows without labels.

        Parameters
        ----------
        X : array-like, shape (n_samples, n_features), path, lazy array or table
            Rows: anything that `transform` accepts.
        scores : array-like, shape (n_samples, n_components), optional
            Scores of the rows in place of `X`, such as those that `transform_to` wrote.
        labels : array-like, shape (n_samples,), optional
            Labels that colour the points: the eight most frequent have a colour each, and others are grey.
        components : pair of int, or one int in a list
            Numbers of the components, from 1; one gives a histogram.
        ax : matplotlib Axes, optional
            Where to draw; None = new axes.

        Returns
        -------
        matplotlib Axes
            Axes with the rows; rows with NaN are not drawn.

        Raises
        ------
        ParameterError
            If both or neither of `X` and `scores` are given, a component does not exist, or the number of labels
            differs from that of the rows.
        NotAvailableError
            If matplotlib is not installed.

        Examples
        --------
        >>> import streampca as sp
        >>> pca = sp.PCA(3).fit("builtin:iris")
        >>> pca.plot.scores("builtin:iris").get_xlabel()[:11]
        'component 1'
        """
        check_is_fitted(self._estimator)
        values, classes = self._scores(X, scores, labels, components)
        with self._drawn_on(ax) as axes:
            plotting.scores(axes, values, self._titles(components), classes)
        return axes

    def _scores(
        self, X: Input | Table | None, scores: Any, labels: ArrayLike | None, components: Sequence[int]
    ) -> tuple[FloatArray, plotting.Classes | None]:
        """Return the finite scores of rows on some components, ``(n_samples, len(components))``, and the classes of these rows."""
        k = len(self._estimator._model.spectrum)
        if not 1 <= len(components) <= 2 or not all(1 <= number <= k for number in components):
            raise ParameterError(f"components={components!r}: expected one or two numbers from 1 to {k}")
        if (X is None) == (scores is None):
            raise ParameterError("expected either rows, X, or their scores, scores=…")
        given: Any = self._estimator.transform(X) if scores is None else scores
        given = given if hasattr(given, "shape") else np.asarray(given)
        if given.shape[-1] != k:
            raise ParameterError(f"scores have {given.shape[-1]} columns: expected {k}, one for each component")
        chosen = [number - 1 for number in components]
        taken = given.iloc[:, chosen] if hasattr(given, "iloc") else given[..., chosen]
        values: FloatArray = np.asarray(taken, dtype=np.float64).reshape(-1, len(chosen))
        finite = np.isfinite(values).all(axis=1)
        if labels is None:
            return values[finite], None
        named: Array = np.asarray(labels).ravel()
        if len(named) != len(values):
            raise ParameterError(f"there are {len(named)} labels: expected {len(values)}, one for each row")
        return values[finite], plotting.classes_of(named[finite])

    def _titles(self, components: Sequence[int]) -> list[str]:
        """Return the titles of the axes of some components, from 1, with the shares of the variance."""
        return [self._estimator._model.score_title(number - 1) for number in components]

    @contextmanager
    def _drawn_on(self, ax: Axes | None) -> Iterator[Axes]:
        """Yield the axes to draw on, while no other thread draws; they have a legend then."""
        pyplot: Any = optional_module("matplotlib.pyplot", "a chart", "report")
        with plotting.alone():
            axes: Axes = pyplot.subplots(layout="constrained")[1] if ax is None else ax
            yield axes
            plotting.legend(axes)


@suggests_in_methods
class ComponentPlots(Plots):
    """Charts of a fitted estimator whose components are directions among the features."""

    def components(self, n_components: int = 3, *, ax: Axes | None = None) -> Axes:
        """Draw the entries of the first components as lines over the features.

        Features along one numeric or time coordinate are drawn at their positions. Up to 30 named features are
        labelled. For two-dimensional fields use xarray: ``pca.maps().plot(col="mode")``.

        Parameters
        ----------
        n_components : int
            Number of components; all if the fit has fewer.
        ax : matplotlib Axes, optional
            Where to draw; None = new axes.

        Returns
        -------
        matplotlib Axes
            With a line for each component.

        Raises
        ------
        ParameterError
            If `n_components` is less than 1.
        NotAvailableError
            If matplotlib is not installed.
        """
        if n_components < 1:
            raise ParameterError(f"n_components={n_components}: expected at least 1")
        estimator = self._estimator
        check_is_fitted(estimator)
        rows, names = np.asarray(estimator.components_[:n_components]), estimator._model.source.get("feature_names")
        x, title = _coordinate(estimator)
        with self._drawn_on(ax) as axes:
            for i, (row, name) in enumerate(zip(rows, self._titles(range(1, len(rows) + 1)), strict=True)):
                plotting.line(axes, x, row, (title, "entry of the component"), zero=i == 0, name=name)
            if title == "feature" and names is not None and len(names) <= _MOST_NAMES:
                axes.set_xticks(x, [str(name) for name in names], rotation=90, parse_math=False)
        return axes

    def biplot(
        self,
        X: Input | Table | None = None,
        *,
        scores: Any = None,
        labels: ArrayLike | None = None,
        components: Sequence[int] = (1, 2),
        n_arrows: int = 12,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw rows at their standardised scores with the loadings of features as arrows (Gabriel 1971).

        All loadings are multiplied by one factor, rounded to one digit, so that arrows reach the outer points. A name
        that would cover that of a longer arrow is moved by up to two lines, or left out.

        Parameters
        ----------
        X, scores, labels, components, ax
            As for `scores`; two components.
        n_arrows : int
            Number of features drawn: those with the longest arrows.

        Returns
        -------
        matplotlib Axes
            With the same scale on both axes.

        Raises
        ------
        ParameterError, NotAvailableError
            As `scores`; also if the components are on disk.
        """
        if len(components) != 2:
            raise ParameterError(f"components={components!r}: expected two numbers")
        estimator = self._estimator
        check_is_fitted(estimator)
        values, classes = self._scores(X, scores, labels, components)
        chosen = [number - 1 for number in components]
        model = estimator._model
        points = values if model.whiten else values / np.sqrt(np.maximum(model.explained_variance[chosen], 1e-300))
        loadings: FloatArray = model.loadings()[chosen].T
        longest = np.argsort(-np.hypot(*loadings.T), kind="stable")[:n_arrows]
        names = model.source.get("feature_names")
        features = [str(j if names is None else names[j]) for j in longest]
        arrows = plotting.arrow_factor(points, loadings) * loadings[longest]
        with self._drawn_on(ax) as axes:
            plotting.biplot(axes, points, arrows, features, self._titles(components), classes)
        return axes


def _coordinate(estimator: Any) -> tuple[Array, str]:
    """Return where features are along their one coordinate of numbers or times, with its name; else their numbers."""
    labels = estimator._model.labels
    if labels is not None and len(labels.variables) == 1 and len(labels.features) == 1:
        dimension = labels.features[0]
        values = dimension.coordinate
        if values is not None and len(values) == estimator.n_features_in_ and values.dtype.kind in "iufM":
            return values, dimension.name
    return np.arange(estimator.n_features_in_), "feature"
