"""Reports by labels: maps, images, lines and named bars of components; series, maps and classes of scores."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from pages import audit_of_run
from PIL import Image

import streampca as sp

UNITS = {"lat": "degrees_north", "lon": "degrees_east", "time": "days since 1990-01-01", "wavelength": "nm", "y": "µm"}
UNITS["x"] = "µm"
DAYS = np.arange(24) * 31
LATITUDES = np.array([-45.0, 0.0, 45.0])


def reported(
    place: Path,
    dims: dict[str, Any],
    values: NDArray[Any] | None = None,
    *,
    samples: Any = "time",
    k: int = 3,
    units: dict[str, str] | None = None,
    further: dict[str, Any] | None = None,
    **source: Any,
) -> tuple[str, Any]:
    """Return the page of a run on a group of zarr with the variable sst over `dims`, whose values are coordinates or sizes."""
    sizes = [each if isinstance(each, int) else len(each) for each in dims.values()]
    if values is None:
        values = np.random.default_rng(3).normal(size=sizes) + 5
    group = zarr.open_group(place / "x.zarr", mode="w")
    array = group.create_array("sst", data=values, dimension_names=tuple(dims))
    told = {**UNITS, **(units or {})}
    if "sst" in told:
        array.attrs["units"] = told["sst"]
    for name, coordinate in dims.items():
        if isinstance(coordinate, int):
            continue
        if isinstance(coordinate[0], str):
            text: Any = group.create_array(name, shape=(len(coordinate),), dtype=str, dimension_names=(name,))
            text[:] = np.array(coordinate, dtype=object)
        else:
            data = group.create_array(name, data=np.asarray(coordinate), dimension_names=(name,))
            if name in told:
                data.attrs["units"] = told[name]
    config = {
        "source": {"path": str(place / "x.zarr"), "array": "sst", "samples": samples, **source},
        "model": {"n_components": k},
        "output": {"directory": str(place / "run")},
        **(further or {}),
    }
    return audit_of_run(sp.run(config).directory)


def images(page: Any, beginning: str) -> list[dict[str, str]]:
    """Return the attributes of the first images of charts whose descriptions begin so, and their descriptions as ``alt``."""
    found = []
    for i, (tag, a) in enumerate(page.tags):
        if tag == "div" and str(a.get("aria-label")).startswith(beginning):
            found.append(next(image for kind, image in page.tags[i:] if kind == "image") | {"alt": a["aria-label"]})
    return found


def decoded(image: dict[str, str], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the colours in the middle of each cell of a picture, ``(*shape, 3)``, from the top."""
    file = io.BytesIO(base64.b64decode(image["xlink:href"].partition(",")[2]))
    pixels = np.asarray(Image.open(file).convert("RGB"))
    pixels = pixels[::-1] if "scale(1 -1)" in image.get("transform", "") else pixels
    places = (((np.arange(n) + 0.5) * size / n).astype(int) for n, size in zip(shape, pixels.shape, strict=False))
    return pixels[np.ix_(*places)]


