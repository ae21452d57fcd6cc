"""Cells of AnnData stores and objects as rows: sparse rows by blocks, normalised and with some of their features."""
