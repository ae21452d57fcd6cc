"""Configured runs: configuration, execution, manifest, verification, publication, report."""
