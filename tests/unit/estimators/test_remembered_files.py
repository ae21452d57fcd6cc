"""The record of files in states: what is already in is refused by `partial_fit`, `merge` and fits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from fragments import write_hdf5, write_npy, write_parquet

import streampca as sp
from streampca.errors import DataError, MergeError, ModelError

ROWS = np.random.default_rng(3).standard_normal((400, 6)) * np.arange(1, 7)
CUTS = (0, 100, 250, 300, 400)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return write_npy(tmp_path / "s", ROWS, CUTS)


def names(pca: sp.PCA) -> list[str]:
    return [Path(each.name).name for each in pca._fitted_state.fragments]


def test_a_saved_state_has_the_record_of_every_file(tmp_path, shards):
    pca = sp.PCA(2).fit(shards[:2]).partial_fit(str(shards[2])).partial_fit(ROWS[300:])
    pca.save(tmp_path / "m.zarr", state=True)
    loaded = sp.load(tmp_path / "m.zarr")
    assert loaded._fitted_state.fragments == (*sp.open(shards[:2]).fragments, *sp.open(shards[2]).fragments)
    assert [each.n_rows for each in loaded._fitted_state.fragments] == [100, 150, 50]
    with pytest.raises(MergeError, match=r"part-2\.npy is already among the rows of the model: its 50 rows"):
        loaded.partial_fit(shards[2:])
    assert loaded.n_samples_seen_ == 400
    pca.save(tmp_path / "m.zarr", state=True, overwrite=True)  # every file there is known as that of a model


@pytest.mark.parametrize("kind", ["npy", "parquet", "hdf5"])
def test_a_file_is_refused_under_another_name_too(tmp_path, kind):
    place = tmp_path / f"first.{kind if kind != 'hdf5' else 'h5'}"
    if kind == "npy":
        np.save(place, ROWS)
    elif kind == "parquet":
        write_parquet(place, {f"c{index}": column for index, column in enumerate(ROWS.T)})
    else:
        write_hdf5(place, ROWS)
    pca = sp.PCA(2).fit(place)
    copied = shutil.copy(place, place.with_stem("second"))
    with pytest.raises(
        MergeError, match=r"second\.\w+ is already among .*, as .*first\.\w+, which has the same content"
    ):
        pca.partial_fit(copied)
    os.remove(place)  # what is in stays known
    with pytest.raises(MergeError, match="already among"):
        pca.partial_fit(copied)
    pca.partial_fit(sp.open(copied).to_dask())
    assert pca.n_samples_seen_ == 800


def test_models_of_the_same_file_are_not_merged(shards):
    first, second = sp.PCA(2).fit(shards[:2]), sp.PCA(2).fit(shards[1:])
    with pytest.raises(MergeError, match=r"part-1\.npy is already among"):
        sp.merge([first, second])
    total = sp.merge([first, sp.PCA(2).fit(shards[2:])])
    assert names(total) == [f"part-{index}.npy" for index in range(4)]
    with pytest.raises(MergeError, match=r"part-3\.npy is already"):
        total.partial_fit(shards[3])
    total.partial_unfit(shards[3]).partial_fit(shards[3])
    np.testing.assert_allclose(total.explained_variance_, sp.PCA(2).fit(ROWS).explained_variance_, rtol=1e-12)


@pytest.mark.parametrize("estimator", [sp.PCA(2), sp.KernelPCA(2)])
def test_a_fit_refuses_two_files_of_the_same_content(estimator, shards):
    copied = shutil.copy(shards[0], shards[0].with_name("part-9.npy"))
    with pytest.raises(DataError, match=r"part-9\.npy has the same content as .*part-0\.npy: its 100 rows would count"):
        estimator.fit(str(shards[0].parent))
    sp.PCA(2).fit(shards).transform([shards[0], copied])


def test_files_that_differ_between_what_the_fingerprint_takes_are_two_files(tmp_path):
    values = np.ones((2, 3000, 4))
    values[1, 600] = 2
    for index, rows in enumerate(values):
        np.save(tmp_path / f"{index}.npy", rows)
    one, two = (sp.open([tmp_path / f"{index}.npy"]).fragments[0] for index in range(2))
    assert one.fingerprint == two.fingerprint
    pca = sp.PCA(1).fit(tmp_path)
    assert pca.n_samples_seen_ == 6000
    assert sp.PCA(1).partial_fit(str(tmp_path / "0.npy")).partial_fit(str(tmp_path / "1.npy")).n_samples_seen_ == 6000


def test_files_without_rows_repeat_nothing(tmp_path):
    for name, rows in (("a", ROWS[:0]), ("b", ROWS[:0]), ("c", ROWS)):
        write_parquet(tmp_path / f"{name}.parquet", {f"c{index}": column for index, column in enumerate(rows.T)})
    assert sp.PCA(2).fit(tmp_path).n_samples_seen_ == 400


def test_damaged_records_are_refused(tmp_path, shards):
    sp.PCA(2).fit(shards).save(tmp_path / "m.zarr", state=True)
    place = tmp_path / "m.zarr" / "state"
    shutil.copytree(place / "fragment_n_bytes", tmp_path / "kept")
    shutil.rmtree(place / "fragment_n_rows")
    with pytest.raises(ModelError, match="records of its files are missing"):
        sp.load(tmp_path / "m.zarr")
    shutil.copytree(tmp_path / "kept", place / "fragment_n_rows")
    with pytest.raises(ModelError, match="SHA-256"):
        sp.load(tmp_path / "m.zarr")
    document = json.loads((place / "zarr.json").read_text())
    assert "fragment_name" in document["attributes"]["sha256"]
