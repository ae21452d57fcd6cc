"""The page of a run: what its files hold, in one self-contained HTML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from streampca.runs.report import approximate, pictures, projection, result, what_ran, words
from streampca.runs.report.parts import Components, Page
from streampca.runs.report.run_files import RunFiles, read_run
from streampca.storage.files import write_atomically

NAME = "report.html"
_SLAB_COMPONENTS, _SLAB_LOADINGS = 3, 12


def write_report(directory: Path) -> Path:
    """Write ``report.html`` of the run in `directory`, and return its path.

    Reads plan.json, manifest.json, model.zarr and samples.zarr, a few rows at a time, never the scores; where there
    are no samples, the page goes without what needs them. The same files give the same bytes. An older page is
    replaced in one step, or not at all.

    Raises
    ------
    DataError
        The directory is not that of a run; ModelError when its model is missing or damaged.
    OutputError
        The page cannot be written; NoSpaceError when there is no room for it.
    """
    directory = Path(directory)
    html = _render(_page_of(directory))
    target = directory / NAME
    write_atomically(target, [html.encode("utf-8")])
    return target


def _page_of(directory: Path) -> Page:
    from streampca.models.persistence.models import is_kernel_model  # here, because it imports zarr

    if is_kernel_model(directory / "model.zarr"):
        from streampca.runs.report import kernel

        return kernel.compose(directory)
    return _compose(read_run(directory))


def _compose(run: RunFiles) -> Page:
    """Return everything the template needs, each part computed and released before the next."""
    spectrum = result.spectrum_of(run)
    if run.slab is not None:  # rows of the components are never read whole
        run = replace(run, samples=None)
    shape = pictures.picture_shape(result.field(run.manifest, "source", "feature_shape"), run.n_features)
    scores = projection.score(run, run.samples) if run.samples is not None else None
    limits = result.value_limits(run, scores) if scores is not None and shape is not None else (0.0, 1.0)
    bounds = approximate.bounds_of(run)
    carried = None if bounds is None else approximate.carried(bounds, spectrum)
    return Page(
        name=words.clean(result.field(run.manifest, "name") or run.name, 120),
        summary=result.summary(run, spectrum, carried),
        byline=what_ran.byline(run),
        tiles=result.tiles(run, spectrum, carried),
        warnings=what_ran.warnings(run),
        notes=what_ran.notes(run),
        components=result.components(run, spectrum, shape) if run.slab is None else _components_in_slabs(run, spectrum),
        spectrum=result.spectrum_charts(
            run, spectrum, None if bounds is None else approximate.interval_chart(bounds, spectrum), carried
        ),
        scores=result.score_charts(spectrum, scores) if scores is not None else (),
        map=result.sample_map(run, scores, shape, limits) if scores is not None else None,
        scores_note=result.scores_note(run, scores),
        reconstruction=result.reconstruction(run, scores, shape, limits) if scores is not None else None,
        memory=what_ran.memory_bar(run),
        time=what_ran.time_bar(run),
        accuracy=None if bounds is None else approximate.accuracy(run, bounds, spectrum),
        certificate=what_ran.certificate(run),
        comparison=what_ran.comparison(run),
        spectrum_table=what_ran.spectrum_table(spectrum),
        facts=what_ran.facts(run),
    )


def _components_in_slabs(run: RunFiles, spectrum: result.ReportedSpectrum) -> Components:
    """Return the largest loadings of the first components, from one sweep over the slabs, and what is left out."""
    k, d, width = run.n_components, run.n_features, run.slab or run.n_features
    n = min(_SLAB_COMPONENTS, k)
    places, values = np.empty((n, 0), dtype=np.int64), np.empty((n, 0))
    for start in range(0, d, width):
        columns = slice(start, min(start + width, d))
        slab = np.nan_to_num(run.components[slice(0, n), columns])
        places = np.hstack([places, np.broadcast_to(np.arange(columns.start, columns.stop), slab.shape)])
        values = np.hstack([values, slab])
        order = np.stack([result.largest(row, _SLAB_LOADINGS) for row in values])
        places, values = np.take_along_axis(places, order, 1), np.take_along_axis(values, order, 1)
    note = "The features that weigh most in each of the first components. The sign of a component as a whole is a matter of "
    note += f"choice; signs within it are not. The components take {words.size(8 * k * d)} and are stored in slabs of features, so "
    note += "pictures of them, and rows on them or rebuilt from them, are left out."
    return Components((), tuple(result.loadings(run, spectrum, i, places[i], values[i]) for i in range(n)), note)


def _render(page: Page) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("streampca.runs", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(page=page)
