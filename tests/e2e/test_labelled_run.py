"""Runs on arrays with named dimensions: source keys of the file, new data, verification and resumption with the mask of the fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cftime
import h5py
import numpy as np
import pytest
import zarr
from facade import StopSignalError
from numpy.typing import NDArray
from scipy.io import netcdf_file
from stores import Command

import streampca as sp
from streampca.sources.listing import list_store

SCALE, OFFSET, FILL = 0.01, 5.0, -32768
LAND = np.zeros((4, 5), dtype=bool)
LAND[0, :3] = LAND[2, 1] = True


def write_field(path: Path, *, n: int = 60, seed: int = 0, land: NDArray[np.bool_] = LAND) -> NDArray[np.float32]:
    """Write ``sst(time, lat, lon)``, packed with land, and ``ice(lat, time)``; return the decoded rows of the ocean and of ice."""
    rng = np.random.default_rng(seed)
    group = zarr.open_group(path, mode="w")
    packed = rng.integers(-2000, 2000, (n, *land.shape)).astype(np.int16)
    packed[:, land] = FILL
    options: dict[str, Any] = {"chunks": (16, 3, 2), "dimension_names": ("time", "lat", "lon")}
    attributes = {"scale_factor": SCALE, "add_offset": OFFSET, "_FillValue": FILL, "units": "degC"}
    group.create_array("sst", data=packed, attributes=attributes, **options)
    ice = rng.standard_normal((land.shape[0], n)).astype(np.float32)
    group.create_array("ice", data=ice, chunks=(2, 16), dimension_names=("lat", "time"))
    group.create_array("ocean", data=~land, dimension_names=("lat", "lon"))
    lat = np.linspace(-45.0, 45.0, land.shape[0])
    group.create_array("lat", data=lat, dimension_names=("lat",), attributes={"units": "degrees_north"})
    group.create_array("lon", data=np.arange(0.0, 10.0 * land.shape[1], 10.0), dimension_names=("lon",))
    sst = packed[:, ~land] * np.float32(SCALE) + np.float32(OFFSET)
    return np.concatenate([sst, ice.T], axis=1)


def configure(path: Path, *lines: str, source: str, output: str = "runs/job") -> Path:
    """Write a configuration for the store ``field.zarr`` with the further keys of `source`."""
    text = [f"source: {{path: field.zarr, {source}}}", f"output: {{directory: {output}, report: false}}", *lines]
    path.write_text("\n".join(["model: {n_components: 3}", *text, ""]))
    return path


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NDArray[np.float32]:
    """Write the field into a new working directory and return its rows, of the ocean and of ice."""
    monkeypatch.chdir(tmp_path)
    return write_field(tmp_path / "field.zarr")


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return the command."""
    return Command(capsys)


def leading_variances(values: NDArray[Any], k: int = 3) -> NDArray[np.float64]:
    """Return the k largest eigenvalues of the covariance matrix."""
    centred = values - values.mean(axis=0, dtype=np.float64)
    variances: NDArray[np.float64] = np.linalg.svd(centred, compute_uv=False)[:k] ** 2 / (len(values) - 1)
    return variances


@pytest.mark.parametrize("mask", ["observed", "survey", "ocean"])
def test_keys_of_the_source_in_a_file_are_those_of_open(rows: NDArray[np.float32], mask: str) -> None:
    finished = sp.run(configure(Path("c.yaml"), source=f"variables: [sst, ice], samples: time, mask: {mask}"))
    np.testing.assert_allclose(finished.model.explained_variance_, leading_variances(rows), rtol=1e-5)
    assert finished.manifest["source"]["shape"] == list(rows.shape)
    again = sp.run(finished.directory / "config.yaml", overrides=["output.directory=again"])
    np.testing.assert_array_equal(again.model.components_, finished.model.components_)