@pytest.mark.slow
@pytest.mark.deep(keep=1)
@pytest.mark.parametrize(
    ("lat", "lon", "order"),
    [
        (LATITUDES, np.arange(0.0, 360, 60), ("time", "lat", "lon")),
        (LATITUDES[::-1], np.arange(-180.0, 180, 60), ("time", "lat", "lon")),
        (LATITUDES, np.arange(180.0, -180, -60), ("time", "lon", "lat")),
        (LATITUDES[::-1], np.array([180.0, 240, 300, 0, 60, 120]), ("time", "lon", "lat")),
    ],
    ids=["0 to 360", "-180 to 180", "descending", "from the date line on"],
)
@pytest.mark.usefixtures("charts")
def test_north_is_up_and_east_is_right_whatever_the_order_of_storage(
    tmp_path: Path, lat: NDArray[Any], lon: NDArray[Any], order: tuple[str, ...]
) -> None:
    dims = {"time": DAYS, "lat": lat, "lon": lon}
    pattern = np.zeros((3, 6))
    pattern[lat == 45, lon % 360 == 60] = 3
    pattern[lat == 45, lon % 360 == 120] = 1.5
    field = np.random.default_rng(0).normal(size=24)[:, None, None] * (pattern if order[1] == "lat" else pattern.T)
    field = field + 1e-6 * np.random.default_rng(1).normal(size=field.shape)
    _, page = reported(tmp_path, {name: dims[name] for name in order}, field, k=1)
    (image,) = images(page, "Map of component 1")
    away = np.abs(decoded(image, (3, 6)).astype(float) - [247, 247, 247]).sum(axis=2)
    (row, column), (next_row, next_column) = (np.unravel_index(i, (3, 6)) for i in np.argsort(-away.ravel())[:2])
    assert row == next_row == 0
    assert next_column == (column + 1) % 6


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_the_report_of_a_field_has_maps_with_masked_places_and_series_on_a_date_axis(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(24, 4, 6)) + 5
    values[:, 1, 1] = values[:, 2, 3] = np.nan
    dims = {"time": DAYS, "lat": np.linspace(-60, 60, 4), "lon": np.arange(0.0, 360, 60)}
    _, page = reported(tmp_path, dims, values, units={"sst": "K"}, mask="observed")
    assert len(images(page, "Map of component")) == 3
    maps = [*images(page, "Map of component"), *images(page, "Map of mean of all samples, 4 lat × 6 lon")]
    for image in maps:
        assert float(image["width"]) / float(image["height"]) == pytest.approx(2.25, rel=0.02)
    assert all("Grey places are masked" in image["alt"] for image in maps)
    grey = [
        {tuple(pixels[2, 1]), tuple(pixels[1, 3])} for pixels in (decoded(image, (4, 6)) for image in maps)
    ]  # storage ascends, maps descend
    assert set().union(*grey) == {(150, 150, 150)}
    assert page.text.count("Time series of component") == 3
    assert "masked" in page.text
    assert re.search(r"\s1991\s", page.text)
    assert re.search(r"−\S+\s+0\s+\S+\sK", page.text), "scales of components are symmetric about zero"
    assert "The change of sst" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_the_page_of_groups_has_a_map_of_the_first_component_of_each(tmp_path: Path) -> None:
    values = np.random.default_rng(4).normal(size=(24, 3, 6)) * np.linspace(0.2, 3, 18).reshape(3, 6)
    dims = {"time": DAYS, "lat": LATITUDES, "lon": np.arange(0.0, 360, 60)}
    _, page = reported(tmp_path, dims, values, further={"model": {"n_components": 1, "group_by": "time.year"}})
    maps = images(page, "Map of component 1, group 199")
    assert len(maps) == 2
    for image, rows in zip(maps, (values[:12], values[12:]), strict=True):
        axis = np.linalg.svd((rows - rows.mean(axis=0)).reshape(12, 18))[2][0].reshape(3, 6)
        pixels = decoded(image, (3, 6)).astype(float)
        redness = pixels[::-1, :, 0] - pixels[::-1, :, 2]  # latitudes are stored from south to north
        assert abs(np.corrcoef(redness.ravel(), axis.ravel())[0, 1]) > 0.8
    assert "The change of sst" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_dimensions_without_coordinates_are_an_image_and_no_map(tmp_path: Path) -> None:
    _, page = reported(tmp_path, {"time": DAYS, "lat": 3, "lon": 4}, k=1)
    assert not images(page, "Map")
    assert images(page, "Image of component 1")


@pytest.mark.deep
@pytest.mark.usefixtures("charts")
def test_a_panel_for_each_place_of_the_smallest_dimension_and_no_more_than_some(tmp_path: Path) -> None:
    dims = {"time": DAYS, "level": np.array([850.0, 500.0]), "y": np.arange(5.0), "x": np.arange(6.0)}
    (tmp_path / "a").mkdir()
    _, page = reported(tmp_path / "a", dims, k=1, units={"level": "hPa"})
    text = page.text.replace("\u00a0", " ")
    assert "level = 850 hPa" in text
    assert "level = 500 hPa" in text
    (tmp_path / "b").mkdir()
    _, page = reported(tmp_path / "b", {"time": DAYS, "band": 40, "v": 50, "w": 60}, k=1)
    assert "12 of 40 places along band of sst are shown." in page.text.replace("\u00a0", " ")


