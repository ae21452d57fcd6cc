"""
Four kinds of sketches
======================

A sketch multiplies the rows by a random matrix with few columns. Each dot is one of ten seeds for a kind of matrix and a number of columns. On this table the kinds differ little,
and the number of columns decides.
"""

import matplotlib.pyplot as plt
import numpy as np

import streampca as sp

rng = np.random.default_rng(0)
turn = np.linalg.qr(rng.standard_normal((256, 256)))[0]
rows = rng.standard_normal((2_000, 256)) * np.arange(1, 257) ** -0.7 @ turn
exact = np.linalg.eigvalsh(np.cov(rows.T))[::-1][:5]

kinds, columns = ("gaussian", "sparse_sign", "count_sketch", "grouping"), (20, 40, 80)
figure, axis = plt.subplots(figsize=(5, 3.6), layout="constrained")
for index, kind in enumerate(kinds):
    for size in columns:
        errors = []
        for seed in range(10):
            fit = sp.PCA(5, solver="sketch", sketch=kind, sketch_size=size, max_passes=1, pilot=0, random_state=seed)
            errors.append(np.abs(fit.fit(rows).explained_variance_ / exact - 1).max())
        place = size * 1.06 ** (index - 1.5)
        axis.plot(np.full(10, place), errors, ".", color=f"C{index}", label=kind if size == columns[0] else None)
axis.set(xscale="log", yscale="log", xlabel="columns of the sketch", ylabel="largest relative error")
axis.set_xticks(columns, [str(size) for size in columns])
axis.minorticks_off()
axis.legend(fontsize=8)
plt.show()
