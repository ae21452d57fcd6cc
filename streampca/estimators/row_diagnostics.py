"""Rows that do not fit: limits of T² and Q, and what features contribute to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from streampca.estimators.interface import check_is_fitted
from streampca.estimators.likelihood import Likelihood
from streampca.linalg.control_limits import Distribution
from streampca.models.contributions import Contributions, contributions_of
from streampca.models.limits import q_limit_of, t2_limit_of
from streampca.models.removal import Given

if TYPE_CHECKING:
    from streampca.models.pca import PCAModel


class RowDiagnostics(Likelihood):
    """The part of `PCA` that measures how far rows are from the model."""

    if TYPE_CHECKING:
        _model: PCAModel

    def t2_limit(self, probability: float = 0.99, *, distribution: Distribution = "f") -> float:
        """Return the value that Hotelling's T² of normally distributed rows exceeds with the probability 1 − `probability`.

        Parameters
        ----------
        probability : float
            Share of rows that are not above the limit, in (0, 1).
        distribution : {"f", "beta", "chi2"}
            ``"f"``: for rows that were not in the fit, k (n² − 1) / (n (n − k)) · F(k, n − k). ``"beta"``: for the rows of the fit,
            (n − 1)² / n · Beta(k/2, (n − k − 1)/2), smaller (Tracy, Young & Mason 1992). Both are exact for normal rows where
            all components are taken, and n is the sum of the weights; with `remove`, each mean and slope that was fitted takes one degree
            of freedom. ``"chi2"``: their limit for many rows, χ²(k). k counts the
            components above rounding.

        Returns
        -------
        float
            The limit.

        Raises
        ------
        NotAvailableError
            If no component is above rounding, or there are not enough rows for the first two.
        """
        check_is_fitted(self)
        return t2_limit_of(self._model, probability, distribution)

    def q_limit(self, probability: float = 0.99) -> float:
        """Return the value that Q, the squared prediction error, of normally distributed rows exceeds with 1 − `probability`.

        By Jackson & Mudholkar (1979) from sums of the first three powers of the eigenvalues left out, for exact solvers; by Box
        (1954), g χ²(h), from two, which approximate solvers estimate from held-out columns.

        Parameters
        ----------
        probability : float
            Share of rows that are not above the limit, in (0, 1).

        Returns
        -------
        float
            The limit, in squared units of the centred, scaled and weighted rows.

        Raises
        ------
        NotAvailableError
            If these sums are not known, as of models of earlier versions, or nothing is left out.
        """
        check_is_fitted(self)
        return q_limit_of(self._model, probability)[0]

    def contributions(self, rows: ArrayLike, *, remove: Given | None = None) -> Contributions:
        """Return the contribution of each feature to T² and Q of rows.

        Parameters
        ----------
        rows : array-like or sparse, shape (n_rows, n_features)
            Rows in memory: those that stand out, since the result takes 16 bytes for each value, which no plan counts.
        remove : mapping, optional
            As in `transform`.

        Returns
        -------
        Contributions
            Two arrays of shape (n_rows, n_features).

        Raises
        ------
        NotAvailableError
            If the components are on disk.
        """
        self._require_in_memory("contributions")
        checked = self._validated(rows)
        dense = np.asarray(self._without_removed(getattr(checked, "toarray", lambda: checked)(), rows, remove))
        names = self._known_names()
        return contributions_of(self._model, dense, None if names is None else tuple(names))