@pytest.mark.slow
def test_pictures_are_thinned_alike_on_both_sides(tmp_path: Path) -> None:
    _, page = reported(tmp_path, {"time": DAYS[:6], "y": 40, "x": 400}, k=1)
    assert "Pictures of sst show 20 of 40 × 200 of 400 places." in page.text.replace("\u00a0", " ")


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_the_report_of_a_cube_has_lines_and_maps_of_scores(tmp_path: Path) -> None:
    dims = {"y": np.arange(6.0), "x": np.arange(9.0), "wavelength": np.linspace(400, 700, 5)}
    _, page = reported(tmp_path, dims, samples=["y", "x"])
    lines = [
        str(a["aria-label"])
        for tag, a in page.tags
        if tag == "div" and "against wavelength (nm)" in str(a.get("aria-label"))
    ]
    assert len([line for line in lines if line.startswith("Line of Component")]) == 3
    scores = images(page, "Image of scores of component")
    assert len([image for image in scores if "6 y × 9 x" in image["alt"]]) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_the_report_of_named_columns_has_bars_with_names(tmp_path: Path) -> None:
    _, page = reported(tmp_path, {"time": DAYS, "measure": [f"length {i}" for i in range(20)]})
    assert "length 0" in page.text
    assert "The 12 largest of 20 entries; 8 are not shown." in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_text_that_repeats_along_the_samples_is_a_class(tmp_path: Path) -> None:
    _, page = reported(tmp_path, {"flower": ["setosa", "virginica"] * 15, "measure": 5}, samples="flower")
    (chart,) = (each for each in page.text.split("First two components")[1:2])
    assert "setosa" in chart.split("Biplot")[0]
    assert "virginica" in chart.split("Biplot")[0]


@pytest.mark.slow
def test_without_scores_the_report_has_no_series(tmp_path: Path) -> None:
    output = {"directory": str(tmp_path / "run"), "scores": False}
    _, page = reported(tmp_path, {"time": DAYS, "y": 4, "x": 5}, further={"output": output})
    assert "Time series of component" not in page.text
    assert "Scores of the samples" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("charts")
def test_names_and_units_of_any_text_are_shown_as_they_are(tmp_path: Path) -> None:
    nasty = "<blink>$x^2$ 漢字\x1b\u202e&"
    html, page = reported(
        tmp_path, {"time": DAYS, "wavelength": np.arange(7.0)}, units={"wavelength": nasty, "sst": nasty}
    )
    assert "<blink>" not in html
    assert "\u202e" not in html
    assert "<blink>$x^2$ 漢字\\x1b\\u202e&" in page.text


@pytest.mark.deep(keep=1)
@pytest.mark.slow
@pytest.mark.parametrize(("scale", "whiten", "weighted"), [(True, True, False), (False, False, True)])
def test_points_are_the_scores_of_the_model(tmp_path: Path, scale: bool, whiten: bool, weighted: bool) -> None:
    rows = np.random.default_rng(5).normal(size=(40, 6)) * np.arange(1, 7) + 3
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "w.npy", np.array([1.0, 4.0, 0.25, 0.0, 1.0, 2.0]))
    preprocess: dict[str, Any] = {"scale": scale}
    if weighted:
        preprocess["feature_weight"] = str(tmp_path / "w.npy")
    run = sp.run(
        {
            "source": {"path": str(tmp_path / "x.npy")},
            "preprocess": preprocess,
            "model": {"n_components": 2, "whiten": whiten},
            "output": {"directory": str(tmp_path / "run")},
        }
    )
    _, page = audit_of_run(run.directory)
    said = " ".join(str(attributes.get("aria-label")) for _, attributes in page.tags).replace("−", "-")
    ends = re.findall(r"component 1 against component 2\. Scores on component 1 range from (\S+) to (\S+),", said)
    expected = run.model.transform(rows)[:, 0]
    np.testing.assert_allclose([float(end) for end in ends[0]], [expected.min(), expected.max()], rtol=0.06)
