"""Reports by labels: maps, images, lines and named bars of components; series, maps and classes of scores."""

from __future__ import annotations

import base64
import io
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from pages import audit, make_run
from PIL import Image

from streampca.execution.score_labels import write_sample_labels
from streampca.labels import Dimension, Labels, Variable
from streampca.models.persistence.models import load_model, save_model
from streampca.runs.report import figures_of_series, pictures
from streampca.runs.report.fields import field_figure, limits, line_charts
from streampca.runs.report.layouts import MAX_SIDE, MOST_PARTS, Layout, layout_of
from streampca.runs.report.run_files import read_run
from streampca.runs.report.scores_by_labels import classes_of

DEGREES = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}
MONTHS = np.datetime64("1990-01") + np.arange(24)


def dimension(name: str, values: Any = None, size: int = 0, **attributes: str) -> Dimension:
    if values is None:
        return Dimension(name, size, None, attributes)
    values = np.asarray(values)
    return Dimension(name, len(values), values, attributes or dict(DEGREES.get(name, {})))


def labels_of(*features: Dimension, kept: NDArray[np.bool_] | None = None, **attributes: str) -> Labels:
    shape = tuple(d.size for d in features)
    variable = Variable("sst", tuple(d.name for d in features), shape, attributes)
    return Labels((dimension("time", MONTHS),), features, (variable,), kept)


def drawn_by(labels: Labels) -> Layout:
    layout = layout_of(labels)
    assert layout is not None
    return layout


def decoded(uri: str) -> NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB"))


LATITUDES = np.array([-45.0, 0.0, 45.0])


@pytest.mark.parametrize("lat", [LATITUDES, LATITUDES[::-1]], ids=["ascending", "descending"])
@pytest.mark.parametrize(
    "lon",
    [np.arange(0, 360, 60), np.arange(-180, 180, 60), np.arange(180, -180, -60), np.array([180, 240, 300, 0, 60, 120])],
    ids=["0 to 360", "-180 to 180", "descending", "from the date line on"],
)
@pytest.mark.parametrize("order", [("lat", "lon"), ("lon", "lat")])
def test_north_is_up_and_east_is_right_whatever_the_order_of_storage(
    lat: NDArray[Any], lon: NDArray[Any], order: tuple[str, str]
) -> None:
    sides = {"lat": lat, "lon": lon}
    layout = drawn_by(labels_of(*(dimension(name, sides[name]) for name in order)))
    grid = layout.grids[0]
    values = np.meshgrid(*(sides[name].astype(float) for name in order), indexing="ij")
    north, east = (layout.picture(values[order.index(name)].ravel()) for name in ("lat", "lon"))
    np.testing.assert_array_equal(north[:, 0], [45, 0, -45])
    assert (np.diff(np.unwrap(east[0], period=360)) > 0).all()
    assert (north == north[:, :1]).all()
    assert grid.is_map
    ticks = {tick.text.replace("\u00a0", " "): tick.percent for tick in (*grid.down.ticks, *grid.across.ticks)}
    equator = next(tick.percent for tick in grid.down.ticks if tick.text == "0°")
    assert equator == 50
    assert ticks["30° N"] < equator < ticks["30° S"]
    column = int(np.flatnonzero(east[0] % 360 == 60)[0])
    if "60° E" in ticks:
        assert ticks["60° E"] == pytest.approx(100 * (column + 0.5) / 6, abs=0.01)


def test_dimensions_are_recognised_by_units_and_standard_names() -> None:
    by_units = labels_of(
        Dimension("j", 3, LATITUDES, {"units": "degrees_N"}),
        Dimension("i", 4, np.arange(4.0), {"units": "degree_east"}),
    )
    by_names = labels_of(
        Dimension("j", 3, LATITUDES, {"standard_name": "latitude"}),
        Dimension("i", 4, np.arange(4.0), {"standard_name": "longitude"}),
    )
    assert drawn_by(by_units).grids[0].is_map
    assert drawn_by(by_names).grids[0].is_map
    assert not drawn_by(labels_of(dimension("lat", size=3), dimension("lon", size=4))).grids[0].is_map


