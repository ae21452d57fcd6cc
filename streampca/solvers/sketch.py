"""One-pass sketch: products of the covariance matrix with vectors from a pilot or at random, and more passes on request."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.sketch import Sketch, weighted
from streampca.execution.readings import Readings
from streampca.linalg.certificate import Evidence
from streampca.models.pca import PCAModel
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.plan import Plan
from streampca.solvers.approximate import (
    HELD_OUT_COLUMNS,
    ApproximateSolver,
    FirstPass,
    feature_factors,
    sizes_of,
    split,
)
from streampca.solvers.approximate_model import Chain, answer_of
from streampca.solvers.base import ContinuableSolver
from streampca.solvers.capabilities import Table
from streampca.solvers.result import Accumulated


class SketchSolver(ApproximateSolver, ContinuableSolver):
    """Approximate, by a sketch of the covariance matrix."""

    name = "sketch"
    refuses_state: ClassVar[Table] = {
        "missing='mean'": "the means of all rows have to be known before the first is multiplied; use fit, missing='pairwise', or "
        "solver='covariance'",
        "recovery='conversion' with scale or missing='pairwise'": "z-scores and shares of observed values are taken in a reading of all "
        "rows; use fit, or recovery='nystrom'",
    }

    @override
    @property
    def keeps(self) -> str:
        return f"the products with {self.columns} vectors are kept"

    @override
    @classmethod
    def state_bytes(cls, plan: Plan) -> int:
        """Return the size of a saved state: test matrix and products."""
        sizes = sizes_of(plan)
        return 16 * plan.n_features * (sizes.columns + sizes.held_out)

    @override
    @classmethod
    def mergeable(cls, parameters: Parameters) -> Parameters:
        """Return `parameters` for one pass without a pilot, so that all sources are met with the same test matrix."""
        return replace(parameters, solver=cls.name, pilot=0, tolerance=None)

    @override
    def accumulated(self, plan: Plan, accumulator: AnyAccumulator | None = None) -> Readings[Accumulated]:
        """Read the rows once and return their state, with the test matrix of `accumulator` if one is given."""
        if isinstance(accumulator, Sketch):
            begun = FirstPass(accumulator.origin, np.ones(plan.n_features), accumulator.test)
        else:
            begun = yield from self.start(plan)
        rows, _ = yield from self.first(plan, begun)
        return rows if accumulator is None else replace(rows, accumulator=accumulator)

    @override
    @classmethod
    def solve_model(cls, fitted: FittedState, work: str) -> PCAModel:
        """Return the model of a sketch."""
        state, accumulator, parameters = fitted.state, fitted.accumulator, fitted.parameters
        n_features, threads = len(accumulator.test), accumulator.n_threads
        known = weighted(accumulator.finalize(state), feature_factors(parameters, n_features))
        products, held = split(known, min(HELD_OUT_COLUMNS, n_features))
        chain = Chain(n_features, products[0].shape[1])
        chain.add(*products)
        varying = known.weights > 0
        stretch = float(known.weights[varying].max()) if varying.any() else 1.0
        evidence = Evidence(*held, max(stretch, 1.0))
        known = replace(known, test=np.empty((0, 0)), products=np.empty((0, 0)))
        answer = answer_of(known, chain, evidence, parameters, work, threads)
        return answer.model(known, state, parameters, fitted.source, 1)
