"""The solvers of linear PCA by name."""

from __future__ import annotations

from streampca.solvers.adaptive import AdaptiveSolver
from streampca.solvers.base import ContinuableSolver, PCASolver
from streampca.solvers.covariance import CovarianceSolver
from streampca.solvers.gram import GramSolver
from streampca.solvers.qr import QRSolver
from streampca.solvers.sketch import SketchSolver

SOLVERS: dict[str, type[PCASolver]] = {
    solver.name: solver for solver in (CovarianceSolver, GramSolver, QRSolver, AdaptiveSolver, SketchSolver)
}
"""The solvers by name. A new one joins by its own module and its place here."""
CONTINUABLE = {name: solver for name, solver in SOLVERS.items() if issubclass(solver, ContinuableSolver)}
"""Those whose states can be continued and merged."""