def test_degrees_have_the_aspect_of_the_middle_latitude_and_images_that_of_their_places() -> None:
    world = labels_of(dimension("lat", np.arange(-89.0, 90, 2)), dimension("lon", np.arange(0.0, 360, 2)))
    assert drawn_by(world).grids[0].aspect == pytest.approx(2)
    north = labels_of(dimension("lat", np.arange(50.5, 70, 1)), dimension("lon", np.arange(0.5, 40, 1)))
    assert drawn_by(north).grids[0].aspect == pytest.approx(2 * np.cos(np.radians(60)))
    movie = labels_of(dimension("y", size=90), dimension("x", size=180))
    assert drawn_by(movie).grids[0].aspect == 2
    micrometres = labels_of(
        dimension("y", np.arange(10.0), units="µm"), dimension("x", 0.5 * np.arange(40.0), units="µm")
    )
    assert drawn_by(micrometres).grids[0].aspect == pytest.approx(2)


def test_pictures_have_a_pixel_for_each_place_and_are_thinned_alike_on_both_sides() -> None:
    small = drawn_by(labels_of(dimension("y", size=90), dimension("x", size=180)))
    assert small.picture(np.zeros(90 * 180)).shape == (90, 180)
    assert small.left_out == ()
    large = drawn_by(labels_of(dimension("y", size=2 * MAX_SIDE), dimension("x", size=4 * MAX_SIDE)))
    assert large.picture(np.zeros(8 * MAX_SIDE**2)).shape == (MAX_SIDE // 2, MAX_SIDE)
    assert large.left_out == (
        f"Pictures of sst show {MAX_SIDE // 2:,} of {2 * MAX_SIDE:,} × {MAX_SIDE:,} of {4 * MAX_SIDE:,} places.",
    )


def test_unequal_distances_are_drawn_to_scale() -> None:
    lat = np.array([-60.0, -20.0, -8.5, 1.5, 10.0, 20.0, 60.0])
    layout = drawn_by(labels_of(dimension("lat", lat), dimension("lon", np.arange(0.0, 80, 10))))
    rows = layout.picture(np.repeat(lat, 8))[:, 0]
    centres = 80 - (np.arange(len(rows)) + 0.5) * 160 / len(rows)
    np.testing.assert_array_equal(rows, [lat[np.abs(lat - centre).argmin()] for centre in centres])


def test_masked_places_are_grey_and_the_scale_is_symmetric_about_zero() -> None:
    kept = np.array([[True, False, True], [True, True, True]])
    labels = labels_of(
        dimension("lat", [10.0, 20.0]), dimension("lon", [0.0, 10.0, 20.0]), kept=kept.ravel(), units="K"
    )
    values = np.array([-3.0, 0.0, 1.0, 2.0, 1.5])
    figure = field_figure(drawn_by(labels), values, "Component 1", signed=True)
    ((panel,), scale) = figure.groups[0]
    pixels = decoded(panel.uri)
    assert pixels.shape == (2, 3, 3)
    np.testing.assert_array_equal(pixels[1, 1], pictures.MASKED)  # the second row of storage is the first of the map
    assert (pixels == pictures.MASKED).all(axis=-1).sum() == 1
    np.testing.assert_array_equal(pixels[1, 2], [247, 247, 245])
    assert pixels[1, 0, 2] > pixels[1, 0, 0]
    assert [end.replace("\u00a0", " ") for end in scale.ends] == ["−3.00", "0", "3.00 K"]
    assert scale.masked
    assert "Grey places are masked" in panel.alt
    assert limits(np.array([np.nan, -1.0, 4.0]), signed=False) == (-1.0, 4.0)


def test_a_panel_for_each_variable_and_each_place_of_the_smallest_dimension() -> None:
    level, y, x = dimension("level", [850.0, 500.0], units="hPa"), dimension("y", size=5), dimension("x", size=6)
    u = Variable("u", ("level", "y", "x"), (2, 5, 6), {"units": "m s-1"})
    t = Variable("t", ("y", "x"), (5, 6), {"units": "K"})
    layout = drawn_by(Labels((dimension("time", MONTHS),), (level, y, x), (u, t)))
    row = np.arange(90.0)
    figure = field_figure(layout, row, "Component 1", signed=True)
    titles = [[panel.title for panel in panels] for panels, _ in figure.groups]
    assert titles == [["u, level = 850 hPa", "u, level = 500 hPa"], ["t"]]
    np.testing.assert_array_equal(layout.grids[1].pixels(layout.fields(row)[0]), row[30:60].reshape(5, 6))
    assert [scale.ends[-1].replace("\u00a0", " ") for _, scale in figure.groups] == ["59.0 m s-1", "89.0 K"]


def test_no_more_than_some_places_have_a_panel_and_the_rest_is_said_to_be_left_out() -> None:
    layout = drawn_by(labels_of(dimension("band", size=40), dimension("v", size=50), dimension("w", size=60)))
    assert len(layout.grids) == MOST_PARTS
    assert [grid.part.index[0] for grid in layout.grids][:: MOST_PARTS - 1] == [0, 39]
    assert layout.left_out == (f"{MOST_PARTS} of 40 places along band of sst are shown.",)


def test_one_coordinate_is_a_line_and_names_are_none() -> None:
    spectrum = labels_of(dimension("wavelength", np.linspace(400, 900, 50), units="nm"), units="W")
    (chart,) = line_charts(drawn_by(spectrum), np.sin(np.arange(50.0)), "Component 1", "salt")
    assert "wavelength (nm)" in chart.svg
    assert "sst (W)" in chart.svg
    assert "wavelength (nm)" in chart.alt
    assert layout_of(labels_of(dimension("gene", np.array(["a", "b", "c"])))) is None
    assert layout_of(labels_of(dimension("dim_1", size=50))) is None
    sensors = labels_of(
        dimension("sensor", np.array(["left", "right"])), dimension("frequency", np.arange(9.0), units="Hz")
    )
    assert [drawn_by(sensors).title(line.part) for line in drawn_by(sensors).lines] == [
        "sensor = left",
        "sensor = right",
    ]


def test_dates_have_a_date_axis() -> None:
    monthly = figures_of_series.line(MONTHS, np.arange(24.0), ("time", "score"), "months")
    assert re.search(r">\s*1991\s*<", monthly)
    hourly = np.datetime64("2001-03-04T00") + np.arange(12)
    assert "2001-Mar-04" in figures_of_series.line(hourly, np.arange(12.0), ("time", "score"), "hours")
    far = np.array(["-9999-01-01", "12000-01-01"], dtype="datetime64[s]")
    assert "10,000" in figures_of_series.line(far, np.arange(2.0), ("time", "score"), "far")


def test_long_series_keep_the_extremes_of_every_run_of_values() -> None:
    y = np.zeros(5000)
    y[1234], y[4000:4010] = 100.0, np.nan
    _, (low, middle, high) = figures_of_series._binned(np.arange(5000), y)
    assert np.nanmax(high) == 100
    assert np.nanmax(middle) == pytest.approx(100 / figures_of_series.values_of_a_point(5000))
    assert np.nanmin(low) == 0
    assert np.isnan(middle).any()


def test_digits_of_texts_in_charts_are_not_cut_off() -> None:
    svg = figures_of_series.line(np.arange(3.0), np.array([0.0, 0.001, 0.002]), ("depth 0.0125", "y"), "digits")
    assert "depth 0.0125" in svg
    assert "0.0015" in svg


@pytest.mark.parametrize(
    ("values", "classes", "others"),
    [
        (["a", "b", "a", "b"], ("a", "b"), 0),
        ([f"c{i}" for i in range(10)] * 3, tuple(f"c{i}" for i in range(8)), 2),
        (["a", "b", "c"], None, 0),
        (["a", "a", "a"], None, 0),
    ],
)
def test_text_that_repeats_is_a_class(values: list[str], classes: tuple[str, ...] | None, others: int) -> None:
    result = classes_of(np.array(values))
    assert (None if result is None else result.names) == classes
    if result is not None:
        assert result.others == others
        assert [result.names[i] if i >= 0 else values[j] for j, i in enumerate(result.numbers)] == values
    assert classes_of(np.arange(4)) is None


def labelled_run(directory: Path, labels: Labels, k: int = 3, *, scores: bool = True, **options: Any) -> Path:
    """Write a run of random rows with `labels` in the model, and their scores with the coordinates of samples."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(labels.n_samples, labels.n_features)) * np.linspace(3, 1, labels.n_features) + 5
    run = make_run(directory, rows=rows, k=k, **options)
    model = replace(load_model(run / "model.zarr"), labels=labels)
    shutil.rmtree(run / "model.zarr")
    save_model(model, run / "model.zarr")
    if scores:
        group = zarr.open_group(str(run / "scores.zarr"), mode="w")
        write_sample_labels(group, labels, k)
        group.create_array("scores", data=model.transform(rows), config={"write_empty_chunks": True})
    return run


def test_the_report_of_a_field_has_maps_with_masked_places_and_series_on_a_date_axis(tmp_path: Path) -> None:
    kept = np.arange(24) % 5 > 0
    labels = labels_of(
        dimension("lat", np.linspace(-60, 60, 4)), dimension("lon", np.arange(0.0, 360, 60)), kept=kept, units="K"
    )
    _, page = audit(labelled_run(tmp_path / "run", labels))
    alts = [str(attributes["alt"]) for tag, attributes in page.tags if tag == "img"]
    assert sum(alt.startswith("Map of component") for alt in alts) == 3
    assert sum(alt.startswith("Map of mean of all rows, 4 lat × 6 lon") for alt in alts) == 1
    ratios = [
        str(attributes.get("style"))
        for tag, attributes in page.tags
        if tag == "img" and "Map" in str(attributes["alt"])
    ]
    assert ratios == ["aspect-ratio:2.25"] * 4
    assert page.text.count("Score of component") == 3
    assert "masked" in page.text
    assert re.search(r"\s1991\s", page.text)
    assert "How much sst changes" in page.text


def test_the_report_of_a_cube_has_lines_and_maps_of_scores(tmp_path: Path) -> None:
    y, x = dimension("y", np.arange(6.0), units="µm"), dimension("x", np.arange(9.0), units="µm")
    wavelength = dimension("wavelength", np.linspace(400, 700, 5), units="nm")
    labels = Labels((y, x), (wavelength,), (Variable("radiance", ("wavelength",), (5,)),))
    _, page = audit(labelled_run(tmp_path / "run", labels))
    lines = [
        str(a["aria-label"])
        for tag, a in page.tags
        if tag == "div" and "against wavelength (nm)" in str(a.get("aria-label"))
    ]
    assert len([line for line in lines if line.startswith("Line of Component")]) == 3
    images = [str(a["alt"]) for tag, a in page.tags if tag == "img"]
    assert sum(alt.startswith("Image of score of component") and "6 y × 9 x" in alt for alt in images) == 3


def test_the_report_of_named_columns_has_bars_with_names_and_classes_in_colours(tmp_path: Path) -> None:
    names = dimension("measure", np.array([f"length {i}" for i in range(20)]))
    flowers = dimension("flower", np.array(["setosa", "virginica"] * 15))
    labels = Labels((flowers,), (names,), (Variable("iris", ("measure",), (20,)),))
    html, page = audit(labelled_run(tmp_path / "run", labels))
    assert "length 0" in page.text
    assert "The 12 largest of 20 entries; 8 are not shown." in page.text
    assert "var(--class-1)" in html
    assert "virginica" in page.text


def test_without_scores_the_report_has_no_series(tmp_path: Path) -> None:
    labels = labels_of(dimension("y", size=4), dimension("x", size=5))
    _, page = audit(labelled_run(tmp_path / "run", labels, scores=False))
    assert "Score of component" not in page.text
    assert "Rows on these axes" in page.text


def test_names_and_units_of_any_text_are_shown_as_they_are(tmp_path: Path) -> None:
    nasty = "<blink>$x^2$ 漢字\x1b\u202e&"
    labels = labels_of(dimension("wavelength", np.arange(7.0), units=nasty, long_name=nasty), units=nasty)
    html, page = audit(labelled_run(tmp_path / "run", labels))
    assert "<blink>" not in html
    assert "\u202e" not in html
    assert "<blink>$x^2$ 漢字\\x1b\\u202e&" in page.text


def test_coordinates_beyond_the_range_of_numbers_have_no_ticks() -> None:
    far = drawn_by(labels_of(dimension("y", [-1.7e308, 1.7e308]), dimension("x", [0.0, 5e-324])))
    assert far.grids[0].down.ticks == far.grids[0].across.ticks == ()


def test_weights_of_features_are_part_of_scores_and_maps(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    rows, weight = rng.normal(size=(40, 6)) + 3, np.array([1.0, 4.0, 0.25, 0.0, 1.0, 2.0])
    directory = make_run(tmp_path / "run", rows=rows * np.sqrt(weight), k=2)
    weighted = load_model(directory / "model.zarr")
    model = replace(weighted, mean=rows.mean(axis=0), feature_weight=weight, constant_features=np.empty(0, np.int64))
    shutil.rmtree(directory / "model.zarr")
    save_model(model, directory / "model.zarr")
    run = read_run(directory)
    np.testing.assert_allclose(run.standardised(rows) @ run.components[:].T, model.transform(rows), atol=1e-12)
    back = run.restored(model.transform(rows) @ run.components[:])[:, weight > 0]
    np.testing.assert_allclose(back, model.inverse_transform(model.transform(rows))[:, weight > 0], atol=1e-12)
