"""Reports: one self-contained HTML page with figures for each run."""

from __future__ import annotations

from streampca.runs.report.page import write_report

__all__ = ["write_report"]
