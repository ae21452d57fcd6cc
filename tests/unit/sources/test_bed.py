"""Genotypes of PLINK against bytes that are written here, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.errors import DataError

pytest.importorskip("bed_reader")
CODES = np.array([3, 2, 0, 1])
"""Two bits for 0, 1 and 2 copies of the first allele, and for a missing genotype (the PLINK 1 binary format)."""


def write(path: Path, genotypes: Any, first: int = 0) -> Path:
    """Write genotypes, ``(people, variants)``, −1 for missing."""
    n, d = genotypes.shape
    codes = np.zeros((d, -(-n // 4) * 4), dtype=np.uint8)
    codes[:, :n] = CODES[np.where(genotypes < 0, 3, genotypes)].T
    packed = codes.reshape(d, -1, 4)
    content = (packed << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=2).astype(np.uint8)
    path.write_bytes(b"\x6c\x1b\x01" + content.tobytes())
    people = "".join(f"F{i % 3} P{first + i} 0 0 {1 + i % 2} {i % 4}\n" for i in range(n))
    path.with_suffix(".fam").write_text(people)
    path.with_suffix(".bim").write_text("".join(f"{1 + j % 22}\trs{j}\t0.5\t{1000 + j}\tA\tG\n" for j in range(d)))
    return path


@pytest.fixture
def genotypes() -> Any:
    rng = np.random.default_rng(0)
    share = np.clip(rng.uniform(0.1, 0.5, 203) + rng.normal(scale=0.1, size=(3, 203)), 0.02, 0.98)
    drawn = rng.binomial(2, share[np.arange(90) % 3])
    drawn[:, 7] = 2  # nobody has the other allele
    drawn[rng.random(drawn.shape) < 0.03] = -1
    return drawn


def test_people_are_rows_of_copies_of_the_first_allele(tmp_path: Path, genotypes: Any) -> None:
    table = sp.open(write(tmp_path / "x.bed", genotypes))
    expected = np.where(genotypes < 0, np.nan, genotypes).astype("f4")
    assert (table.shape, table.dtype) == ((90, 203), np.float32)
    for n_rows in (7, 90):
        np.testing.assert_array_equal(table.to_dask(n_rows).compute(), expected)
    np.testing.assert_array_equal(table.by_features().to_dask(10).compute(), expected.T)
    assert table.labels.samples[0].coordinate.tolist()[:2] == ["P0", "P1"]
    assert table.feature_names[5] == "rs5"
    assert table.sample_columns.values("pheno").tolist()[:5] == ["0", "1", "2", "3", "0"]
    turned = sp.open(tmp_path / "x.bed", samples="variants")
    np.testing.assert_array_equal(turned.to_dask(50).compute(), expected.T)


@pytest.mark.parametrize("solver", ["gram", "covariance", "sketch"])
def test_patterson_scaling_with_means_for_missing_genotypes(tmp_path: Path, genotypes: Any, solver: Any) -> None:
    table = sp.open(write(tmp_path / "x.bed", genotypes))
    rows = np.where(genotypes < 0, np.nan, genotypes).astype("f8")
    mean = np.nanmean(rows, axis=0)
    varying = np.nanstd(rows, axis=0) > 0
    scaled = (np.where(np.isnan(rows), mean, rows) - mean)[:, varying] / np.sqrt(mean * (1 - mean / 2))[varying]
    values = np.linalg.svd(scaled, compute_uv=False) ** 2 / 89
    more = {"sketch_size": 89} if solver == "sketch" else {}
    pca = sp.PCA(4, solver=solver, scale="patterson", missing="mean", **more).fit(table)
    np.testing.assert_allclose(pca.explained_variance_, values[:4], rtol=2e-3 if solver == "sketch" else 1e-5)
    assert pca.constant_features_.tolist() == [7]
    np.testing.assert_allclose(pca.transform(tmp_path / "x.bed").shape, (90, 4))


@pytest.mark.parametrize("solver", ["gram", "covariance", "sketch"])
def test_variants_that_nobody_has_are_left_out_by_a_mask(tmp_path: Path, genotypes: Any, solver: Any) -> None:
    genotypes[:, 11] = -1
    path = write(tmp_path / "x.bed", genotypes)
    with pytest.raises(DataError, match=r"1 feature\(s\) were observed in no row, first: 11.* mask='survey'"):
        sp.PCA(2, solver=solver, scale="patterson", missing="mean").fit(sp.open(path))
    pca = sp.PCA(2, solver=solver, scale="patterson", missing="mean").fit(sp.open(path, mask="survey"))
    assert (pca.n_features_in_, pca.constant_features_.tolist()) == (202, [7])


@pytest.mark.parametrize("n", [3, 5, 90])
def test_any_people_and_variants_are_read(tmp_path: Path, genotypes: Any, n: int) -> None:
    """Four people share a byte."""
    table = sp.open(write(tmp_path / "x.bed", genotypes[:n]), mask=np.arange(203) % 3 > 0)
    expected = np.where(genotypes[:n] < 0, np.nan, genotypes[:n]).astype("f4")[:, np.arange(203) % 3 > 0]
    for start, stop in ((0, 1), (1, 3), (n - 2, n), (0, n)):
        np.testing.assert_array_equal(table.read(start, stop)[0], expected[start:stop])
        np.testing.assert_array_equal(table.by_features().read(start, stop)[0], expected.T[start:stop])


def test_new_people_are_projected(tmp_path: Path, genotypes: Any) -> None:
    old = write(tmp_path / "old.bed", genotypes[:60])
    new = write(tmp_path / "new.bed", genotypes[60:], first=60)
    pca = sp.PCA(2, scale="patterson", missing="mean", missing_scores="mean").fit(sp.open(old))
    rows = np.where(genotypes[60:] < 0, pca.mean_, genotypes[60:])
    expected = ((rows - pca.mean_) / pca.scale_) @ pca.components_.T
    np.testing.assert_allclose(np.asarray(pca.transform(sp.open(new))), expected, atol=1e-4)
    both = sp.open([old, new])
    assert both.shape == (90, 203)
    assert both.labels.samples[0].coordinate[-1] == "P89"


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path, genotypes: Any) -> None:
    path = write(tmp_path / "x.bed", genotypes)
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(
        DataError, match=r"x\.bed has .* bytes: expected .* for 90 people of the \.fam and 203 variants"
    ):
        sp.open(path)
    path.write_bytes(content)
    table = sp.open(path)
    path.write_bytes(content[:-30])
    with pytest.raises(DataError, match=r"x\.bed was changed after it was opened"):
        table.read(0, 90)
    path.write_bytes(b"chr1\t100\t200\n")
    with pytest.raises(DataError, match="does not begin as genotypes of PLINK"):
        sp.open(path)
    path.write_bytes(content)
    path.with_suffix(".bim").unlink()
    with pytest.raises(DataError, match=r"x\.bim: no such file"):
        sp.open(path)
    write(path, genotypes)
    other = write(tmp_path / "y.bed", genotypes[:, :100])
    with pytest.raises(DataError, match=r"y\.bed: genotype has features of shape 100"):
        sp.open([path, other])
