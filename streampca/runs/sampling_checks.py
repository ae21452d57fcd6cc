"""Check of the sampling errors of a run against those of the scores that are measured again."""

from __future__ import annotations

import numpy as np

from streampca.accumulators import ByGroup, GroupStates
from streampca.accumulators.score_groups import GroupMoments
from streampca.linalg.scaling import Scaling
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.models.sampling_errors import SamplingErrors
from streampca.planning.covariance_accumulators import general_form
from streampca.runs.checks import Check, close
from streampca.solvers.sampling_figures import errors_of
from streampca.solvers.sampling_groups import errors_of_groups

_ALLOWED = 1e-3
"""Standard errors are compared to three digits, which rounding of the scores leaves them."""
_LEAST_GAP = 1e-3
"""Angles are compared where eigenvalues are farther apart, relative to the first: they grow with the inverse of the gap."""


def sampling_checks(model: PCAModel | KernelModel, moments: GroupMoments, scaling: Scaling) -> list[Check]:
    """Compare the recorded sampling errors with those of `moments`; figures are those of the component that differs most.

    Components without variance are left out, and so are, for the exact method of kernel PCA, angles and shares, for which the fit knew
    more than scores tell.
    """
    recorded = model.sampling_errors
    return [] if recorded is None else _compared(model, recorded, errors_of(model, moments, "reading", scaling))


def sampling_group_checks(model: PCAModel, accumulator: ByGroup, scaling: Scaling, state: GroupStates) -> list[Check]:
    """Compare the recorded sampling errors with those of the measured covariances of the groups."""
    recorded = model.sampling_errors
    if recorded is None:
        return []
    forms = [general_form(accumulator.inner, group)[1] for group in state.groups]
    return _compared(model, recorded, errors_of_groups(model, accumulator.grid(len(model.mean)), forms, scaling))


def _compared(model: PCAModel | KernelModel, recorded: SamplingErrors, measured: SamplingErrors) -> list[Check]:
    """Return the checks of all figures."""
    values = recorded.estimates
    gaps = np.minimum(np.abs(np.diff(values, prepend=np.inf)), np.abs(np.diff(values, append=np.inf)))
    told = values > 1e-6 * values[0]
    names = ["eigenvalues", "north"] + ([] if recorded.method == "groups" else ["effective_n_samples"])
    names += [] if isinstance(model, KernelModel) and recorded.method == "known scores" else ["shares", "angles"]
    checks = []
    for name in names:
        before, after = getattr(recorded, name), getattr(measured, name)
        chosen = np.flatnonzero(told & ((name != "angles") | (gaps > _LEAST_GAP * values[0])))
        if not len(chosen):
            continue
        worst = chosen[np.abs(before - after)[chosen].argmax()]
        note = f"component {worst + 1}, the worst, relative to the largest"
        scale = float(before[chosen].max())
        checks.append(close(f"sampling errors: {name}", before[worst], after[worst], scale, _ALLOWED, note))
    return checks