def test_raw_values_are_read_where_the_file_says_so(rows: NDArray[np.float32]) -> None:
    finished = sp.run(configure(Path("c.yaml"), source="array: sst, samples: [time], decode: raw, mask: ocean"))
    np.testing.assert_allclose(finished.model.mean_, (rows[:, :16].mean(axis=0) - OFFSET) / SCALE, atol=0.01)


@pytest.mark.parametrize(
    ("keys", "status", "words"),
    [
        ("array: sst", 5, ["time (60)", "source.samples"]),
        ("array: sst, samples: tim", 2, ["did you mean 'time'"]),
        (
            "array: sst, samples: time, orientation: samples_first",
            2,
            ["source: samples and features already give the orientation"],
        ),
        ("variables: [sst, ocean], samples: time", 2, ["ocean", "no dimension 'time'"]),
        ("array: sst, samples: time, mask: land", 5, ["neither an .npy file nor an array beside"]),
    ],
)
def test_keys_that_do_not_fit_the_data_are_refused(
    rows: NDArray[np.float32], call: Command, keys: str, status: int, words: list[str]
) -> None:
    call.quietly("run", configure(Path("c.yaml"), source=keys)).refused(status, *words)
    assert not Path("runs").exists()


def test_inspect_lists_dimensions_and_proposes_a_source(rows: NDArray[np.float32], call: Command) -> None:
    known = json.loads(call("inspect", "field.zarr", "--json").out)
    sst = next(entry for entry in known["arrays"] if entry["name"] == "sst")
    assert sst["dims"] == ["time", "lat", "lon"]
    assert sst["packing"] == {"scale_factor": SCALE, "add_offset": OFFSET, "_FillValue": FILL}
    assert {"name": "lat", "size": 4, "first": "-45", "last": "45", "units": "degrees_north"} in known["dimensions"]
    assert known["proposal"] == {"path": "field.zarr", "array": "sst", "samples": ["time"], "mask": "observed"}
    printed = call("inspect", "field.zarr").out
    assert "lat: 4, -45 to 45 degrees_north" in printed
    assert "source: {path: field.zarr, array: sst, samples: [time], mask: observed}" in printed
    alone = json.loads(call("inspect", "field.zarr", "--array", "sst", "--json").out)
    assert (alone["kind"], alone["proposal"]) == ("array", known["proposal"])
    table = json.loads(
        call("inspect", "field.zarr", "--variables", "sst,ice", "--samples", "time", "--mask", "ocean", "--json").out
    )
    assert (table["kind"], table["shape"], table["dtype"]) == ("source", [60, 20], "float64")
    assert (table["dimensions"][0]["name"], table["dimensions"][0]["of"]) == ("time", "samples")
    assert [entry["dims"] for entry in table["variables"]] == [["lat", "lon"], ["lat"]]
    call("inspect", "field.zarr", "--array", "sst", "--samples", "tme").refused(2, "did you mean 'time'")


@pytest.mark.parametrize(
    ("arrays", "proposal"),
    [
        (
            {"u": ("time", "y", "x"), "v": ("time", "y", "x"), "z": ("y", "x")},
            {"variables": ["u", "v"], "samples": ["time"]},
        ),
        ({"cube": ("y", "x", "wavelength")}, {"array": "cube", "samples": ["y", "x"]}),
        ({"gene": ("cell", "name")}, {"array": "gene"}),
        ({"ice": ("station", "time")}, {"array": "ice", "samples": ["time"]}),
        ({"x": None}, {"array": "x", "samples": ["dim_0"]}),
        ({"x": ("time",)}, None),
    ],
)
def test_proposal_takes_times_or_places_as_samples(
    tmp_path: Path, arrays: dict[str, tuple[str, ...] | None], proposal: dict[str, object] | None
) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    for name, dims in arrays.items():
        shape = (3,) * (3 if dims is None else len(dims))
        group.create_array(name, shape=shape, dtype="f4", dimension_names=dims)
    assert list_store(str(tmp_path / "g.zarr")).proposal == proposal


