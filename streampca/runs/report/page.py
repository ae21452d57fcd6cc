"""The page of a run: what its files hold, in one self-contained HTML file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from streampca.errors import NotAvailableError
from streampca.runs.report import (
    approximate,
    component_rules,
    components,
    data_quality,
    figures,
    loadings,
    outliers,
    projection,
    result,
    samples,
    scores_by_labels,
    what_ran,
    words,
)
from streampca.runs.report.parts import Page
from streampca.runs.report.run_files import FurtherRows, RunFiles, read_run
from streampca.runs.report.templates import environment, helpers
from streampca.storage.files import write_atomically

NAME = "report.html"
_REMOVED = "Pictures of rows are left out, because the model removes a part of each row before it is projected."

_NO_CHARTS = (
    'There are no charts on this page, because they need matplotlib: pip install "streampca[report]", and streampca report '
    "draws them from the files of this run."
)


def write_report(directory: Path, further: FurtherRows | None = None) -> Path:
    """Write ``report.html`` of the run in `directory`, with `further` rows in the figure of rebuilt rows; return its path.

    Reads plan.json, manifest.json, model.zarr and samples.zarr, a few rows at a time, and the scores where rows have
    labels that they are drawn by; where there are no samples, the page omits what needs them. The same files give the same bytes. An older page is
    replaced in one step, or not at all.

    Raises
    ------
    DataError
        The directory is not that of a run; ModelError when its model is missing or damaged.
    NotAvailableError
        There are `further` rows, and the page has no figure of rebuilt rows.
    OutputError
        The page cannot be written; NoSpaceError when there is no room for it.
    """
    directory = Path(directory)
    page = _with_what_can_be_drawn(_page_of(directory, further))
    if further is not None and page.reconstruction is None:
        raise NotAvailableError(
            f"{directory}: the page of this run has no rows that are rebuilt, so that none can be added: it is a run of kernel PCA, "
            "without a report, with preprocess.remove, or with components on disk"
        )
    html = environment().get_template("page.html").render(page=page, **helpers())
    target = directory / NAME
    write_atomically(target, [html.encode("utf-8")])
    return target


def _with_what_can_be_drawn(page: Page) -> Page:
    """Return `page`, or where there is nothing to draw charts with, the page without them and with a note that says so."""
    if figures.can_draw():
        return page
    return replace(page, spectrum=(), scores=(), series=(), notes=(*page.notes, _NO_CHARTS))


def _page_of(directory: Path, further: FurtherRows | None) -> Page:
    from streampca.models.persistence.models import is_kernel_model  # here, because it imports zarr

    if is_kernel_model(directory / "model.zarr"):
        from streampca.runs.report import kernel

        return kernel.compose(directory)
    return _compose(read_run(directory), further)


def _compose(run: RunFiles, further: FurtherRows | None) -> Page:
    """Return everything the template needs, each part computed and released before the next."""
    spectrum = result.spectrum_of(run)
    if (
        run.slab is not None or run.removes
    ):  # rows of the components are never read whole; nothing is removed from samples
        run = replace(run, samples=None)
    layout = components.layout_of_run(run)
    scores = projection.score(run, run.samples) if run.samples is not None else None
    drawn = samples.row_pictures(run, layout, scores)
    classes = scores_by_labels.classes_of_run(run, scores) if scores is not None else None
    along = scores_by_labels.along_samples(run, spectrum)
    bounds = approximate.bounds_of(run)
    carried = None if bounds is None else approximate.carried(bounds, spectrum)
    return Page(
        name=words.clean(result.field(run.manifest, "name") or run.name, 120),
        summary=result.summary(run, spectrum, carried),
        byline=what_ran.byline(run),
        tiles=result.tiles(run, spectrum, carried),
        warnings=what_ran.warnings(run),
        notes=(*what_ran.notes(run), *((_REMOVED,) if run.removes else ())),
        components=components.components(run, spectrum, layout),
        spectrum=result.spectrum_charts(
            run, spectrum, None if bounds is None else approximate.interval_chart(run, bounds, spectrum), carried
        ),
        scores=(
            *result.score_charts(spectrum, scores, classes),
            *loadings.biplot_charts(run, spectrum, layout, scores, classes),
        )
        if scores is not None
        else (),
        series=along.series,
        score_fields=along.fields,
        scores_note=f"{result.scores_note(run, scores)} {along.note}".strip(),
        reconstruction=samples.reconstruction(run, scores, layout, drawn, further) if scores is not None else None,
        outliers=outliers.outliers(run, layout, drawn),
        quality=data_quality.data_quality(run),
        memory=what_ran.memory_bar(run),
        time=what_ran.time_bar(run),
        accuracy=None if bounds is None else approximate.accuracy(run, bounds, spectrum),
        certificate=what_ran.certificate(run),
        comparison=what_ran.comparison(run),
        spectrum_table=what_ran.spectrum_table(spectrum),
        facts=what_ran.facts(run),
        component_count=component_rules.component_count(run),
        loadings=loadings.loadings(run, layout),
    )
