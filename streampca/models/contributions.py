"""Contributions of features to T² and Q of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from streampca.errors import ParameterError
from streampca.models.conditional import gains
from streampca.models.diagnostics import centred_rows, observed_products, plain_scores, row_diagnostics
from streampca.models.pca import PCAModel
from streampca.typing import Array, FloatArray


@dataclass(frozen=True)
class Contributions:
    """What each feature adds to T² and to Q of some rows."""

    t2: FloatArray
    """Contributions to T², ``(n_rows, n_features)``: zⱼ Σᵢ vᵢⱼ sᵢ/λᵢ (Nomikos & MacGregor 1995; Westerhuis, Gurden & Smilde
    2000, section 3), the sum over the components of each one's share in the score. They may be negative, and sum to T²."""
    q: FloatArray
    """Contributions to Q, ``(n_rows, n_features)``: squared residuals, times the factor of rows with missing values. They sum to Q."""
    feature_names: tuple[str, ...] | None = None
    """Names of the features; None where the data of the fit had none."""

    def largest(self, n: int = 10, of: Literal["q", "t2"] = "q") -> list[list[tuple[str, float]]]:
        """Return for each row its `n` largest contributions with the names of their features, or their numbers, largest first."""
        if of not in ("q", "t2"):
            raise ParameterError(f"of={of!r}: expected 'q' or 't2'")
        values = self.q if of == "q" else self.t2
        order = np.argsort(-values, axis=1, kind="stable")[:, : max(0, n)]
        return [
            [(self._name(int(j)), float(row[j])) for j in places] for row, places in zip(values, order, strict=True)
        ]

    def _name(self, feature: int) -> str:
        return str(feature) if self.feature_names is None else self.feature_names[feature]


def contributions_of(model: PCAModel, rows: Array, names: tuple[str, ...] | None) -> Contributions:
    """Return the contributions of features to T² and Q of dense `rows`, ``(n_rows, n_features)``, in float64.

    Of rows with missing values the scores are ŝ = K V_o z_o, so that zⱼ Σᵢ vᵢⱼ (Kᵀ Λ⁻¹ ŝ)ᵢ sums to T²; missing features contribute 0.
    """
    rows = np.asarray(rows, dtype=np.float64)
    scores, rank = model.encode(rows), model.numerical_rank
    q = row_diagnostics(model, rows, scores)[1]
    plain = plain_scores(model, scores)
    axes = np.asarray(model.components)
    values, missing = centred_rows(model, rows, slice(0, rows.shape[1]))
    residual = values - plain @ axes[:rank]
    weighted = np.zeros(scores.shape)
    weighted[:, :rank] = plain / model.explained_variance[:rank]
    if missing is not None:
        residual[missing] = 0.0
        holes = np.flatnonzero(missing.any(axis=1))
        for patterns, observed in observed_products(model, missing[holes]):
            for members, gain in zip(patterns, gains(model, observed), strict=True):
                weighted[holes[members]] = weighted[holes[members]] @ gain
    squares = residual**2
    sums = squares.sum(axis=1)
    factor = np.divide(q, sums, out=np.ones_like(sums), where=sums > 0)
    return Contributions(values * (weighted @ axes), squares * factor[:, None], names)