def test_inspect_of_a_run_names_its_dimensions(rows: NDArray[np.float32], call: Command) -> None:
    sp.run(configure(Path("c.yaml"), source="variables: [sst, ice], samples: time, mask: observed"))
    known = json.loads(call("inspect", "runs/job", "--json").out)
    assert [entry["name"] for entry in known["variables"]] == ["sst", "ice"]
    assert {
        "name": "lat",
        "size": 4,
        "first": "-45",
        "last": "45",
        "units": "degrees_north",
        "of": "features",
    } in known["dimensions"]
    assert "labels" not in known["source"]
    model = json.loads(call("inspect", "runs/job/model.zarr", "--json").out)
    assert model["variables"] == known["variables"]
    assert [entry["name"] for entry in model["dimensions"]] == [entry["name"] for entry in known["dimensions"]]


def test_fingerprints_of_arrays_with_many_dimensions_are_verified(rows: NDArray[np.float32], call: Command) -> None:
    assert call.quietly("fingerprint", "field.zarr", "--array", "sst").status == 0
    config = configure(Path("c.yaml"), source="variables: [sst, ice], samples: time, mask: observed")
    sp.run(config)
    assert "there is no fingerprint" in call.quietly("verify", "runs/job").out
    Path("field.zarr.sst.fingerprint.npz").unlink()
    made = json.loads(call.quietly("fingerprint", config, "--json").out)["fingerprints"]
    assert [entry["path"] for entry in made] == ["field.zarr.sst.fingerprint.npz", "field.zarr.ice.fingerprint.npz"]
    called = call.quietly("verify", "runs/job")
    assert called.status == 0, called.err
    assert "every chunk is as in" in called.out
    call.quietly("fingerprint", config, "--out", "one.json").refused(2, "--out is one file")
    chunk = Path("field.zarr/sst/c/0/0/0")
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"x")
    call.quietly("verify", "runs/job").refused(5, "c/0/0/0", "not what was fingerprinted")


def scores_of(path: str) -> NDArray[np.float32]:
    """Return stored scores."""
    array = zarr.open_array(f"{path}/scores", mode="r")
    return np.asarray(array[...])


