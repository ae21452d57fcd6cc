"""Planning and running fits of opened sources: what `fit` shares with configured runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from streampca.execution.checkpoint.resume import fit_with_checkpoint
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.planning.plan import Plan
from streampca.solvers.base import Solver
from streampca.solvers.result import FitResult
from streampca.sources import Source

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

AnyParameters = TypeVar("AnyParameters", bound="DataclassInstance")
AnyFit = TypeVar("AnyFit", bound=FitResult)


class Fitting(Generic[AnyParameters, AnyFit]):
    """An estimator that plans a fit and runs it by one of its solvers."""

    _solvers: ClassVar[Mapping[str, Solver[Any, Any, Any]]]
    """Its solvers by name."""

    checkpoint: Any
    progress: Any

    def _plan_source(
        self,
        source: Source,
        parameters: AnyParameters,
        *,
        scores: bool = False,
        report: bool = False,
        client: Any = None,
        alternatives: bool = False,
        probe: bool = False,
    ) -> Plan:
        """Return the plan of a fit of `source`."""
        raise NotImplementedError

    def _fit_source(
        self,
        source: Source,
        parameters: AnyParameters,
        plan: Plan | None = None,
        *,
        keep_rows: int = 0,
        progress: ProgressCallback | None = None,
    ) -> AnyFit:
        """Return the fit of `source` by `plan`; None plans it first."""
        raise NotImplementedError

    def _fit_or_resume(self, source: Source, parameters: AnyParameters) -> AnyFit:
        """Return the fit of `source`, resumed from `checkpoint` if that is a directory with the checkpoint of this fit."""
        if self.checkpoint is None:
            return self._fit_source(source, parameters, progress=self.progress)
        return fit_with_checkpoint(
            Path(self.checkpoint),
            source,
            parameters,
            plan=lambda: self._plan_source(source, parameters, client=active_client(source)),
            fit=lambda plan: self._fit_source(source, parameters, plan, progress=self.progress),
        )
