"""
Handwritten digits
==================

Scores of 1,797 handwritten digits on the first two components, coloured by digit. Each number stands at the mean of its class. Below are one digit and its
reconstructions from more and more components.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits

import streampca as sp

digits = load_digits()
pca = sp.PCA(40).fit(digits.data)
scores = pca.transform(digits.data)

figure, axis = plt.subplots(figsize=(5, 4), layout="constrained")
axis.scatter(*scores[:, :2].T, c=digits.target, s=6, cmap="tab10", alpha=0.6)
for digit in range(10):
    x, y = scores[digits.target == digit, :2].mean(axis=0)
    axis.text(x, y, str(digit), fontsize=20, weight="bold", ha="center", va="center")
axis.set(xlabel="component 1", ylabel="component 2")

# %%
# The error is the distance of the reconstruction from the digit, divided by the distance of the digit from the mean.
figure, axes = plt.subplots(1, 5, figsize=(7, 1.8), layout="constrained")
row = digits.data[3]
for axis, k in zip(axes, (1, 5, 10, 40), strict=False):
    rebuilt = pca.mean_ + scores[3, :k] @ pca.components_[:k]
    error = ((row - rebuilt) ** 2).sum() ** 0.5 / ((row - pca.mean_) ** 2).sum() ** 0.5
    axis.imshow(rebuilt.reshape(8, 8), cmap="gray_r")
    axis.set_title(f"k = {k}: {error:.0%}")
axes[-1].imshow(row.reshape(8, 8), cmap="gray_r")
axes[-1].set_title("digit")
for axis in axes:
    axis.set_axis_off()
plt.show()
