"""States of fits: continuing, merging, subtracting, and solving on demand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streampca.accumulators import RowSample, RowsState, Sketch
from streampca.errors import MergeError, NotAvailableError
from streampca.execution.distributed.active_client import active_client
from streampca.execution.progress import ProgressCallback
from streampca.execution.readings import Meters, Reading, Readings, relayed, run_fit, with_beside
from streampca.labels import Labels
from streampca.linalg.eigen import relative_precision
from streampca.linalg.selection import NComponents, is_count
from streampca.models import certificate_sentences as sentences
from streampca.models.pca import PCAModel
from streampca.models.rounding import with_integer_rounding
from streampca.models.state import AGREE, FittedState
from streampca.parameters import Parameters
from streampca.planning.columns import with_columns
from streampca.planning.plan import Plan
from streampca.solvers.analyses import Analysis
from streampca.solvers.choosing import CONTINUABLE, obstacle_to_state
from streampca.solvers.fit import plan_fit
from streampca.solvers.fitted_steps import fit_steps
from streampca.solvers.on_device import on_device_of
from streampca.sources.alignment import places_named
from streampca.sources.base import ReadCount, Source
from streampca.sources.files.records import Fragment, repeated
from streampca.system.process import one_blas_thread
from streampca.typing import Json


@dataclass(frozen=True)
class Batch:
    """Rows that were read to be added to others, or taken out of them."""

    state: FittedState
    """Their state, unsolved."""
    plan: Plan
    """How they were read."""
    count: ReadCount
    """What reading them cost."""
    samples: RowsState | None = None
    """Rows copied out of the stream, where asked for."""


def accumulate(
    source: Source, parameters: Parameters, fitted: FittedState | None = None, progress: ProgressCallback | None = None
) -> Batch:
    """Read `source`, of at least one row, once; return its state, unsolved: see `readings_of_batch`."""
    return run_fit(readings_of_batch(source, parameters, fitted), active_client(source), progress)


def readings_of_batch(
    source: Source, parameters: Parameters, fitted: FittedState | None = None, *, keep_rows: int = 0
) -> Readings[Batch]:
    """Ask for one reading of `source`, of at least one row; return its state, unsolved.

    `keep_rows` is the number of rows to copy out of the stream.

    Raises
    ------
    NotAvailableError
        If there is an `obstacle_to_state`.
    MergeError
        If the rows cannot be added to those of `fitted`; nothing is read then.
    """
    if obstacle := obstacle_to_state(parameters):
        raise NotAvailableError(obstacle)
    if fitted is not None and source.unfitted:
        raise NotAvailableError(
            f"{source.description} is normalised by figures of all its rows, which differ from those of earlier rows: give "
            "numbers to normalize (target_sum) instead of words, or fit all rows again"
        )
    solver = "covariance" if parameters.solver == "auto" else parameters.solver
    if fitted is not None and parameters.scale == "block" and source.labels is None:
        parameters = replace(
            parameters, scale=fitted.parameters.scale
        )  # rows without labels have the variables of the fit
    with places_named(source):
        parameters = CONTINUABLE[solver].mergeable(with_columns(replace(parameters, sampling_errors=0), source))
        # The batch may be smaller than what is wanted of all rows together, so it is planned for what it can give.
        n_components = (
            None if isinstance(parameters.n_components, str) else capped(parameters.n_components, min(source.shape))
        )
        wanted = replace(parameters, solver=solver, n_components=n_components, ddof=0, max_passes=1)
        plan = plan_fit(source, wanted, client=active_client(source))
        if fitted is not None:
            require_parameters(fitted, parameters, solver, plan.work_dtype, "joined")
        accumulator = None if fitted is None else fitted.accumulator
        own = on_device_of(parameters, CONTINUABLE[solver](source, parameters).accumulated(plan, accumulator))
        sample = (RowSample(source.shape[0], keep_rows, str(source.dtype)),) if keep_rows else ()
        meters = Meters()
        yield from relayed(fit_steps(source, plan), meters)
        rows, copied = yield from relayed(with_beside(own, Reading(source, sample, plan)), meters)
        state = rows.fitted_state(source, parameters, plan)
        return Batch(state, plan, meters.count, copied[0] if copied else None)


def require_parameters(fitted: FittedState, parameters: Parameters, solver: str, work_dtype: str, doing: str) -> None:
    """Raise `MergeError`, naming what differs, unless `fitted` was made with these parameters."""
    pairs = [(name, getattr(fitted.parameters, name), getattr(parameters, name)) for name in AGREE]
    pairs += [("solver", fitted.solver, solver), ("the precision of products", fitted.work_dtype, work_dtype)]
    for name, one, other in pairs:
        if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
            same = one is not None and other is not None and np.array_equal(one, other)
        else:
            same = one == other
        if not same:
            raise MergeError(
                f"{name} is {one!r} in the first and {other!r} in the second: such states cannot be {doing}; "
                "fit them with the same parameters"
            )


def require_same(first: FittedState, second: FittedState, doing: str) -> None:
    """Raise `MergeError`, naming what differs, unless the two were made in the same way."""
    require_parameters(first, second.parameters, second.solver, second.work_dtype, doing)
    for name in ("n_features", "accumulator"):
        one, other = getattr(first, name), getattr(second, name)
        if one != other and isinstance(one, Sketch) and isinstance(other, Sketch) and one.key != other.key:
            raise MergeError(
                f"the test matrix of the first sketch is {one.key} and that of the second {other.key}: such states cannot be "
                f"{doing}; fit both with pilot=0 and the same sketch, sketch_size, n_hashes and random_state"
            )
        if one != other:
            raise MergeError(
                f"{name} is {one!r} in the first and {other!r} in the second: such states cannot be {doing}"
            )
    if first.labels is not None and second.labels is not None:
        difference = first.labels.difference(second.labels)
        if difference is not None:
            raise MergeError(f"the second has {difference}: such states cannot be {doing}")


def require_new(fragments: Sequence[Fragment], earlier: Sequence[Fragment]) -> None:
    """Raise `MergeError`, naming the file, if the rows of one of `fragments` are already in a state of the files `earlier`."""
    pair = repeated(fragments, earlier)
    if pair is None:
        return
    fragment, other = pair
    same = "" if fragment.name == other.name else f", as {other.name}, which has the same content"
    raise MergeError(
        f"{fragment.name} is already among the rows of the model{same}: its {fragment.n_rows:,} rows would count twice; leave it "
        "out, or give its rows as an array (sp.open(…).to_dask()) if they are meant to count again"
    )


def continued(fitted: FittedState, more: FittedState) -> FittedState:
    """Return `fitted` with the rows of `more` added, in the memory of `fitted`."""
    require_same(fitted, more, "joined")
    with one_blas_thread():
        state = fitted.accumulator.absorb(fitted.state, more.state)
    return replace(
        fitted,
        state=state,
        source=_source_of_rows(fitted, more),
        exact=fitted.exact and more.exact,
        weighted=fitted.weighted or more.weighted,
        n_left_out=fitted.n_left_out + more.n_left_out,
        labels=_labels_of_rows([fitted, more], state.n_samples),
        fragments=fitted.fragments + more.fragments,
        stored=None,
    )


def merged(states: Sequence[FittedState]) -> FittedState:
    """Return the state of all rows behind `states`, none of which is changed; raise `MergeError` if files are in two of them."""
    first, fragments = states[0], states[0].fragments
    for each in states[1:]:
        require_same(first, each, "merged")
        require_new(each.fragments, fragments)
        fragments += each.fragments
    with one_blas_thread():
        state = first.accumulator.merge([each.state for each in states])
    n_samples = sum(each.state.n_samples for each in states)
    source = first.source | {"shape": [n_samples, first.n_features], "fingerprint": None}
    source["path"] = _paths([each.source for each in states])
    tables = [each.source.get("tables") for each in states]
    if all(tables):
        source["tables"] = [sides[0] | {"path": _paths(sides)} for sides in zip(*tables, strict=True)]
    return replace(
        first,
        state=state,
        source=source,
        error_growth=max(each.error_growth for each in states),
        exact=all(each.exact for each in states),
        weighted=any(each.weighted for each in states),
        n_left_out=sum(each.n_left_out for each in states),
        labels=_labels_of_rows(states, n_samples),
        fragments=fragments,
        stored=None,
    )


def _paths(sources: Sequence[Json]) -> str:
    """Return the different paths of descriptions of sources."""
    return ", ".join(dict.fromkeys(str(each.get("path")) for each in sources))


def subtracted(fitted: FittedState, less: FittedState) -> FittedState:
    """Return `fitted` without the rows of `less`, which are among them, in the memory of `fitted`."""
    require_same(fitted, less, "subtracted")
    precision = relative_precision(_work(fitted), fitted.n_features)
    with one_blas_thread():
        state, error_growth = fitted.accumulator.subtract(
            fitted.state, less.state, precision=fitted.error_growth * precision
        )
    error_growth = fitted.error_growth * error_growth if state.n_samples else 1.0
    removed = {fragment.fingerprint for fragment in less.fragments}
    return replace(
        fitted,
        state=state,
        source=_source_of_rows(fitted, less, -1),
        error_growth=error_growth,
        exact=False,
        n_left_out=max(0, fitted.n_left_out - less.n_left_out),
        labels=_labels_of_rows([fitted, less], state.n_samples),
        fragments=tuple(each for each in fitted.fragments if each.fingerprint not in removed),
        stored=None,
    )


def solve(fitted: FittedState, analysis: Analysis | None = None) -> PCAModel:
    """Return the model of all rows behind `fitted`; while they are few, it has as many components as they can give.

    `analysis` is what is solved in place of principal components.
    """
    limit = min(fitted.state.n_samples, fitted.n_features)
    parameters = replace(fitted.parameters, n_components=capped(fitted.parameters.n_components, limit))
    with one_blas_thread():
        solving: Any = CONTINUABLE[fitted.solver] if analysis is None else analysis
        model = solving.solve_model(replace(fitted, parameters=parameters), _work(fitted))
    model = with_integer_rounding(replace(model, labels=fitted.labels))
    if fitted.error_growth == 1.0 or analysis is not None:
        return model
    trusted = fitted.error_growth * model.certificate.trusted_above
    values = model.explained_variance
    rank = int(np.count_nonzero(values > trusted * values[0]))
    clause = sentences.rows_taken_out(fitted.error_growth)
    certificate = model.certificate.saying(clause, trusted_above=trusted, numerical_rank=rank)
    return replace(model, numerical_rank=rank, certificate=certificate)


def with_eigenvalues(model: PCAModel, fitted: FittedState) -> PCAModel:
    """Return `model` with all eigenvalues of the covariance matrix, where it is small enough for LAPACK."""
    if model.eigenvalues is not None:
        return model
    with one_blas_thread():
        return replace(model, eigenvalues=CONTINUABLE[fitted.solver].all_eigenvalues(fitted))


def _work(fitted: FittedState) -> str:
    """Return the type whose rounding the state carries."""
    return "float64" if fitted.exact else fitted.work_dtype


def capped(n_components: NComponents, limit: int) -> NComponents:
    """Return `n_components`, a count no larger than `limit`."""
    return min(int(n_components), limit) if is_count(n_components) else n_components


def _labels_of_rows(states: Sequence[FittedState], n_samples: int) -> Labels | None:
    """Return the labels of the first state that has some, for `n_samples` rows."""
    labels = next((each.labels for each in states if each.labels is not None), None)
    return None if labels is None else labels.resized(n_samples)


def _source_of_rows(fitted: FittedState, other: FittedState, sign: int = 1) -> Json:
    """Return the description of the first source with the number of rows there are now."""
    n_samples = fitted.state.n_samples + sign * other.state.n_samples
    return fitted.source | {"shape": [n_samples, fitted.n_features], "fingerprint": None}
