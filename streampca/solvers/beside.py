"""What is computed beside a fit and its scores, and the memory that it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from streampca.planning.plan import Resources
from streampca.planning.scores import diagnostics_bytes
from streampca.solvers.quality import quality_bytes
from streampca.sources.base import Source


class Beside(TypedDict, total=False):
    """What is computed beside a fit and its scores."""

    diagnostics: bool
    """T² and Q of the rows, with their scores."""
    quality: bool
    """Quality of the data, in the first reading."""


def with_beside(resources: Resources, source: Source, n_components: object, missing: str, beside: Beside) -> Resources:
    """Return `resources` with what is computed beside a fit."""
    threads, moments, quality = resources.threads, resources.diagnostics_bytes, resources.quality_bytes
    if beside.get("diagnostics"):
        moments += threads * diagnostics_bytes(source.shape[1], n_components, missing)
    if beside.get("quality"):
        quality += quality_bytes(source, threads, missing)
    return replace(resources, diagnostics_bytes=moments, quality_bytes=quality)