def write_new_field(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Write ``new.zarr``, with as many places of land as the data of the fit, but one elsewhere; return rows of the fit's features."""
    land = LAND.copy()
    land[0, 0], land[3, 4] = False, True
    write_field(Path("new.zarr"), n=40, seed=1, land=land)
    table = sp.open("new.zarr", variables=["sst", "ice"], samples="time")
    values: NDArray[np.float32] = table.read(0, 40)[0]
    return values[:, np.append(~LAND.ravel(), np.ones(4, dtype=bool))]


@pytest.mark.deep(keep=2)
@pytest.mark.parametrize("mask", ["observed", "ocean"])
@pytest.mark.parametrize("model", ["runs/job", "runs/job/model.zarr"])
def test_transform_opens_new_data_with_dimensions_variables_and_mask_of_the_fit(
    rows: NDArray[np.float32], call: Command, mask: str, model: str
) -> None:
    keys = f"variables: [sst, ice], samples: time, mask: {mask}"
    fitted = sp.run(configure(Path("c.yaml"), "preprocess: {missing: mean}", source=keys)).model
    new = write_new_field(rows)
    called = call.quietly("transform", model, "new.zarr", "out.zarr")
    assert called.status == 0, called.err
    expected = np.nan_to_num(new - fitted.mean_) @ fitted.components_.T
    complete = ~np.isnan(new).any(axis=1)
    np.testing.assert_allclose(scores_of("out.zarr")[complete], expected[complete], atol=1e-4)
    np.testing.assert_array_equal(np.asarray(sp.load(model).transform("new.zarr")), scores_of("out.zarr"))
    others = ["--mask", "observed"] if mask == "observed" else ["--mask", "survey"]
    call.quietly("transform", model, "new.zarr", "other.zarr", *others).refused(2, "another mask")
    call.quietly("transform", model, "new.zarr", "other.zarr", "--samples", "lat").refused(5, "mask has shape (24,)")


def test_transform_reads_raw_values_where_the_fit_did(rows: NDArray[np.float32], call: Command) -> None:
    sp.run(configure(Path("c.yaml"), source="array: sst, samples: time, decode: raw, mask: ocean"))
    assert call.quietly("transform", "runs/job", "field.zarr", "out.zarr").status == 0
    np.testing.assert_array_equal(scores_of("out.zarr"), scores_of("runs/job/scores.zarr"))
    assert call.quietly("transform", "runs/job", "field.zarr", "decoded.zarr", "--decode", "auto").status == 0
    assert not np.allclose(scores_of("decoded.zarr"), scores_of("out.zarr"))


def test_transform_of_an_array_in_two_dimensions_takes_its_orientation_from_the_fit(
    rows: NDArray[np.float32], call: Command
) -> None:
    sp.run(configure(Path("c.yaml"), source="array: ice, samples: time"))
    for options in ([], ["--array", "ice", "--samples", "time"], ["--array", "ice", "--orientation", "features_first"]):
        assert call.quietly("transform", "runs/job", "field.zarr", "out.zarr", "--overwrite", *options).status == 0
        np.testing.assert_array_equal(scores_of("out.zarr"), scores_of("runs/job/scores.zarr"))
    assert call.quietly("transform", "runs/job", "field.zarr/ice", "alone.zarr").status == 0
    np.testing.assert_array_equal(scores_of("alone.zarr"), scores_of("runs/job/scores.zarr"))


def test_verify_takes_the_mask_of_the_fit(rows: NDArray[np.float32], call: Command) -> None:
    sp.run(configure(Path("c.yaml"), source="variables: [sst, ice], samples: time, mask: ocean"))
    called = call.quietly("verify", "runs/job")
    assert called.status == 0, called.err
    group = zarr.open_group("field.zarr")
    group["ocean"][...] = np.roll(~LAND, 1)
    called = call.quietly("verify", "runs/job")
    assert called.status == 0, called.err


@pytest.mark.parametrize("mask", ["observed", "survey"])
def test_stopped_run_goes_on_with_the_same_mask_or_not_at_all(
    rows: NDArray[np.float32], call: Command, stop_at_scores: Callable[[Any], None], mask: str
) -> None:
    keys = f"variables: [sst, ice], samples: time, mask: {mask}"
    config = configure(Path("c.yaml"), "checkpoint: {every: 1ms}", source=keys)
    whole = sp.run(config, overrides=["output.directory=whole"])

    with pytest.raises(StopSignalError):
        sp.run(config, progress=stop_at_scores)
    resumed = sp.run(config, resume=True)
    assert resumed.manifest["resumed"] is not None
    np.testing.assert_array_equal(resumed.model.components_, whole.model.components_)
    np.testing.assert_array_equal(scores_of("runs/job/scores.zarr"), scores_of("whole/scores.zarr"))
    with pytest.raises(StopSignalError):
        sp.run(config, overrides=["output.directory=other"], progress=stop_at_scores)
    group = zarr.open_group("field.zarr")
    group["sst"][:, 3, 4] = FILL
    call.quietly("run", config, "--set", "output.directory=other", "--resume").refused(6, "other.checkpoint")


def _write_files(place: Path, end: str) -> NDArray[np.float64]:
    """Write ``sst(time, lat, lon)`` in two files, with weights, classes and a mask; return its rows."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(90, 4, 5))
    arrays: dict[str, tuple[tuple[str, ...], Any]] = {
        "sst": (("time", "lat", "lon"), rows),
        "time": (("time",), 45.0 * np.arange(90)),
        "lat": (("lat",), np.array([-60.0, -20, 20, 60])),
        "land": (("lat", "lon"), (random.random((4, 5)) < 0.7).astype("i1")),
        "importance": (("time",), 1.0 + np.arange(90) % 3),
        "kind": (("time",), np.arange(90, dtype="i4") % 2),
    }
    for name, span in (("1", slice(0, 40)), ("2", slice(40, 90))):
        parts = {key: (dims, np.asarray(v)[span] if dims[0] == "time" else v) for key, (dims, v) in arrays.items()}
        if end == "nc":
            with netcdf_file(place / f"{name}.nc", "w") as file:
                for dim, n in (("time", len(parts["time"][1])), ("lat", 4), ("lon", 5)):
                    file.createDimension(dim, n)
                for key, (dims, values) in parts.items():
                    file.createVariable(key, values.dtype, dims)[:] = values
                file.variables["time"].units, file.variables["time"].calendar = "days since 1999-01-01", "noleap"
            continue
        with h5py.File(place / f"{name}.h5", "w") as file:
            for key in sorted(parts, key=lambda key: parts[key][0] != (key,)):
                file[key] = parts[key][1]
                for axis, dim in enumerate(parts[key][0]):
                    if dim in file and dim != key:
                        file[dim].make_scale(dim)
                        file[key].dims[axis].attach_scale(file[dim])
                    elif dim != key:
                        file[key].dims[axis].label = dim
            file["time"].attrs.update({"units": "days since 1999-01-01", "calendar": "noleap"})
    return rows.reshape(90, 20)


@pytest.mark.parametrize("end", ["nc", "h5"])
def test_arrays_of_several_files_are_masks_weights_and_classes_by_name(end: str, tmp_path: Path, call: Command) -> None:
    rows = _write_files(tmp_path, end)
    (tmp_path / "c.yaml").write_text(
        f"source: {{path: '{tmp_path}/*.{end}', samples: [time], mask: land, labels: kind}}\n"
        "model: {n_components: 3}\n"
        "preprocess: {sample_weight: importance, feature_weight: cos(lat), remove: {groups: time.month}}\n"
        f"output: {{directory: {tmp_path}/out, scores: true}}\n"
    )
    assert call("run", str(tmp_path / "c.yaml"), "--quiet").status == 0
    assert call("verify", str(tmp_path / "out"), "--quiet").status == 0
    pca = sp.load(tmp_path / "out" / "model.zarr")
    table = sp.open(str(tmp_path / f"*.{end}"), samples="time", array="sst", mask="land")
    mask = table.labels.mask
    weights = np.repeat(np.cos(np.radians([-60.0, -20, 20, 60])), 5)[mask]
    dates = cftime.num2date(45 * np.arange(90), "days since 1999-01-01", "noleap")
    groups = np.array([date.month for date in dates])
    want = sp.PCA(3, feature_weight=weights, remove={"groups": groups})
    want.fit(rows[:, mask], sample_weight=1.0 + np.arange(90) % 3)
    np.testing.assert_allclose(pca.explained_variance_, want.explained_variance_, rtol=1e-6)
    listed = call("inspect", str(tmp_path / f"1.{end}")).out
    assert "proposal" in listed
    assert "sst: 40 x 4 x 5 (time, lat, lon)" in listed


def test_a_group_whose_mask_is_named_and_its_table_is_not_is_verified(tmp_path: Path, call: Command) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    random = np.random.default_rng(0)
    group.create_array("field", data=random.normal(size=(50, 3, 4)), dimension_names=("time", "lat", "lon"))
    group.create_array("land", data=random.random((3, 4)) < 0.7, dimension_names=("lat", "lon"))
    (tmp_path / "c.yaml").write_text(
        f"source: {{path: {tmp_path}/x.zarr, samples: [time], mask: land}}\nmodel: {{n_components: 2}}\n"
        f"output: {{directory: {tmp_path}/out}}\n"
    )
    assert call("run", str(tmp_path / "c.yaml"), "--quiet").status == 0
    assert call("verify", str(tmp_path / "out"), "--quiet").status == 0
