"""
Biplot of wines
===============

Rows and features in one picture (Gabriel 1971): points are the scores of 178 wines on the first two components over their standard deviations, arrows the loadings of
the chemical measures. The features have different units, so that they are standardised (``scale=True``), and the loadings are correlations.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import streampca as sp

wine = load_wine()
pca = sp.PCA(2, scale=True).fit(wine.data)
points = pca.transform(wine.data) / np.sqrt(pca.explained_variance_)
arrows = (pca.components_ * np.sqrt(pca.explained_variance_)[:, None]).T

figure, axis = plt.subplots(figsize=(6.5, 6), layout="constrained")
axis.scatter(*points.T, c=wine.target, cmap="Set2", s=18)
for (dx, dy), name in zip(2.2 * arrows, wine.feature_names, strict=True):
    axis.annotate("", (dx, dy), (0, 0), arrowprops={"arrowstyle": "->", "color": "0.3"})
    axis.text(1.08 * dx, 1.08 * dy, name.replace("_", " "), fontsize=8, ha="center", va="center")
axis.set(xlabel="component 1", ylabel="component 2", aspect="equal")
plt.show()
