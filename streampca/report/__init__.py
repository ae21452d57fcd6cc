"""What a run tells: one self-contained HTML page with pictures."""

from __future__ import annotations

from streampca.report.page import write_report

__all__ = ["write_report"]
