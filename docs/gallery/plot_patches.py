"""
Photographs
===========

The first components of patches of 16 × 16 pixels of two photographs, in colour, each scaled to its largest entry. Brightness comes first, then colour, gradients and
finer waves.
"""

import matplotlib.pyplot as plt
import numpy as np

import streampca as sp

pca = sp.PCA(40).fit("builtin:photo-patches")

figure, axes = plt.subplots(4, 10, figsize=(8, 3.4))
for axis, component, share in zip(axes.flat, pca.components_, pca.explained_variance_ratio_, strict=True):
    axis.imshow((0.5 + 0.5 * component / np.abs(component).max()).reshape(16, 16, 3))
    axis.set_title(f"{share:.1%}", fontsize=7, pad=2)
    axis.set_axis_off()
plt.show()
