"""Configured runs: configuration, execution, manifest, verification, report."""
