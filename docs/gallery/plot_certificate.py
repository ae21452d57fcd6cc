"""
What another pass buys
======================

An approximate fit states an interval for every eigenvalue. With each further pass over the rows both the error and the certified width shrink, here for eigenvalues that
fall slowly, which is the hard case. The width is known without the exact answer; the error is known here because the exact answer was computed, too.
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

figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
axis.semilogy(passes, widths, "o-", label="certified: widest interval")
axis.semilogy(passes, errors, "o-", label="true: largest error")
axis.set(xlabel="passes over the rows", ylabel="relative error of ten eigenvalues", xticks=passes)
axis.legend()
plt.show()
