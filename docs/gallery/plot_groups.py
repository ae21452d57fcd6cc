"""
One model per digit
===================

``fit_groups`` fits a PCA for each class of the digits in one pass. The pictures show the mean of each class, its first two components, and the similarity of the subspaces of
the classes.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import streampca as sp

digits = load_digits()
groups = sp.PCA(5).fit_groups(digits.data, digits.target)
models = [groups[digit] for digit in range(10)]

figure, axes = plt.subplots(3, 10, figsize=(8, 2.6))
for column, model in zip(axes.T, models, strict=True):
    column[0].imshow(model.mean_.reshape(8, 8), cmap="gray_r")
    for axis, component in zip(column[1:], model.components_, strict=False):
        axis.imshow(component.reshape(8, 8), cmap="RdBu_r", vmin=-0.4, vmax=0.4)
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
for axis, name in zip(axes[:, 0], ("mean", "comp. 1", "comp. 2"), strict=True):
    axis.set_ylabel(name, rotation=0, ha="right", va="center")

# %%
# The mean squared cosine of the principal angles between five components of each: 1 for the same subspace, 0 for orthogonal ones.
figure, axis = plt.subplots(figsize=(4.4, 3.6), layout="constrained")
image = axis.imshow(groups.similarity(), cmap="viridis", vmin=0, vmax=1)
axis.set(xticks=range(10), yticks=range(10), xlabel="digit", ylabel="digit")
figure.colorbar(image)
plt.show()
