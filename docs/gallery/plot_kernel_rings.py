"""
Kernel PCA of rings
===================

Three rings in the plane. Colours are the scores of every point of the plane on one kernel component. The model of 200,000 rows uses 150 landmarks and two passes.
"""

import matplotlib.pyplot as plt
import numpy as np

import streampca as sp

rng = np.random.default_rng(0)
ring = rng.integers(0, 3, 200_000)
radius, angle = 1 + 1.5 * ring + 0.12 * rng.standard_normal(200_000), rng.uniform(0, 2 * np.pi, 200_000)
rows = np.column_stack([radius * np.cos(angle), radius * np.sin(angle)])

kernel = sp.KernelPCA(6, kernel="rbf", gamma=0.2, method="nystrom", n_landmarks=150).fit(rows)
side = np.linspace(-5, 5, 80)
plane = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
surfaces = kernel.transform(plane).T.reshape(6, 80, 80)

figure, axes = plt.subplots(2, 3, figsize=(8.5, 5.4), layout="constrained", sharex=True, sharey=True)
for index, (axis, surface) in enumerate(zip(axes.flat, surfaces, strict=True)):
    limit = np.abs(surface).max()
    axis.contourf(side, side, surface, levels=np.linspace(-limit, limit, 21), cmap="RdBu_r")
    axis.scatter(*rows[:600].T, c=ring[:600], s=2, cmap="viridis")
    axis.set(title=f"component {index + 1}", aspect="equal")
plt.show()
