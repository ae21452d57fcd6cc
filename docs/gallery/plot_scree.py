"""
Eigenvalues with error bars
===========================

The scree plot of the digits with 95 % intervals. They are sampling errors, estimated by leaving out groups of rows, and say how far the eigenvalues may
be from those of the population that the rows are a sample of. Components whose error bars by North's rule overlap are shaded: they may be mixtures of each other.
"""

import matplotlib.pyplot as plt
import numpy as np

import streampca as sp

pca = sp.PCA(20, sampling_errors=40).fit("builtin:digits")
errors = pca.sampling_error_
values, number = pca.explained_variance_, np.arange(1, 21)
lower, upper = errors.interval(0.95).T

figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
for first, last in errors.degenerate_groups:
    axis.axvspan(first + 0.6, last + 1.4, color="0.9")
axis.errorbar(number, values, yerr=[values - lower, upper - values], fmt="o", markersize=4, capsize=3)
axis.set(xlabel="component", ylabel="eigenvalue", yscale="log", xticks=[1, 5, 10, 15, 20])
plt.show()
