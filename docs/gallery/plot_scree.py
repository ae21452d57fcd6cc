"""
Scree plot of digits
====================

Eigenvalues of the handwritten digits with 95 % sampling intervals, estimated by leaving out groups of rows. They show how far the eigenvalues may be from those of the
population. Hatched components have overlapping error bars by North's rule and may be mixtures of each other.
"""

import matplotlib.pyplot as plt

import streampca as sp

pca = sp.PCA(20, sampling_errors=40).fit("builtin:digits")
axes = pca.plot.scree()
axes.set_yscale("log")
axes.set_ylim(2, 300)
plt.show()
