"""
Error and certificate
=====================

An approximate fit gives an interval for every eigenvalue. Each further pass over the rows reduces the error and the width of the intervals. The width is known without
the exact result. The error is known here because the exact result was computed, too. The eigenvalues decrease slowly, which is the difficult case.
"""

import matplotlib.pyplot as plt
import numpy as np

import streampca as sp

rng = np.random.default_rng(0)
rows = rng.standard_normal((6_000, 400)) * np.arange(1, 401) ** -0.4
exact = sp.PCA(10).fit(rows)

passes = np.arange(1, 6)
fits = [sp.PCA(10, solver="sketch", max_passes=int(p), tolerance=0).fit(rows) for p in passes]
errors = [np.abs(fit.explained_variance_ / exact.explained_variance_ - 1).max() for fit in fits]
widths = [fit.certificate_.largest_relative_width for fit in fits]

figure, axis = plt.subplots(figsize=(5, 3.4), layout="constrained")
axis.semilogy(passes, widths, "o-", label="certified: widest interval")
axis.semilogy(passes, errors, "o-", label="true: largest error")
axis.set(xlabel="passes over the rows", ylabel="relative error", xticks=passes)
axis.legend()
plt.show()
