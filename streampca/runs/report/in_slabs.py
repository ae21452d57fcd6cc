"""What the page shows of components that are stored in slabs of features, because they are too large to read rows of."""

from __future__ import annotations

import numpy as np

from streampca.runs.report import words
from streampca.runs.report.parts import Components
from streampca.runs.report.result import ReportedSpectrum, largest, loadings
from streampca.runs.report.run_files import RunFiles

_COMPONENTS, _LOADINGS = 3, 12


def components(run: RunFiles, spectrum: ReportedSpectrum) -> Components:
    """Return the largest loadings of the first components, found in one sweep over the slabs, and what is left out."""
    k, d, width = run.n_components, run.n_features, run.slab or run.n_features
    n = min(_COMPONENTS, k)
    places, values = np.empty((n, 0), dtype=np.int64), np.empty((n, 0))
    for start in range(0, d, width):
        part = slice(start, min(start + width, d))
        slab = np.nan_to_num(run.components[slice(0, n), part])
        places = np.hstack([places, np.broadcast_to(np.arange(part.start, part.stop), slab.shape)])
        values = np.hstack([values, slab])
        kept = np.stack([largest(row, _LOADINGS) for row in values])
        places, values = np.take_along_axis(places, kept, 1), np.take_along_axis(values, kept, 1)
    note = "The features that weigh most in each of the first components. The sign of a component as a whole is a matter of "
    note += f"choice; signs within it are not. The components take {words.size(8 * k * d)} and are stored in slabs of features, so "
    note += "pictures of them, and rows on them or rebuilt from them, are left out."
    return Components((), tuple(loadings(run, spectrum, i, places[i], values[i]) for i in range(n)), note)
