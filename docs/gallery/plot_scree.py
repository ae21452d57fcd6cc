"""
Eigenvalues with error bars
===========================

The scree plot of the digits with 95 % intervals. They are sampling errors, estimated by leaving out groups of rows, and say how far the eigenvalues may
be from those of the population that the rows are a sample of. Components whose error bars by North's rule overlap are hatched: they may be mixtures of each other.
"""

import matplotlib.pyplot as plt

import streampca as sp

pca = sp.PCA(20, sampling_errors=40).fit("builtin:digits")
axes = pca.plot.scree()
axes.set_yscale("log")
axes.set_ylim(2, 300)
plt.show()
