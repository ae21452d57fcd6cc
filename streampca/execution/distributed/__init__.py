"""Leaves as tasks of a Dask cluster: placement, retries, failures, payloads and tree reduction."""
