"""Reports: one self-contained HTML page with figures for each run."""
