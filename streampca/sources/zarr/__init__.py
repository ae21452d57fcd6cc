"""Zarr stores read strictly: missing or damaged chunks are errors, and chunks are decoded directly where that is faster."""
