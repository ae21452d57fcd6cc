"""Solvers of kernel principal component analysis: one module for each method."""
