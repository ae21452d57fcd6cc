"""Kernel principal component analysis: what is planned, one module for each method, and the way from source to model."""
