"""
Drift of a sensor
=================

A run examines the data while it reads them. Here sensor 3 drifts upward, and sensor 7 repeats one value in the last sixth of the file. The figures are in the manifest of
the run, and its report draws them.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import zarr

import streampca as sp

rng = np.random.default_rng(0)
rows = rng.standard_normal((60_000, 4)) @ rng.standard_normal((4, 12)) + 0.5 * rng.standard_normal((60_000, 12))
rows[:, 3] += np.linspace(0, 12, 60_000) ** 1.5 / 4
rows[50_000:, 7] = rows[50_000, 7]

folder = Path(tempfile.mkdtemp())
zarr.create_array(folder / "sensors.zarr", data=rows, chunks=(6_000, 12))
configuration = folder / "sensors.yaml"
configuration.write_text(
    f"source: {{path: {folder}/sensors.zarr}}\nmodel: {{n_components: 4}}\noutput: {{directory: {folder}/run, report: false}}\n"
)
quality = sp.run(configuration).manifest["quality"]
drift = quality["drift"]
print({key: drift["mean"][key] for key in drift["mean"]})
print(drift["stuck"])

# %%
# Means of the worst feature along the file, in standard deviations within parts, beside the row values themselves.
figure, axes = plt.subplots(3, 1, figsize=(8, 5), sharex=True, layout="constrained")
parts = np.linspace(0, 60_000, len(drift["shifts"]) + 1)
axes[0].stairs(drift["shifts"], parts)
axes[0].set_ylabel("shift of the worst")
for axis, sensor in zip(axes[1:], (3, 7), strict=True):
    axis.plot(np.arange(0, 60_000, 60), rows[::60, sensor], ".", markersize=2)
    axis.set_ylabel(f"sensor {sensor}")
axes[-1].set_xlabel("row")
plt.show()
