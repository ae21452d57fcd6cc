"""
El Niño in a field
==================

A field ``sst(time, lat, lon)`` of monthly sea surface temperatures with land, made of an El Niño that returns every few years, a pattern in the North Atlantic, a seasonal cycle
and noise. The seasonal cycle is removed while the store is read, and grid cells are weighted by their area. ``maps`` gives the components in degrees for one standard deviation of
the scores, which are the principal-component time series.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import zarr

import streampca as sp

rng = np.random.default_rng(0)
lat, lon = np.arange(-87.5, 90, 5), np.arange(2.5, 360, 5)
months, (y, x) = np.arange(360), np.meshgrid(lat, lon, indexing="ij")


def bump(centre, meridian, height, width):
    return np.exp(-(((y - centre) / height) ** 2) - (((x - meridian + 180) % 360 - 180) / width) ** 2)


truth = [2 * bump(0, 230, 9, 45), 1.6 * (bump(55, 325, 14, 30) - bump(28, 310, 12, 30))]
series = np.apply_along_axis(np.convolve, 0, rng.standard_normal((360, 2)), np.ones(9) / 3, mode="same")
phase = 2 * np.pi * np.cumsum(rng.uniform(0.5, 1.5, 360)) / 48  # four years, more or less
series[:, 0] = 0.4 * series[:, 0] + 1.2 * np.cos(phase)
cycle = -6 * np.sin(2 * np.radians(y)) * np.cos(2 * np.pi * months[:, None, None] / 12)
field = 15 + cycle + np.tensordot(series, truth, 1) + 0.4 * rng.standard_normal((360, *y.shape))
land = bump(48, 262, 24, 38) + bump(-14, 300, 36, 20) + bump(8, 20, 28, 24) + bump(55, 80, 26, 60) > 0.37
field[:, land] = np.nan

# %%
# The store is an ordinary zarr group with named dimensions, cut into chunks along all three.
path = Path(tempfile.mkdtemp()) / "sst.zarr"
group = zarr.open_group(path, mode="w")
names = ("time", "lat", "lon")
group.create_array("sst", data=field.astype("f4"), chunks=(60, 18, 36), dimension_names=names)
for name, values, units in zip(
    names, (months * 30.4375, lat, lon), ("days since 1990-01-01", "degrees_north", "degrees_east"), strict=True
):
    group.create_array(name, data=values, dimension_names=(name,), attributes={"units": units})

table = sp.open(path, array="sst", samples="time", mask="observed")
pca = sp.PCA(2, feature_weight="cos(lat)", remove={"groups": months % 12}).fit(table)
maps = pca.maps()

scores = pca.transform(table)

figure, axes = plt.subplots(2, 2, figsize=(9, 4.6), layout="constrained", height_ratios=(3, 2))
for index, values in enumerate(maps.values):
    axis, limit = axes[0, index], np.nanmax(np.abs(values))
    axis.set_facecolor("0.8")
    image = axis.pcolormesh(lon, lat, values, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="nearest")
    axis.set_title(f"component {index + 1}, {pca.explained_variance_ratio_[index]:.0%} of the variance")
    figure.colorbar(image, ax=axis, label="degrees")
    axes[1, index].plot(1990 + months / 12, np.asarray(scores)[:, index], linewidth=1)
    axes[1, index].set_title("time series")
plt.show()
