"""Solvers of linear PCA: objects with a plan and a run that leads from a source to a fitted model."""
