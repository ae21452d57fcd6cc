"""
Outliers: T² and Q
==================

Two kinds of outliers among 3,000 rows. *Extreme* rows have factors that are five times larger than usual, and T² is large. *Strange* rows differ from what the factors
describe, and Q is large. Dashed lines are the limits that 1 % of normal rows exceed.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import zarr

import streampca as sp

rng = np.random.default_rng(0)
factors = rng.standard_normal((4, 40))
scores = rng.standard_normal((3_000, 4))
scores[:8] *= 5
rows = scores @ factors + 0.5 * rng.standard_normal((3_000, 40))
rows[8:16] += 1.5 * rng.standard_normal((8, 40))

pca = sp.PCA(4).fit(rows)
out = Path(tempfile.mkdtemp()) / "scores.zarr"
pca.transform_to(rows, out, diagnostics=True)
group = zarr.open_group(out, mode="r")
t2, q = group["t2"][:], group["q"][:]

figure, axis = plt.subplots(figsize=(5, 3.8), layout="constrained")
kinds = {"usual": slice(16, None), "extreme": slice(0, 8), "strange": slice(8, 16)}
for (name, which), colour in zip(kinds.items(), ("0.7", "tab:orange", "tab:red"), strict=True):
    axis.loglog(t2[which], q[which], "o", markersize=3 if name == "usual" else 6, color=colour, label=name)
axis.axvline(pca.t2_limit(0.99), linestyle="--", color="black", linewidth=0.8)
axis.axhline(pca.q_limit(0.99), linestyle="--", color="black", linewidth=0.8)
axis.set(xlabel="T²", ylabel="Q")
axis.legend()
plt.show()
