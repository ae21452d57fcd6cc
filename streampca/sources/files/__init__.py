"""Rows in files: lists of ``.npy`` files, Parquet files and HDF5 datasets, read as one table."""
