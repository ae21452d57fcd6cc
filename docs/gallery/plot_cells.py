"""
Cell nuclei of tumours
======================

Scores of 569 breast tumours on the first two components of 30 measures of their cell nuclei, coloured by diagnosis. The measures have different units, so that they
are standardised (``scale=True``). The model does not know the diagnosis.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer

import streampca as sp

tumours = load_breast_cancer(as_frame=True)
pca = sp.PCA(5, scale=True).fit(tumours.data)

figure, axis = plt.subplots(figsize=(5, 3.8), layout="constrained")
pca.plot.scores(tumours.data, labels=tumours.target_names[tumours.target], ax=axis)

# %%
# The six measures with the largest loadings on the first component. After standardisation a loading is the correlation of a measure with the scores.
loadings = pca.loadings().to_numpy()[:, 0]
largest = abs(loadings).argsort()[-6:]
figure, axis = plt.subplots(figsize=(5, 2.4), layout="constrained")
axis.barh(tumours.data.columns[largest], loadings[largest])
axis.set_xlabel("loading on component 1")
plt.show()
