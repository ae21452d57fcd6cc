"""
Biplot of wines
===============

Samples and features in one picture (Gabriel 1971). Points are the standardised scores of 178 wines on the first two components, coloured by cultivar. Arrows are the
loadings of 13 chemical measures. The measures have different units, so that they are standardised (``scale=True``), and the loadings are correlations.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_wine

import streampca as sp

wine = load_wine(as_frame=True)
pca = sp.PCA(2, scale=True).fit(wine.data)

figure, axis = plt.subplots(figsize=(6.5, 6), layout="constrained")
pca.plot.biplot(wine.data, labels=wine.target_names[wine.target], n_arrows=13, ax=axis)
plt.show()
