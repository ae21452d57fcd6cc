"""Generated data whose axes have names: a field on a grid of the globe, a movie, and a cube of spectra.

Every kind is a sum of a few known patterns plus noise, and is made one place of its first dimension after another, so that
memory does not grow with its length. Random numbers are addressed by (seed, place): values do not depend on the chunks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

FILL = -32768
"""Stored value of land in the packed field."""
CONTINENTS = (
    (48, 262, 24, 38), (-14, 300, 36, 20), (8, 20, 28, 24), (-18, 26, 20, 14), (52, 70, 24, 66), (22, 80, 18, 20),
    (-25, 134, 12, 20), (-90, 0, 18, 400), (74, 320, 11, 24),
)  # fmt: skip
"""Latitude, longitude, and half the height and width in degrees of the ellipses that are land."""


@dataclass(frozen=True)
class Labelled:
    """An array with named dimensions, and what stands beside it in its group."""

    name: str
    """Name of the array."""
    coordinates: dict[str, tuple[NDArray[Any], dict[str, Any]]]
    """Values and attributes of the coordinate of every dimension, in the order of the array's axes."""
    slices: Callable[[], Iterator[NDArray[Any]]]
    """Function that returns the values at one place of the first dimension after another, in the stored data type."""
    dtype: str
    """Data type of the stored values."""
    chunks: tuple[int, ...]
    """Shape of a chunk."""
    attributes: dict[str, Any] = field(default_factory=dict)
    """Attributes of the array."""
    patterns: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """The known patterns, one in each row, in the shape of the feature dimensions."""
    beside: dict[str, tuple[tuple[str, ...], NDArray[Any]]] = field(default_factory=dict)
    """Dimensions and values of further arrays of the group."""
    fill: float = 0
    """Fill value of the array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the array."""
        return tuple(len(values) for values, _ in self.coordinates.values())


