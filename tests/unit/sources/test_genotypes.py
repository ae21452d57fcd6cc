"""Genotypes of VCF Zarr: dosages of people against numpy, names, masks, and how alleles themselves are asked for."""

from __future__ import annotations

import pickle
import tracemalloc
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from stores import Command, config_text

import streampca as sp
from streampca.errors import DataError

DIMS = ("variants", "samples", "ploidy")
N, D = 60, 150


def draw(ploidy: int = 2) -> Any:
    """Return alleles of two populations, ``(variants, samples, ploidy)``: 0 to 2, −1 missing, −2 where there is none."""
    rng = np.random.default_rng(ploidy)
    share = np.clip(rng.uniform(0.1, 0.5, (D, 1)) + rng.normal(scale=0.15, size=(D, 2)), 0.05, 0.9)
    alleles = rng.binomial(1, share[:, np.arange(N) % 2][..., None], (D, N, ploidy)).astype(np.int8)
    alleles[(alleles == 1) & (rng.random(alleles.shape) < 0.05)] = 2
    alleles[rng.random(alleles.shape) < 0.01] = -1
    alleles[3, :20, 1:] = -2
    alleles[4, 5] = -2
    alleles[6] = 0
    return alleles


def dosage(alleles: Any) -> Any:
    """Return what people have of alternate alleles, ``(samples, variants)``, NaN where one of them or all are not known."""
    counts = (alleles > 0).sum(axis=2).astype(float)
    counts[(alleles == -1).any(axis=2) | (alleles < 0).all(axis=2)] = np.nan
    return counts.T


