"""Execution of plans: blocks are read, folded into leaves, and merged in a fixed order, on threads or on a Dask cluster."""
