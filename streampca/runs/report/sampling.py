"""Eigenvalues with their sampling errors, beside the bounds of their numerical errors."""

from __future__ import annotations

from functools import partial

import numpy as np

import streampca.formatting as words
import streampca.plotting as plotting
from streampca.errors import ModelError
from streampca.models.sampling_errors import SamplingErrors
from streampca.runs.report import figures
from streampca.runs.report.parts import Chart
from streampca.runs.report.run_files import RunFiles
from streampca.typing import FloatArray


def sampling_of(run: RunFiles, n_components: int) -> SamplingErrors | None:
    """Return the sampling errors in the manifest, None where there are none or they are damaged."""
    result = run.manifest.get("result")
    written = result.get("sampling_errors") if isinstance(result, dict) else None
    try:
        return SamplingErrors.from_dict(written, n_components) if isinstance(written, dict) else None
    except ModelError:
        return None


def sampling_chart(
    values: FloatArray, errors: SamplingErrors, numerical: tuple[FloatArray, FloatArray] | None = None
) -> Chart:
    """Return the eigenvalues with error bars; `numerical` are the ends of the intervals of the certificate, None for an exact answer."""
    groups = errors.degenerate_groups
    draw = partial(plotting.scree, values=values, bounds=numerical, sampling=errors.interval(0.95).T, mixed=groups)
    k, widest = len(values), float(np.max(errors.eigenvalues / np.maximum(values, np.finfo(float).tiny), initial=0.0))
    largest = max((last - first + 1 for first, last in groups), default=0)
    caption = f"Standard errors by leaving out each of {errors.n_blocks} groups of rows; the largest is {words.share(widest)} of its eigenvalue."
    if groups:
        named = ", ".join(f"{first + 1:,} to {last + 1:,}" for first, last in groups[:6]) + (
            " …" if len(groups) > 6 else ""
        )
        caption += f" Error bars by North's rule overlap for components {named}: these are mixtures of those of the population."
    alt = f"Chart of {words.plural(k, 'eigenvalue')} with error bars" + (
        f"; {largest} neighbours overlap." if groups else "."
    )
    alt += f" The eigenvalues go from {words.figure(values[0])} down to {words.figure(values[-1])}; the largest standard error is {words.share(widest)} of its eigenvalue."
    return Chart(
        "Variance along each axis, and its sampling error",
        figures.inline("intervals", draw),
        alt,
        caption,
    )
