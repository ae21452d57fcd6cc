"""Verification of a finished run: its data are read once more, and what it holds and states is measured again."""

from streampca.runs.verify.run import verify_groups, verify_run

__all__ = ["verify_groups", "verify_run"]
