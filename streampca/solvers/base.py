"""The interface of solvers: a fit of one table, which is planned, read and, if states can be merged, accumulated separately."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from typing_extensions import override

from streampca.accumulators.base import AnyAccumulator
from streampca.accumulators.centring import product_dtype
from streampca.execution.readings import Readings
from streampca.models.pca import PCAModel
from streampca.models.rounding import with_integer_rounding
from streampca.models.state import FittedState
from streampca.parameters import Parameters
from streampca.planning.plan import DETAILS, Plan, Rates, SolverDetail, expected_seconds, nominal_rates, solve_seconds
from streampca.planning.work import Companion, Resources, Work
from streampca.solvers.capabilities import Table, require_taken
from streampca.solvers.removing import Removing
from streampca.solvers.result import Accumulated, Fit, FitResult
from streampca.sources.base import Source
from streampca.typing import DType, FloatArray

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from streampca.solvers.analyses import Analysis

AnyParameters = TypeVar("AnyParameters", bound="DataclassInstance")
AnyFit = TypeVar("AnyFit", bound=FitResult)

NOTHING_PLANNED = Resources(0, 0, 1)
"""Resources of a fit that has its plan."""


@dataclass(frozen=True)
class Solver(ABC, Generic[AnyParameters, AnyFit]):
    """A fit of one table by one algorithm."""

    source: Source
    """The rows."""
    parameters: AnyParameters
    """Parameters of the fit."""
    keep_rows: int = 0
    """Rows that a solver which reads by features copies for a report, because they do not pass by; see `RowSample`."""
    removing: Removing | None = None
    """What is removed from the rows as they are read; None = nothing."""
    analysis: Analysis | None = None
    """What is solved from the state of the covariance solver; None = its principal components."""

    name: ClassVar[str]
    """Name by which users ask for it."""
    copies_rows: ClassVar[bool] = False
    """Whether, where it reads by features, it copies rows for a report itself (`keep_rows`)."""

    settings: ClassVar[type[SolverDetail]] = SolverDetail
    """Settings of it alone that its plans have."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Enter what plans of this solver have into the table by which plans are restored."""
        super().__init_subclass__(**options)
        if "name" in vars(cls):
            DETAILS[cls.name] = cls.settings

    @abstractmethod
    def plan(self, resources: Resources) -> Plan:
        """Return the plan of the fit; raise `PlanError` if it does not fit in memory."""

    @classmethod
    def require(cls, source: Source | None, parameters: AnyParameters) -> None:
        """Raise `NotAvailableError` or `ParameterError` for what it does not take; without a `source`, whatever the rows."""

    @abstractmethod
    def readings(self, plan: Plan) -> Readings[AnyFit]:
        """Ask for readings of the rows as `plan` says and return the fit; see `execution.readings`.

        What reading took, and how long, is measured by who makes the readings.
        """

    def plan_with_groups(self, resources: Resources, plan: Plan, *, always: bool = False) -> Plan | None:
        """Return `plan` with states of groups of rows, which sampling errors follow from; None where the solver keeps none.

        With `always` also where another way is better, or `PlanError` where it does not fit.
        """
        return None

    @abstractmethod
    def finished(self, fit: AnyFit) -> AnyFit:
        """Return the fit with what is known of its model in the end; raise `DataError` if its numbers are no use."""

    @classmethod
    @abstractmethod
    def seconds(cls, plan: Plan, companions: Iterable[Companion] = ()) -> float:
        """Return the seconds that a fit by `plan` takes at nominal rates, with what comes along."""

    @classmethod
    def model_bytes(cls, plan: Plan, n_components: int) -> int:
        """Return the size of a saved model."""
        return 8 * n_components * plan.n_features

    @classmethod
    def state_bytes(cls, plan: Plan) -> int:
        """Return the size of a saved state."""
        return 0


