"""The page of a run of kernel PCA: spectrum, rows on the axes, landmarks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import streampca.formatting as words
from streampca.models.kernel import KernelModel
from streampca.runs.report import data_quality, projection, result, samples, what_ran
from streampca.runs.report.components import layout_of_run
from streampca.runs.report.parts import Picture, ReportTable
from streampca.runs.report.result import ReportedSpectrum, field
from streampca.runs.report.run_files import RunFiles, StoredArray
from streampca.runs.report.scores_by_labels import along_samples, classes_of_run
from streampca.typing import Json

_MOST_PICTURES = 48
_MOST_VALUES = 20


def compose(run: RunFiles, model: KernelModel) -> Json:
    """Return everything the template needs of the `run` of a kernel model."""
    spectrum = ReportedSpectrum(model.eigenvalues, np.clip(model.explained_variance_ratio, 0.0, None))
    layout = layout_of_run(run)
    scores = _scores(model, run.samples) if run.samples is not None else None
    drawn = samples.row_pictures(run, layout, scores)
    along = along_samples(run, spectrum)
    classes = classes_of_run(run, scores) if scores is not None else None
    common = what_ran.parts(run)
    return common | {
        "kicker": model.kind.title,
        "summary": _summary(run, model, spectrum),
        "tiles": _tiles(run, model, spectrum),
        "notes": what_ran.notes(run),
        "components_title": "The landmarks",
        "components": _landmarks(model, drawn),
        "spectrum": [replace(chart, title=_title(chart.title)) for chart in result.spectrum_charts(run, spectrum)],
        "scores": result.score_charts(spectrum, scores, classes) if scores is not None else (),
        "series": along.charts,
        "scores_note": f"{result.scores_note(run, scores)} {along.note}".strip(),
        "quality": data_quality.data_quality(run),
        "spectrum_table": _table(model, spectrum),
        "facts": (_kernel(model), *common["facts"]),
    }


def _title(title: str) -> str:
    return "Eigenvalues of the kernel matrix" if title.startswith("Variance") else title


def _scores(model: KernelModel, samples: StoredArray) -> projection.Scores:
    """Return the scores of the samples on the first two axes and the last."""
    axes = projection.axes_of(model.n_components)
    return projection.scores_by(
        lambda rows: (model.encode(rows)[:, list(axes)].astype(np.float64), np.zeros(len(rows))), samples, axes
    )


def _summary(run: RunFiles, model: KernelModel, spectrum: ReportedSpectrum) -> str:
    k, n = model.n_components, result.sample_count(run)
    sentence = f"{words.plural(k, 'component')} carr{'ies' if k == 1 else 'y'} {_carried(model, spectrum)} of the trace of the "
    sentence += f"kernel matrix of {words.plural(n, 'row')}"
    if model.method.startswith("nystrom"):
        sentence += f", seen through {words.plural(len(model.landmarks), 'landmark')}"
    passes = words.whole(field(run.manifest, "passes"))
    return sentence + (f"; computed out of core in {words.times(passes)} of the data." if passes else ".")


def _carried(model: KernelModel, spectrum: ReportedSpectrum) -> str:
    share = float(spectrum.ratios.sum())
    at_least = "at least " if model.certificate.kind == "statistical" and model.method == "nystrom" else ""
    return f"{at_least}{words.share(min(share, 1.0))}"


def _tiles(run: RunFiles, model: KernelModel, spectrum: ReportedSpectrum) -> tuple[result.Tile, ...]:
    rows, features, components, *others = result.tiles(run, spectrum, _carried(model, spectrum))
    name, count, note = components
    return (
        rows,
        features,
        ("Landmarks", words.count(len(model.landmarks)), words.clean(model.sampling, 40)),
        (name, count, note.replace("variance", "trace")),
        *others,
    )


def _landmarks(model: KernelModel, rows: samples.RowPictures | None) -> Json:
    m = len(model.landmarks)
    note = (
        f"Every row is compared with {words.plural(m, 'landmark')}, chosen by: {words.clean(model.sampling, 40)}."
        if model.method.startswith("nystrom")
        else f"Every row is compared with all {m:,} rows."
    )
    if rows is None:
        return {"note": note}
    chosen = np.unique(np.linspace(0, m - 1, min(m, _MOST_PICTURES)).astype(np.int64))
    drawn = []
    for i in chosen:
        name = (
            f"row {int(model.landmark_indices[i]):,}" if model.landmark_indices is not None else f"landmark {i + 1:,}"
        )
        uri = rows.picture(model.landmarks[i])
        drawn.append(Picture(uri, f"Landmark: {name}", name))
    left = f" {m - len(chosen):,} more are in the model." if m > len(chosen) else ""
    return {"pictures": drawn, "note": note + left}


def _table(model: KernelModel, spectrum: ReportedSpectrum) -> ReportTable:
    """Return the first eigenvalues in digits, with the upper ends of their intervals."""
    ends = model.certificate.eigenvalue_intervals or ((None, None),) * model.n_components
    together = np.cumsum(spectrum.ratios)
    rows = tuple(
        (
            f"{i + 1}",
            words.figure(float(value), 7),
            words.figure(ends[i][1], 4),
            spectrum.share(i),
            words.share(float(together[i])),
        )
        for i, value in enumerate(model.eigenvalues[:_MOST_VALUES])
    )
    k = model.n_components
    caption = f"First {_MOST_VALUES} of {k:,} eigenvalues" if k > _MOST_VALUES else "Eigenvalues"
    return ReportTable(caption, ("component", "eigenvalue", "at most", "share", "together"), rows)


def _kernel(model: KernelModel) -> words.Facts:
    certificate = model.certificate
    pairs = [
        ("kernel", words.clean(model.kernel, 400)),
        ("method", words.clean(model.method, 40).replace("_", " ")),
        ("landmarks", f"{len(model.landmarks):,}, {words.clean(model.sampling, 40)}"),
        ("directions kept of them", words.count(certificate.landmark_rank)),
        ("centred", "yes" if model.center else "no"),
        ("trace", words.figure(model.total, 6)),
        ("residual trace", words.figure(certificate.residual_trace, 4)),
        ("spectral error, estimated", words.figure(certificate.sigma, 4)),
        ("preimage", "kernel ridge" if model.preimage is not None else "not learned"),
    ]
    return words.facts("Kernel", pairs)
