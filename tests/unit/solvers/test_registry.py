"""What solvers take, and which of them keep a state that rows can be added to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from facade import MIB, SOLVERS, Parameters, Resources, fit_source, open_source
from stores import resealed

from streampca import PCA, load
from streampca.errors import MergeError, ModelError, NotAvailableError

CONTINUABLE = {"covariance": True, "gram": False, "qr": True, "sketch": True, "adaptive": False}
ROWS = np.random.default_rng(0).standard_normal((60, 20))


@pytest.mark.parametrize("solver", CONTINUABLE)
def test_fit_has_a_state_only_if_rows_can_be_added(solver: str, tmp_path: Path) -> None:
    pca = PCA(2, solver=solver).fit(ROWS)
    if not CONTINUABLE[solver]:
        with pytest.raises(MergeError, match="holds no state to add rows to"):
            pca.save(tmp_path / "model", state=True)
        return
    loaded = load(pca.save(tmp_path / "model", state=True))
    assert loaded.partial_fit(ROWS).n_samples_seen_ == 120


@pytest.mark.parametrize(
    ("solver", "missing"),
    [("gram", "drop_rows"), ("gram", "pairwise"), ("qr", "drop_rows"), ("qr", "mean"), ("qr", "pairwise")],
)
def test_missing_values_that_a_solver_does_not_take_are_refused_before_planning(solver: str, missing: str) -> None:
    with pytest.raises(NotAvailableError, match=f"'{solver}' does not take missing='{missing}'"):
        PCA(2, solver=solver, missing=missing).plan(ROWS)


def test_saved_state_of_an_unknown_solver_is_refused(tmp_path: Path) -> None:
    model = PCA(2).fit(ROWS).save(tmp_path / "model", state=True)
    resealed(model / "state", lambda attributes: attributes.update(solver="later"))
    with pytest.raises(ModelError, match="solver 'later' is not known"):
        load(model)


@pytest.mark.parametrize("like", ["sketch", "adaptive"])
def test_a_further_approximate_solver_is_a_class_and_its_place_in_the_registry(
    like: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    further = type("Further", (SOLVERS[like],), {"name": "further"})
    monkeypatch.setitem(SOLVERS, "further", further)
    source, parameters = open_source(ROWS), Parameters(2, solver=like, sketch_size=8)
    plan, known = (
        each(source, parameters).plan(Resources(4096 * MIB, 100 * MIB, 2)) for each in (further, SOLVERS[like])
    )
    assert plan.to_dict() == known.to_dict() | {"solver": "further"}
    assert type(plan).from_dict(plan.to_dict()).to_dict() == plan.to_dict()
    fits = [fit_source(source, parameters, each) for each in (plan, known)]
    np.testing.assert_array_equal(fits[0].model.components, fits[1].model.components)
