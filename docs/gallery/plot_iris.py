"""
Iris flowers
============

Scores of 150 flowers on the first two components of four measures, coloured by species. The first component separates *setosa* from the other two species.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_iris

import streampca as sp

iris = load_iris(as_frame=True)
pca = sp.PCA(2).fit(iris.data)

figure, axis = plt.subplots(figsize=(5, 3.8), layout="constrained")
pca.plot.scores(iris.data, labels=iris.target_names[iris.target], ax=axis)
plt.show()
