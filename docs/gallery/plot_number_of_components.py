"""
How many components?
====================

Rows with eight factors, of which the last are weak, and noise. Six rules estimate the number of components from the same fit. They make different assumptions
about the noise.
"""

import matplotlib.pyplot as plt
import numpy as np

import streampca as sp

rng = np.random.default_rng(0)
strength = np.linspace(3, 0.45, 8)
factors = np.linalg.qr(rng.standard_normal((60, 8)))[0].T * strength[:, None]
rows = rng.standard_normal((1_000, 8)) @ factors + rng.standard_normal((1_000, 60))

pca = sp.PCA(n_components="cross_validation").fit(rows)
rules = pca.component_rules_
print(rules)

# %%
# The eigenvalues, and how many of them each rule takes:
values = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
counts = {name: rules[name].n_components for name in rules}
figure, axes = plt.subplots(2, 1, figsize=(7, 5), layout="constrained", sharex=True)
axes[0].semilogy(np.arange(1, 61), values, "o-", color="0.4", markersize=4)
axes[0].axvline(8.5, linestyle=":", color="black")
axes[0].set(ylabel="eigenvalue", title="eight factors, left of the dotted line", xlim=(0.4, 20))
bars = axes[1].barh(list(counts), [count + 0.5 for count in counts.values()])
axes[1].bar_label(bars, [str(count) for count in counts.values()], padding=3)
axes[1].invert_yaxis()
axes[1].set_xlabel("component")
plt.show()