def sea_temperature(shape: tuple[int, ...] = (480, 90, 180), seed: int = 0) -> Labelled:
    """Return a monthly field ``sst(time, lat, lon)``, packed as int16, with land, a seasonal cycle, four modes and red noise."""
    n_times, n_lat, n_lon = shape
    lat = -90 + (np.arange(n_lat) + 0.5) * 180 / n_lat
    lon = (np.arange(n_lon) + 0.5) * 360 / n_lon
    months = np.datetime64("1850-01") + np.arange(n_times)
    days = (months.astype("datetime64[D]") - np.datetime64("1850-01-01")).astype(np.int32)
    sea = np.ones((n_lat, n_lon), dtype=bool)
    for centre, meridian, height, width in CONTINENTS:
        sea &= ((lat - centre)[:, None] / height) ** 2 + (_around(lon, meridian) / width) ** 2 > 1
    hills = [
        _hill(lat, lon, 0, 220, 10, 45),
        _hill(lat, lon, 40, 190, 12, 30) - _hill(lat, lon, 15, 215, 10, 30),
        _hill(lat, lon, 55, 330, 12, 25) - _hill(lat, lon, 30, 310, 10, 25),
        _hill(lat, lon, -10, 55, 10, 15) - _hill(lat, lon, -10, 100, 10, 15),
    ]
    patterns = np.array([[1.6], [1.1], [0.9], [0.7]])[..., None] * np.array(hills) * sea
    series = red_noise(np.random.default_rng(seed), n_times, len(hills), memory=0.9)
    mean = 28 * np.cos(np.radians(lat))[:, None] ** 2 + np.zeros(n_lon)
    cycle = -5 * np.sin(2 * np.radians(lat))[:, None] * np.cos(2 * np.pi * np.arange(12) / 12 - 0.5)

    def slices() -> Iterator[NDArray[Any]]:
        noise = np.zeros((n_lat, n_lon))
        for time in range(n_times):
            fresh = place_generator(seed, time).standard_normal((n_lat, n_lon))
            noise = fresh if time == 0 else 0.6 * noise + 0.8 * fresh  # variance 1: 0.36 + 0.64
            values = mean + cycle[:, time % 12, None] + np.tensordot(series[time], patterns, 1) + 0.25 * noise
            yield np.where(sea, np.rint((values - 15) / 0.002), FILL).astype(np.int16)

    return Labelled(
        "sst",
        {
            "time": (days, {"units": "days since 1850-01-01", "calendar": "standard", "standard_name": "time"}),
            "lat": (lat, {"units": "degrees_north", "standard_name": "latitude"}),
            "lon": (lon, {"units": "degrees_east", "standard_name": "longitude"}),
        },
        slices,
        "int16",
        (min(48, n_times), -(-n_lat // 2), -(-n_lon // 3)),
        {"scale_factor": 0.002, "add_offset": 15.0, "_FillValue": FILL, "units": "degC"},
        patterns,
        {"sea_mask": (("lat", "lon"), sea)},
        FILL,
    )


def movie(shape: tuple[int, ...] = (2000, 128, 128), seed: int = 0) -> Labelled:
    """Return a movie ``frames(time, y, x)`` of counts: twelve spots that light up and decay, on a dim background."""
    n_times, n_y, n_x = shape
    random, places = np.random.default_rng(seed), np.arange(12)
    y, x = np.arange(n_y), np.arange(n_x)
    centres = np.stack([(places % 4 + 0.5) / 4 * n_y, (places // 4 + 0.5) / 3 * n_x])
    radius = min(n_y, n_x) / 20
    distance = (y - centres[0][:, None]) ** 2, (x - centres[1][:, None]) ** 2
    patterns = np.exp(-(distance[0][:, :, None] + distance[1][:, None, :]) / (2 * radius**2))
    flashes = (random.random((n_times, 12)) < 0.02) * np.linspace(240, 80, 12)
    light = np.zeros((n_times, 12))
    for time in range(n_times):
        light[time] = 0.9 * light[time - 1] * (time > 0) + flashes[time]
    background = 400 - 200 * ((y[:, None] / n_y - 0.5) ** 2 + (x / n_x - 0.5) ** 2)

    def slices() -> Iterator[NDArray[Any]]:
        for time in range(n_times):
            noise = 10 * place_generator(seed, time).standard_normal((n_y, n_x))
            yield np.rint(background + np.tensordot(light[time], patterns, 1) + noise).astype(np.uint16)

    return Labelled(
        "frames",
        {
            "time": (np.arange(n_times) / 30, {"units": "s"}),
            "y": (y * 1.5, {"units": "micrometer"}),
            "x": (x * 1.5, {"units": "micrometer"}),
        },
        slices,
        "uint16",
        (min(100, n_times), -(-n_y // 2), -(-n_x // 2)),
        {"units": "counts"},
        patterns,
    )


def cube(shape: tuple[int, ...] = (600, 500, 120), seed: int = 0) -> Labelled:
    """Return an image of spectra ``radiance(y, x, wavelength)``: four materials whose shares vary smoothly, plus noise."""
    n_y, n_x, n_bands = shape
    wavelength = np.linspace(400, 1000, n_bands)
    peaks = np.array([460, 580, 690, 850])[:, None]
    patterns = 0.2 + np.exp(-(((wavelength - peaks) / np.array([40, 60, 50, 90])[:, None]) ** 2))
    y, x = np.arange(n_y) / n_y, np.arange(n_x) / n_x

    def slices() -> Iterator[NDArray[Any]]:
        for place in range(n_y):
            waves = [np.cos(2 * np.pi * ((1 + m) * x + (2 - 0.5 * m) * y[place]) + m) for m in range(4)]
            shares = np.exp(2 * np.array(waves))
            noise = 0.01 * place_generator(seed, place).standard_normal((n_x, n_bands))
            yield ((shares / shares.sum(axis=0)).T @ patterns + noise).astype(np.float32)

    return Labelled(
        "radiance",
        {
            "y": (np.arange(n_y) * 2.0, {"units": "m"}),
            "x": (np.arange(n_x) * 2.0, {"units": "m"}),
            "wavelength": (wavelength, {"units": "nm"}),
        },
        slices,
        "float32",
        (min(100, n_y), -(-n_x // 3), -(-n_bands // 3)),
        {"units": "W m-2 sr-1 nm-1"},
        patterns,
    )


KINDS: dict[str, Callable[..., Labelled]] = {"field": sea_temperature, "movie": movie, "cube": cube}
"""Function that makes each kind, from a shape of three sizes and a seed."""


def write_labelled(data: Labelled, path: Path, chunks: Sequence[int] | None = None, zarr_format: int = 3) -> None:
    """Write the array, its coordinates and what stands beside it to a new group, one row of chunks at a time."""
    group = zarr.create_group(str(path), zarr_format=zarr_format)
    array = _create(
        group, data.name, tuple(data.coordinates), data.attributes,
        shape=data.shape, chunks=tuple(chunks or data.chunks), dtype=data.dtype, fill_value=data.fill,
        config={"write_empty_chunks": True},
    )  # fmt: skip
    slices = data.slices()
    for start in range(0, data.shape[0], array.chunks[0]):
        rows = list(itertools.islice(slices, array.chunks[0]))
        array[start : start + len(rows)] = np.stack(rows)
    for name, (values, attributes) in data.coordinates.items():
        _create(group, name, (name,), attributes, data=values, chunks=values.shape)
    for name, (dims, values) in data.beside.items():
        _create(group, name, dims, {}, data=values, chunks=values.shape)


def _create(
    group: zarr.Group, name: str, dims: Sequence[str], attributes: dict[str, Any], **options: Any
) -> zarr.Array[Any]:
    """Create an array whose axes are named: in the metadata of format 3, or by the attribute that xarray uses in format 2."""
    if group.metadata.zarr_format == 2:
        return group.create_array(name, attributes=attributes | {"_ARRAY_DIMENSIONS": list(dims)}, **options)
    return group.create_array(name, attributes=attributes, dimension_names=list(dims), **options)


def place_generator(seed: int, place: int) -> np.random.Generator:
    """Return the random numbers of one place of the first dimension."""
    return np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, place, 4]))


def red_noise(random: np.random.Generator, n_times: int, n_series: int, memory: float) -> NDArray[np.float64]:
    """Return series ``(n_times, n_series)`` of variance 1 whose values at neighbouring times have the correlation `memory`."""
    series = random.standard_normal((n_times, n_series))
    for time in range(1, n_times):
        series[time] = memory * series[time - 1] + np.sqrt(1 - memory**2) * series[time]
    return series


def _hill(
    lat: NDArray[Any], lon: NDArray[Any], centre: float, meridian: float, height: float, width: float
) -> NDArray[Any]:
    """Return a bell of height 1 on the globe, ``(lat, lon)``."""
    distance = ((lat - centre)[:, None] / height) ** 2 + (_around(lon, meridian) / width) ** 2
    return np.exp(-distance / 2)


def _around(lon: NDArray[Any], meridian: float) -> NDArray[Any]:
    """Return the differences in longitude, -180 to 180 degrees."""
    return (lon - meridian + 180) % 360 - 180
