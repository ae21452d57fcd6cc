"""One page of text about a fit: components with their errors, reads, memory, certificate and warnings."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

import streampca.formatting as words
from streampca.linalg.component_rules import RULES
from streampca.models import certificate_sentences as sentences
from streampca.models.analysis import AnalysisModel
from streampca.models.certificates import ApproximateCertificate, KernelCertificate
from streampca.models.pca import Model
from streampca.planning.plan import Plan

_WIDTH = 80
_INDENT = 13  # of `lines_as_text`
_MOST_ROWS = 12
_MOST_WARNINGS, _MOST_SENTENCE = 3, 600


@dataclass(frozen=True, repr=False)
class Summary:
    """One-page summary of a fit, as `summary` of a fitted estimator returns it: ``print`` writes text, and notebooks show a table.

    The text is at most 80 columns wide. If numbers are long, it leaves out the columns ``cumulative`` and
    ``sampling``, which `table` keeps.
    """

    title: str
    """Estimator, solver, and the number of components and rows."""
    table: tuple[tuple[str, ...], ...]
    """Cells of the table of components, or of groups; the first row holds the headings."""
    left_out: int
    """Rows of the table that are not shown."""
    lines: tuple[tuple[str, str], ...]
    """Names and texts of the lines below the table: ``data``, ``read``, ``memory``, ``accuracy``, ``warning``, …."""

    def __repr__(self) -> str:
        columns = [*zip(*self.table, strict=True)]
        widths = [max(map(len, column)) for column in columns]
        for name in ("cumulative", "sampling"):  # where numbers are long
            if sum(widths) + 2 * len(widths) - 2 > _WIDTH and name in self.table[0]:
                place = [column[0] for column in columns].index(name)
                del columns[place], widths[place]
        padded = ([f"{cell:{'>' if i else '<'}{widths[i]}}" for cell in column] for i, column in enumerate(columns))
        shown = [*map("  ".join, zip(*padded, strict=True))]
        more = [f"… and {self.left_out:,} more"] if self.left_out else []
        wrapped = [
            (name, textwrap.fill(text, _WIDTH - _INDENT).replace("\n", "\n" + " " * _INDENT))
            for name, text in self.lines
        ]
        return "\n".join([self.title, "", *shown, *more, "", words.lines_as_text(wrapped)])

    def _repr_html_(self) -> str:
        head, *rows = ("".join(f"<td>{escape(words.clean(cell))}</td>" for cell in row) for row in self.table)
        more = f"<p>… and {self.left_out:,} more</p>" if self.left_out else ""
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{head.replace('td>', 'th>')}</tr></thead><tbody>{body}</tbody></table>"
        return f"<p><b>{escape(words.clean(self.title))}</b></p>{table}{more}{words.lines_as_html(self.lines)}"


def summary_of(estimator: Any) -> Summary:
    """Return the summary of a fitted estimator from its model, and from what is known of its fit."""
    model: Model = estimator._model
    known = vars(getattr(estimator, "pca_", estimator))  # a rotation was fitted by its PCA
    solver = known.get("solver_") or getattr(model, "method", None)
    rotation = getattr(model, "rotated_by", None)
    turned = f", {rotation} rotation" if rotation else ""
    k = len(model.spectrum)
    title = f"{type(estimator).__name__}{f', solver {solver}' if solver else ''}{turned}: "
    first = getattr(model, "n_first", None)
    features = f"({first:,} + {model.n_features - first:,})" if first else f"{model.n_features:,}"
    title += f"{words.plural(k, model.kind.noun)} of {model.n_samples:,} x {features}"
    shown = min(k, _MOST_ROWS)
    lines = (*_of_the_fit(model, known), *_of_the_answer(model, estimator, known.get("plan_")))
    return Summary(title, tuple(_table(model, shown)), k - shown, lines)


def summary_of_several(models: Any, title: str, heading: str) -> Summary:
    """Return the summary of fits by name that were read together: a row for each of the first ones.

    `models` has the plan, the number of passes, the decoded bytes, and `_peak_bytes`; a column says which estimator each is where
    there are several kinds.
    """
    shown = [*models][:_MOST_ROWS]
    several = len({type(model) for model in models.values()}) > 1
    rows = []
    for name in shown:
        model = models[name]
        kind = [type(model).__name__] if several else []
        share = words.share(float(np.sum(model.explained_variance_ratio_)))
        rows.append((words.clean(name, 40), *kind, f"{model.n_samples_seen_:,}", f"{model.n_components_}", share))
    table = ((heading, *(["estimator"] if several else []), "samples", "components", "share of variance"), *rows)
    together = getattr(models.plan_, "together", models.plan_)
    read = f"{words.as_text(models.bytes_read_)} decoded, in {words.plural(models.n_passes_, 'pass', 'passes')}"
    memory = f"{words.as_text(together.projected_bytes)} planned of {words.as_text(together.allowed_bytes)}"
    memory += f"; the process reached {words.as_text(models._peak_bytes)}"
    return Summary(title, table, len(models) - len(shown), (("read", read), ("memory", memory)))


def _table(model: Model, shown: int) -> Iterator[tuple[str, ...]]:
    """Yield the headings and the first rows of the table of components."""
    kind, values = model.kind, np.asarray(model.spectrum)
    shares = np.asarray(model.shares if isinstance(model, AnalysisModel) else model.explained_variance_ratio)
    errors = getattr(model, "strength_errors", None) or model.sampling_errors
    heads = [kind.noun, "eigenvalue" if kind.page != "analysis" else kind.strength, "share"]
    heads += [] if kind.bounded else ["cumulative"]
    heads += ["interval", *(["angle"] if isinstance(model.certificate, ApproximateCertificate) else [])]
    yield (*heads, *(["sampling"] if errors is not None else []))
    cumulative, digits = np.cumsum(shares), 6 if model.certificate.kind == "exact" else 4
    for i in range(shown):
        row = [f"{i + 1}", words.figure(float(values[i]), digits), words.share(float(shares[i]))]
        row += [] if kind.bounded else [words.share(float(cumulative[i]))]
        row.append(_interval(model, i))
        if isinstance(model.certificate, ApproximateCertificate):
            sine = model.certificate.angle_bounds[i]
            row.append(words.MISSING if sine is None else f"≤ {words.angle(sine)}")
        if errors is not None:
            row.append(f"± {words.figure(float(errors.errors[i]), 2)}")
        yield tuple(row)


def _interval(model: Model, i: int) -> str:
    """Return where the value of component `i` lies, ``exact`` up to rounding, or a dash where nothing bounds it."""
    certificate = model.certificate
    if certificate.kind == "exact":
        return words.MISSING if isinstance(model, AnalysisModel) and model.error is None else "exact"
    if isinstance(certificate, ApproximateCertificate | KernelCertificate) and certificate.eigenvalue_intervals:
        low, high = certificate.eigenvalue_intervals[i]
        return f"{words.figure(low)} to {words.figure(high)}"
    return words.MISSING


def _of_the_fit(model: Model, known: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what was read, how often, in which time and memory, as far as it is known."""
    plan: Plan | None = known.get("plan_")
    path = words.clean(model.source.get("path") or "", 200)
    yield (
        "data",
        f"{model.n_samples:,} samples x {model.n_features:,} features"
        + (f", {plan.dtype}" if plan else "")
        + (f", {path}" if path else ""),
    )
    read = [sentences.passes(known["n_passes_"])] if "n_passes_" in known else []
    read += [f"{words.as_text(known['bytes_read_'])} decoded"] if "bytes_read_" in known else []
    if plan is not None and "total" in plan.seconds:
        read.append(f"in {words.duration(plan.seconds['total'])}")
    if read:
        yield "read", ", ".join(read)
    if plan is not None:
        peak = f"; the process reached {words.as_text(known['_peak_bytes'])}" if "_peak_bytes" in known else ""
        yield "memory", f"{words.as_text(plan.projected_bytes)} planned of {words.as_text(plan.allowed_bytes)}{peak}"


def _of_the_answer(model: Model, estimator: Any, plan: Plan | None) -> Iterator[tuple[str, str]]:
    """Yield the number of components by the rules that were asked for, the certificate in one sentence, and warnings."""
    certificate, asked = model.certificate, getattr(estimator, "n_components", None)
    if isinstance(asked, str) and asked in RULES and model.linear is not None and model.linear.has_spectrum:
        result = estimator.component_rules_[asked]
        yield "rule", f"{result.rule}: {result.count}, {result.statement}"
    sentence = certificate.statement
    if isinstance(certificate, ApproximateCertificate):
        sentence = sentences.how_sure(certificate)
    yield "accuracy", words.clean(sentence, _MOST_SENTENCE)
    warnings: Sequence[str] = model.concerns
    if isinstance(certificate, ApproximateCertificate) and plan is not None and plan.sketch:
        warnings = [*warnings, *sentences.warnings_of_pca(certificate, plan.sketch)]
    for warning in warnings[:_MOST_WARNINGS]:
        yield "warning", words.clean(warning, _MOST_SENTENCE)