def write(path: Path, alleles: Any, dims: tuple[str, ...] = DIMS, version: int = 3) -> Path:
    """Write a store of VCF Zarr with chunks of some variants and samples."""
    group = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]

    def add(name: str, values: Any, names: tuple[str, ...], chunks: Any = None) -> None:
        more = {"dimension_names": names} if version == 3 else {"attributes": {"_ARRAY_DIMENSIONS": list(names)}}
        array = group.create_array(
            name,
            shape=values.shape,
            dtype=str if values.dtype.kind == "U" else values.dtype,
            chunks=chunks or values.shape,
            **more,  # type: ignore[arg-type]
            config={"write_empty_chunks": True},
        )
        array[...] = values

    sizes = {"variants": 40, "samples": 25, "ploidy": alleles.shape[2]}
    order = [DIMS.index(name) for name in dims]
    add("call_genotype", alleles.transpose(order), dims, tuple(sizes[name] for name in dims))
    ids = np.array([f"rs{i}" if i % 5 else "." for i in range(D)])
    add("variant_id", ids, ("variants",))
    add("variant_contig", (np.arange(D) // 100).astype("i1"), ("variants",))
    add("contig_id", np.array(["chr1", "chr2"]), ("contigs",))
    add("variant_position", (1000 + np.arange(D)).astype("i4"), ("variants",))
    add("variant_filter_pass", np.arange(D) % 3 > 0, ("variants",))
    add("sample_id", np.array([f"P{i}" for i in range(N)]), ("samples",))
    add("sample_batch", np.arange(N) % 4, ("samples",))
    return path


def patterson(rows: Any) -> Any:
    """Return genotypes about their means over the root of their expected variance, 0 where missing or constant."""
    mean = np.nanmean(rows, axis=0)
    centred = np.where(np.isnan(rows), 0, rows - mean)
    varying = centred.any(axis=0)
    return centred / np.where(varying, np.sqrt(mean * (1 - mean / 2)), 1.0)


@pytest.mark.parametrize("dims", [*permutations(DIMS)])
@pytest.mark.parametrize("ploidy", [1, 2, 4])
def test_people_are_rows_of_dosages(tmp_path: Path, dims: tuple[str, ...], ploidy: int) -> None:
    alleles = draw(ploidy)
    table = sp.open(write(tmp_path / "x.vcz", alleles, dims), array="call_genotype", samples="samples")
    expected = dosage(alleles).astype("f4")
    assert (table.shape, table.dtype) == ((N, D), np.float32)
    for each in (table, pickle.loads(pickle.dumps(table))):
        np.testing.assert_array_equal(each.read(0, N)[0], expected)
        np.testing.assert_array_equal(each.slice(13, 40).read(13, 31)[0], expected[13:31])
        features = pickle.loads(pickle.dumps(each.by_features()))
        np.testing.assert_array_equal(features.read(0, D)[0], expected.T)
        np.testing.assert_array_equal(features.read(37, 90)[0], expected.T[37:90])
    np.testing.assert_array_equal(table.to_dask(17).compute(), expected)
    assert not getattr(table.by_features(), "needs_all_rows", False)


@pytest.mark.parametrize("version", [2, 3])
def test_names_columns_masks_and_notes(tmp_path: Path, version: int) -> None:
    alleles = draw()
    path = write(tmp_path / "x.vcz", alleles, version=version)
    table = sp.open(path, array="call_genotype", samples="samples", mask="variant_filter_pass")
    used = np.flatnonzero(np.arange(D) % 3 > 0)
    assert table.feature_names[:3] == ("rs1", "rs2", "rs4")
    assert table.feature_names[3] == "chr1:1005"
    assert table.labels.samples[0].coordinate.tolist()[:2] == ["P0", "P1"]
    assert table.sample_columns.values("sample_batch").tolist()[:5] == [0, 1, 2, 3, 0]
    np.testing.assert_array_equal(table.read(0, N)[0], dosage(alleles)[:, used].astype("f4"))
    np.testing.assert_array_equal(table.by_features().read(9, 33)[0], dosage(alleles).T[used[9:33]].astype("f4"))
    plan = str(sp.PCA(2, missing="mean").plan(table))
    assert "dosages, the numbers of alternate alleles" in plan
    assert "the stored numbers -1" in plan
    described = table.describe()
    assert (described["genotypes"], described["array"], described["n_masked"]) == ("dosage", "call_genotype", 50)


def test_alleles_are_features_where_they_are_asked_for(tmp_path: Path) -> None:
    alleles = draw()
    path = write(tmp_path / "x.vcz", alleles)
    turned = alleles.transpose(1, 0, 2).reshape(N, -1)
    named = sp.open(path, array="call_genotype", features=["variants", "ploidy"])
    raw = sp.open(path, array="call_genotype", samples="samples", decode="raw")
    for table in (named, raw):
        np.testing.assert_array_equal(table.read(0, N)[0], turned)
        assert "dosage" not in str(sp.PCA(2).plan(table))
    with pytest.raises(DataError, match=r"say which of them are samples, for example source.samples: \[samples\]"):
        sp.open(path, array="call_genotype")
    floats = xr.DataArray(np.where(alleles < 0, np.nan, alleles), dims=DIMS, name="call_genotype")
    with pytest.raises(DataError, match=r"dtype float64 along the dimension ploidy: expected alleles as integers"):
        sp.open(floats, samples="samples")


@pytest.mark.parametrize("kind", ["memory", "dask", "store"])
def test_objects_of_xarray_are_dosages_too(tmp_path: Path, kind: str) -> None:
    alleles = draw()
    data = xr.Dataset({"call_genotype": (DIMS, alleles)})
    if kind == "store":
        data = xr.open_zarr(write(tmp_path / "x.vcz", alleles), mask_and_scale=False, consolidated=False)
    data = data.chunk(variants=40, samples=20) if kind == "dask" else data
    table = sp.open(data, variables="call_genotype", samples="samples")
    np.testing.assert_array_equal(table.read(5, N)[0], dosage(alleles)[5:].astype("f4"))
    np.testing.assert_array_equal(table.by_features().read(3, 77)[0], dosage(alleles).T[3:77].astype("f4"))


@pytest.mark.parametrize("solver", ["gram", "covariance", "sketch", "adaptive"])
@pytest.mark.parametrize("stored", ["alleles", "dosages"])
def test_components_are_those_of_numpy(tmp_path: Path, solver: Any, stored: str) -> None:
    """Of alleles, and of int8 dosages with −1 for missing ones; variants that do not vary are left out and counted."""
    alleles = draw()
    rows = dosage(alleles)
    path: Any = write(tmp_path / "x.vcz", alleles)
    if stored == "dosages":
        path = tmp_path / "y.zarr"
        zarr.create_array(path, data=np.nan_to_num(rows, nan=-1).astype(np.int8), chunks=(25, 40))
        table = sp.open(path, missing_value=-1)
    else:
        table = sp.open(path, array="call_genotype", samples="samples")
    values = np.linalg.svd(patterson(rows), compute_uv=False) ** 2 / (N - 1)
    more = {"sketch_size": N - 1} if solver in ("sketch", "adaptive") else {}
    pca = sp.PCA(3, solver=solver, scale="patterson", missing="mean", **more).fit(table)
    np.testing.assert_allclose(
        pca.explained_variance_, values[:3], rtol=1e-6 if solver in ("gram", "covariance") else 1e-5
    )
    np.testing.assert_allclose(pca.total_variance_, values.sum(), rtol=1e-6)
    assert pca.constant_features_.tolist() == [6]
    scores = patterson(rows) @ pca.components_.T
    filled = sp.PCA(3, solver=solver, scale="patterson", missing="mean", missing_scores="mean", **more).fit(table)
    np.testing.assert_allclose(np.abs(np.asarray(filled.transform(table))), np.abs(scores), atol=2e-4)


def test_a_run_by_a_file(tmp_path: Path) -> None:
    alleles = draw()
    path = write(tmp_path / "x.vcz", alleles)
    text = config_text(
        path, tmp_path / "out", "model: {n_components: 2}", "preprocess: {scale: patterson, missing: mean}"
    )
    names = "array: call_genotype, samples: samples, mask: variant_filter_pass"
    (tmp_path / "job.yaml").write_text(text.replace(f"'{path}'", f"'{path}', {names}"))
    run = sp.run(tmp_path / "job.yaml")
    values = np.linalg.svd(patterson(dosage(alleles)[:, np.arange(D) % 3 > 0]), compute_uv=False) ** 2 / (N - 1)
    np.testing.assert_allclose(run.model.explained_variance_, values[:2], rtol=1e-6)
    assert run.manifest["source"]["genotypes"] == "dosage"


def test_people_are_proposed_as_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = Command(capsys)("inspect", write(tmp_path / "x.vcz", draw()), "--array", "call_genotype").out
    assert "samples: [samples]" in told


@pytest.mark.parametrize(("n", "d"), [(3, 700_000), (700_000, 3)])
def test_memory_beside_rows_and_features_is_what_the_plan_counts(n: int, d: int) -> None:
    alleles = np.random.default_rng(0).integers(-1, 2, (d, n, 2)).astype(np.int8)
    table = sp.open(xr.DataArray(alleles, dims=DIMS), samples="samples")
    for source in (table, table.by_features()):
        out = np.empty(source.shape, dtype=source.dtype)
        source.read(0, 1, out[:1])
        tracemalloc.start()
        source.read(0, len(out), out)
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert taken <= source.overhead_bytes(len(out))


@pytest.mark.parametrize("through_xarray", [False, True])
def test_new_people_with_exchanged_alleles_have_the_scores_of_the_fit(tmp_path: Path, through_xarray: bool) -> None:
    alleles = np.minimum(draw(), 1)
    texts = np.tile(np.array(["A", "G", ""]), (D, 1))
    turned, theirs = alleles.copy(), texts.copy()
    turned[::4] = np.where(alleles[::4] < 0, alleles[::4], 1 - alleles[::4])
    theirs[::4, :2] = ["G", "A"]

    def place(name: str, values: Any, pairs: Any) -> Any:
        group = zarr.open_group(write(tmp_path / name, values), mode="r+")
        names = {"dimension_names": ("variants", "alleles")}
        array = group.create_array("variant_allele", shape=pairs.shape, dtype=str, chunks=pairs.shape, **names)  # type: ignore[arg-type]
        array[...] = pairs
        if through_xarray:
            return xr.open_zarr(tmp_path / name, consolidated=False)
        return sp.open(tmp_path / name, array="call_genotype", samples="samples")

    given = {"missing": "mean", "missing_scores": "mean"}
    old = place("old.zarr", alleles, texts)
    if through_xarray:
        old = sp.open(old, variables=["call_genotype"], samples=["samples"])
    pca = sp.PCA(2, **given).fit(old)  # type: ignore[arg-type]
    expected = np.nan_to_num(dosage(alleles) - np.nanmean(dosage(alleles), axis=0)) @ pca.components_.T
    new = place("new.zarr", turned, theirs)
    with pytest.warns(UserWarning, match="38 variants have the alleles of the fit exchanged"):
        np.testing.assert_allclose(np.asarray(pca.transform(new)), expected, atol=1e-4)
    if not through_xarray:
        with pytest.warns(UserWarning, match="38 variants"):
            np.testing.assert_allclose(np.asarray(pca.transform(tmp_path / "new.zarr")), expected, atol=1e-4)
    theirs[5, 1] = "C"
    with pytest.raises(sp.StreamPCAError, match=r"the alleles C/A of variant .*, not G/A"):
        pca.transform(place("other.zarr", turned, theirs))


@pytest.mark.filterwarnings("ignore:The data type")  # of text of a fixed length
def test_names_of_variants_that_are_not_read_are_a_note_of_the_plan(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "x.vcz", mode="w")
    calls = np.random.default_rng(0).integers(0, 2, (6, 9, 2)).astype(np.int8)
    group.create_array("call_genotype", data=calls, dimension_names=("variants", "samples", "ploidy"))
    group.create_array("variant_id", shape=(6,), dtype="U6000000", dimension_names=("variants",))
    table = sp.open(tmp_path / "x.vcz", array="call_genotype", samples="samples")
    notes = sp.PCA(2).plan(table).notes
    assert any("names along variants are not read (variant_id takes more than" in note for note in notes)


@pytest.mark.parametrize("document", ["{}", '{"zarr_format": 3, "node_type": "array"}'])
def test_names_with_incomplete_metadata_do_not_count_as_absent(tmp_path: Path, document: str) -> None:
    group = zarr.open_group(tmp_path / "x.zarr", mode="w")
    group.create_array("x", data=np.random.default_rng(0).standard_normal((9, 4)), dimension_names=("t", "gene"))
    group.create_array("gene", data=np.arange(4), dimension_names=("gene",))
    (tmp_path / "x.zarr" / "gene" / "zarr.json").write_text(document)
    with pytest.raises(DataError, match="gene has incomplete metadata"):
        sp.open(tmp_path / "x.zarr", array="x")