@dataclass(frozen=True)
class PCASolver(Work, Solver[Parameters, Fit]):
    """A fit of linear PCA by one solver, which is also the `Work` that plans it."""

    n_components: int | None = None
    resources: Resources = NOTHING_PLANNED

    multiplies_back: ClassVar[bool] = False
    """Whether components are products of the rows with eigenvectors, in which errors of these are divided by singular values."""
    copies_rows: ClassVar[bool] = True
    refuses: ClassVar[Table] = {}
    """Traits of rows and parameters that it does not take, and what to do instead, see `capabilities`."""

    @property
    def dtype(self) -> DType:
        """Return the data type of the products."""
        return product_dtype(self.source.dtype, self.source.shape[1])

    @override
    @property
    def work_dtype(self) -> str:
        return str(self.dtype)

    @override
    @classmethod
    def require(cls, source: Source | None, parameters: Parameters) -> None:
        require_taken(cls.name, cls.refuses, source, parameters)

    @override
    def finished(self, fit: Fit) -> Fit:
        model = with_integer_rounding(fit.model)
        described = model.source | {"solver": fit.plan.solver}
        state = None if fit.fitted_state is None else replace(fit.fitted_state, source=described)
        return replace(fit, model=replace(model, source=described), fitted_state=state)

    @override
    @classmethod
    def seconds(cls, plan: Plan, companions: Iterable[Companion] = ()) -> float:
        rates = cls.nominal_rates(plan)
        alone = expected_seconds(plan, rates, cls.solve_seconds(plan, rates))
        return alone + sum(each.seconds(plan, rates) for each in companions)

    @classmethod
    def nominal_rates(cls, plan: Plan) -> Rates:
        """Return the rates that times are expected by: those of products of rows."""
        return nominal_rates(plan)

    @classmethod
    def solve_seconds(cls, plan: Plan, rates: Rates) -> float:
        """Return the time from the last row to the components: that of the eigenpairs of a symmetric matrix, or of a sketch."""
        return solve_seconds(plan, rates)

    def reason_chosen(self, plan: Plan) -> str:
        """Return why ``solver="auto"`` chose `plan`."""
        return "chosen because no other solver fits"


class ContinuableSolver(PCASolver):
    """Solver whose states can be continued and merged before they are solved."""

    refuses_state: ClassVar[Table] = {}
    """Traits of parameters with which it keeps no state, and what to do instead."""

    @abstractmethod
    def accumulated(self, plan: Plan, accumulator: AnyAccumulator | None = None) -> Readings[Accumulated]:
        """Ask for one reading of the rows and return its state, to be merged with states of `accumulator` if one is given."""

    @classmethod
    @abstractmethod
    def solve_model(cls, fitted: FittedState, work: str) -> PCAModel:
        """Return the model of a state whose products have the rounding of the type `work`."""

    @classmethod
    def state_bytes(cls, plan: Plan) -> int:
        """Return the size of a saved state: that of a triangle of features."""
        return 4 * plan.n_features**2

    @classmethod
    def all_eigenvalues(cls, fitted: FittedState) -> FloatArray | None:
        """Return all eigenvalues of the covariance, largest first, where that takes little memory and the state has them; else None."""
        return None

    @classmethod
    def mergeable(cls, parameters: Parameters) -> Parameters:
        """Return `parameters` as they are for states of several sources, which are merged."""
        return parameters

    def work_of(self, plan: Plan) -> str:
        """Return the data type whose rounding the products carry."""
        return plan.work_dtype

    @override
    def readings(self, plan: Plan) -> Readings[Fit]:
        """Read the rows once and return their principal components."""
        rows = yield from self.accumulated(plan)
        fitted = rows.fitted_state(self.source, self.parameters, plan)
        if self.removing is not None:
            fitted = replace(fitted, removed=self.removing.removed())
        del rows
        solving = self if self.analysis is None else self.analysis
        model = solving.solve_model(fitted, self.work_of(plan))
        return Fit(model=model, plan=plan, fitted_state=fitted)
