"""
Varimax rotation
================

Four correlated factors with five or six features each. Components are mixtures of the factors: the first is what all have in common. Varimax finds the groups of features
and does not read the data again.
"""

import matplotlib.pyplot as plt
import numpy as np

import streampca as sp

rng = np.random.default_rng(3)
members = np.repeat(np.eye(4), [6, 6, 5, 5], axis=1)
factors = rng.standard_normal((5_000, 4)) + 0.7 * rng.standard_normal((5_000, 1))
rows = factors @ members + 0.6 * rng.standard_normal((5_000, 22))
pca = sp.PCA(4, scale=True).fit(rows @ np.diag(rng.uniform(1, 100, 22)))
rotated = pca.rotate(4)

figure, axes = plt.subplots(1, 2, figsize=(8, 2.4), layout="constrained", sharey=True)
for axis, model, title in zip(axes, (pca, rotated), ("components", "after varimax"), strict=True):
    image = axis.imshow(model.components_, cmap="RdBu_r", vmin=-0.6, vmax=0.6, aspect="auto")
    axis.set(title=title, xlabel="feature", yticks=range(4), yticklabels=range(1, 5))
figure.colorbar(image, ax=axes)
plt.show()
