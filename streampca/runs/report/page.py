"""The page of a run: what its files hold, in one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import streampca.formatting as words
from streampca.errors import NotAvailableError
from streampca.models.certificate_sentences import carried_at_least
from streampca.models.certificates import ApproximateCertificate
from streampca.models.pca import Model
from streampca.runs.report import (
    analysis,
    approximate,
    component_rules,
    components,
    data_quality,
    figures,
    kernel,
    loadings,
    outliers,
    projection,
    result,
    samples,
    scores_by_labels,
    what_ran,
)
from streampca.runs.report.parts import Chart
from streampca.runs.report.run_files import FurtherRows, RunFiles, read_run
from streampca.runs.report.templates import write_page
from streampca.typing import Json

_REMOVED = "Pictures of rows are left out, because the model removes a part of each row before it is projected."

_NO_CHARTS = (
    'There are no charts on this page, because they need matplotlib: pip install "streampca[report]", and streampca report '
    "draws them from the files of this run."
)


def write_report(directory: Path, further: FurtherRows | None = None, model: Model | None = None) -> Path:
    """Write ``report.html`` of the run in `directory`, with `further` rows in the figure of rebuilt rows; return its path.

    Reads plan.json, manifest.json, model.zarr, or takes `model` for it where it is in memory already, and samples.zarr, a few rows at
    a time, and the scores where rows have labels that they are drawn by; where there are no samples, the page omits what needs them.
    Components that are saved in slabs of features stay on disk. The same files give the same bytes. An older page is replaced in one
    step, or not at all.

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
    run = read_run(directory, model)
    others: dict[str, Callable[[RunFiles, Any], Json]] = {"kernel": kernel.compose, "analysis": analysis.compose}
    compose = others.get(run.model.kind.page)
    page = _compose(run, further) if compose is None else compose(run, run.model)
    if further is not None and page.get("reconstruction") is None:
        raise NotAvailableError(
            f"{directory}: the page of this run has no rows that are rebuilt, so that none can be added: it is a run of another kind than PCA, "
            "without a report, with preprocess.remove, or with components on disk"
        )
    if not figures.can_draw():
        page |= {"spectrum": (), "scores": (), "series": (), "notes": [*page["notes"], _NO_CHARTS]}
    return write_page(directory, "page.html", page)


def _compose(run: RunFiles, further: FurtherRows | None) -> Json:
    """Return everything the template needs, each part computed and released before the next."""
    spectrum = result.spectrum_of(run)
    # Rows of components on disk are never read whole, and nothing is removed from samples.
    rows = None if run.in_slabs or run.removes else run.samples
    layout = components.layout_of_run(run)
    scores = projection.score(run, rows) if rows is not None else None
    drawn = samples.row_pictures(run, layout, scores)
    classes = scores_by_labels.classes_of_run(run, scores) if scores is not None else None
    along = scores_by_labels.along_samples(run, spectrum)
    certificate = run.model.certificate
    bounds = approximate.Bounds(certificate) if isinstance(certificate, ApproximateCertificate) else None
    carried = None if bounds is None else carried_at_least(bounds.certificate)
    intervals = None if bounds is None else approximate.interval_chart(run, bounds, spectrum)
    rotation = result.field(run.manifest, "result", "rotation", "method")
    charts: list[Chart] = []
    if scores is not None:
        charts += result.score_charts(spectrum, scores, classes)
        charts += loadings.biplot_charts(run, spectrum, layout, scores, classes)
    return what_ran.parts(run) | {
        "kicker": run.model.kind.title + ("" if rotation is None else f", rotated by {words.clean(rotation)}"),
        "summary": result.summary(run, spectrum, carried),
        "tiles": result.tiles(run, spectrum, carried),
        "notes": [*what_ran.notes(run), *([_REMOVED] if run.removes else [])],
        "components_title": "The components",
        "components": components.components(run, spectrum, layout),
        "loadings": loadings.loadings(run, layout),
        "spectrum": result.spectrum_charts(run, spectrum, intervals, carried),
        "component_count": component_rules.component_count(run),
        "accuracy": None if bounds is None else approximate.accuracy(run, bounds, spectrum),
        "scores": charts,
        "series": along.charts,
        "scores_note": f"{result.scores_note(run, scores)} {along.note}".strip(),
        "reconstruction": None if scores is None else samples.reconstruction(run, scores, layout, drawn, further),
        "outliers": outliers.outliers(run, layout, drawn),
        "quality": data_quality.data_quality(run),
        "spectrum_table": what_ran.spectrum_table(spectrum),
    }
