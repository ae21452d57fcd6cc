"""The registries of solvers and kernel methods."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from streampca import PCA, load
from streampca.errors import ModelError, NotAvailableError
from streampca.models.persistence.state import write_state
from streampca.parameters import Parameters
from streampca.parameters.choices import Method, Solver
from streampca.solvers.fit import fit, plan_fit
from streampca.solvers.kernel import METHODS
from streampca.solvers.registry import CONTINUABLE, SOLVERS
from streampca.sources import open_source


def test_choices_of_solver_are_the_registered_solvers() -> None:
    assert set(get_args(Solver)) == {"auto", *SOLVERS}


def test_choices_of_method_are_the_registered_methods() -> None:
    assert set(get_args(Method)) == {"auto", *METHODS}


@pytest.mark.parametrize("solver", SOLVERS)
def test_fit_has_a_state_only_if_its_solver_is_continuable(solver: str) -> None:
    source, parameters = open_source(np.random.default_rng(0).standard_normal((60, 20))), Parameters(2, solver=solver)
    fitted = fit(source, parameters).fitted_state
    assert (fitted is not None) == (solver in CONTINUABLE)


@pytest.mark.parametrize("solver", SOLVERS)
def test_missing_values_that_a_solver_does_not_take_are_refused_before_planning(solver: str) -> None:
    source = open_source(np.zeros((60, 20)))
    for missing in {"error", "drop_rows", "mean", "pairwise"} - set(SOLVERS[solver].missing):
        with pytest.raises(NotAvailableError, match=f"'{solver}' does not take missing='{missing}'"):
            plan_fit(source, Parameters(2, solver=solver, missing=missing))


def test_saved_state_of_an_unknown_solver_is_refused(tmp_path: Path) -> None:
    pca = PCA(2).fit(np.random.default_rng(0).standard_normal((60, 20)))
    pca.save(tmp_path / "model")
    assert pca._fitted_state is not None
    write_state(replace(pca._fitted_state, solver="later"), tmp_path / "model")
    with pytest.raises(ModelError, match="solver 'later' is not known"):
        load(tmp_path / "model")
