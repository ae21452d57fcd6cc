"""Genotypes of PLINK against bytes that are written here, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from facade import BedFile
from stores import Command

import streampca as sp
from streampca.errors import DataError, NotAvailableError

pytest.importorskip("bed_reader")
CODES = np.array([3, 2, 0, 1])
"""Two bits for 0, 1 and 2 copies of the first allele, and for a missing genotype (the PLINK 1 binary format)."""


def write(path: Path, genotypes: Any, first: int = 0, alleles: Any = ("A", "G")) -> Path:
    """Write genotypes, ``(people, variants)``, −1 for missing; `alleles` are those of all variants, or pairs of each."""
    n, d = genotypes.shape
    codes = np.zeros((d, -(-n // 4) * 4), dtype=np.uint8)
    codes[:, :n] = CODES[np.where(genotypes < 0, 3, genotypes)].T
    packed = codes.reshape(d, -1, 4)
    content = (packed << np.array([0, 2, 4, 6], dtype=np.uint8)).sum(axis=2).astype(np.uint8)
    path.write_bytes(b"\x6c\x1b\x01" + content.tobytes())
    people = "".join(f"F{i % 3} P{first + i} 0 0 {1 + i % 2} {i % 4}\n" for i in range(n))
    path.with_suffix(".fam").write_text(people)
    pairs = [alleles] * d if isinstance(alleles[0], str) else alleles
    lines = (f"{1 + j % 22}\trs{j}\t0.5\t{1000 + j}\t{a}\t{b}\n" for j, (a, b) in enumerate(pairs))
    path.with_suffix(".bim").write_text("".join(lines))
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
    with pytest.raises(DataError, match=r"no values observed for 1 feature, first: feature 11 .* mask='survey'"):
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


def exchange_some(genotypes: Any) -> tuple[Any, list[tuple[str, str]]]:
    """Return the same genotypes with the alleles of every third variant exchanged, and the pairs of alleles."""
    turned = genotypes.copy()
    turned[:, ::3] = np.where(turned[:, ::3] < 0, -1, 2 - turned[:, ::3])
    return turned, [("G", "A") if j % 3 == 0 else ("a", "g") if j % 3 == 1 else ("A", "G") for j in range(203)]


@pytest.mark.parametrize("model", ["in memory", "saved", "saved with a mask"])
def test_new_people_with_exchanged_alleles_have_the_scores_of_the_fit(
    tmp_path: Path, genotypes: Any, model: str
) -> None:
    turned, alleles = exchange_some(genotypes[60:])
    mask = np.arange(203) % 2 > 0 if "mask" in model else None
    pca = sp.PCA(2, scale="patterson", missing="mean", missing_scores="mean")
    pca.fit(sp.open(write(tmp_path / "old.bed", genotypes[:60]), mask=mask))
    if model != "in memory":
        pca.save(tmp_path / "model.zarr")
        pca = sp.load(tmp_path / "model.zarr")
    same = pca.transform(write(tmp_path / "same.bed", genotypes[60:]))
    new = write(tmp_path / "new.bed", turned, alleles=alleles)
    with pytest.warns(UserWarning, match="68 variants have the alleles of the fit exchanged"):
        np.testing.assert_array_equal(pca.transform(new), same)
    if mask is None:
        with pytest.warns(UserWarning, match="68 variants have the alleles"):
            np.testing.assert_array_equal(pca.transform(sp.open(new)), same)


def test_other_alleles_are_refused_with_the_first_variant_and_both_pairs(tmp_path: Path, genotypes: Any) -> None:
    pca = sp.PCA(2, missing="mean", missing_scores="mean").fit(write(tmp_path / "old.bed", genotypes[:60]))
    alleles = [("A", "G")] * 203
    alleles[2], alleles[4], alleles[9] = ("G", "A"), ("A", "T"), ("C", "G")
    new = write(tmp_path / "new.bed", genotypes[60:], alleles=alleles)
    expected = r"the alleles A/T of variant rs4, not A/G \(counted/other; 2 such"
    with pytest.raises(sp.StreamPCAError, match=expected):
        pca.transform(new)
    with pytest.raises(DataError, match=expected):
        sp.open([tmp_path / "old.bed", new])


def test_alleles_that_nobody_has_can_be_any(tmp_path: Path, genotypes: Any) -> None:
    """PLINK writes 0 for the allele that nobody of a file has."""
    pca = sp.PCA(2, missing="mean", missing_scores="mean").fit(write(tmp_path / "old.bed", genotypes[:60]))
    same = pca.transform(write(tmp_path / "same.bed", genotypes[60:]))
    turned, alleles = genotypes[60:].copy(), [("A", "G")] * 203
    alleles[7], alleles[8] = ("0", "G"), ("0", "A")
    turned[:, 8] = np.where(turned[:, 8] < 0, -1, 2 - turned[:, 8])
    new = write(tmp_path / "new.bed", turned, alleles=alleles)
    with pytest.warns(UserWarning, match="1 variants have the alleles"):
        np.testing.assert_array_equal(pca.transform(new), same)


def test_files_of_one_list_count_the_alleles_of_the_first(tmp_path: Path, genotypes: Any) -> None:
    turned, alleles = exchange_some(genotypes[60:])
    first, second = (
        write(tmp_path / "1.bed", genotypes[:60]),
        write(tmp_path / "2.bed", turned, first=60, alleles=alleles),
    )
    table = sp.open([first, second])
    expected = np.where(genotypes < 0, np.nan, genotypes).astype("f4")
    np.testing.assert_array_equal(table.read(0, 90)[0], expected)
    np.testing.assert_array_equal(table.read(57, 71)[0], expected[57:71])
    np.testing.assert_array_equal(table.by_features().read(1, 50)[0], expected.T[1:50])
    assert any("68 of" in note and "2.bed" in note for note in table.plan_notes())
    pca = sp.PCA(2, missing="mean", solver="gram").fit(table)
    centred = np.nan_to_num(expected - np.nanmean(expected, axis=0)).astype("f8")
    np.testing.assert_allclose(
        pca.explained_variance_, np.linalg.svd(centred, compute_uv=False)[:2] ** 2 / 89, rtol=1e-5
    )


def test_more_people_with_exchanged_alleles_continue_a_fit(tmp_path: Path, genotypes: Any) -> None:
    turned, alleles = exchange_some(genotypes[60:])
    first = write(tmp_path / "1.bed", genotypes[:60])
    same, new = (
        write(tmp_path / "s.bed", genotypes[60:], 60),
        write(tmp_path / "n.bed", turned, 60, alleles),
    )
    fits = [sp.PCA(2, missing="mean", solver="covariance").partial_fit(sp.open(first)) for _ in range(2)]
    fits[0].partial_fit(sp.open(same))
    with pytest.warns(UserWarning, match="68 variants"):
        fits[1].partial_fit(sp.open(new))
    np.testing.assert_array_equal(fits[0].explained_variance_, fits[1].explained_variance_)


def test_model_without_alleles_says_that_they_were_not_compared(
    tmp_path: Path, genotypes: Any, monkeypatch: Any
) -> None:
    path = write(tmp_path / "x.bed", genotypes)
    with monkeypatch.context() as before:
        before.setattr(BedFile, "dimension", super(BedFile, BedFile).dimension)
        pca = sp.PCA(2, missing="mean", missing_scores="mean").fit(path)
        pca.save(tmp_path / "model.zarr")
    with pytest.warns(UserWarning, match="alleles were not compared"):
        scores = sp.load(tmp_path / "model.zarr").transform(path)
    rows = np.where(genotypes < 0, pca.mean_, genotypes)
    np.testing.assert_allclose(np.asarray(scores), (rows - pca.mean_) @ pca.components_.T, atol=1e-4)


@pytest.mark.parametrize("palindromes", [0, 3])
def test_variants_whose_strand_cannot_be_told_are_counted_wherever_alleles_are_compared(
    tmp_path: Path, genotypes: Any, palindromes: int, recwarn: pytest.WarningsRecorder
) -> None:
    alleles = [("a", "T"), ("G", "C"), ("C", "G")][:palindromes] + [("A", "G")] * (203 - palindromes)
    old = write(tmp_path / "1.bed", genotypes[:60], alleles=alleles)
    new = write(tmp_path / "2.bed", genotypes[60:], 60, alleles)
    mask = np.arange(203) > 0
    expected = {"transform": palindromes, "partial_fit": palindromes, "with a mask": max(0, palindromes - 1)}

    def counted(messages: Any) -> list[str]:
        return [str(each).partition(": ")[2].split()[0] for each in messages if "other strand" in str(each)]

    pca = sp.PCA(2, missing="mean", missing_scores="mean", solver="covariance").fit(old)
    pca.transform(old)  # of the people of the fit nothing is compared
    assert not counted(w.message for w in recwarn.list)
    masked = sp.PCA(2, missing="mean", missing_scores="mean").fit(sp.open(old, mask=mask))
    calls = {
        "transform": lambda: pca.transform(new),
        "with a mask": lambda: masked.transform(new),
        "partial_fit": lambda: (
            sp.PCA(2, missing="mean", solver="covariance").partial_fit(sp.open(old)).partial_fit(sp.open(new))
        ),
    }
    for name, call in calls.items():
        recwarn.clear()
        call()
        assert counted(w.message for w in recwarn.list) == [str(expected[name])] * (palindromes > 0), name
    table = sp.open([old, new])
    assert counted(table.plan_notes()) == [str(palindromes)] * (palindromes > 0)
    assert counted(sp.PCA(2, missing="mean").plan(table).notes) == [str(palindromes)] * (palindromes > 0)
    assert not counted(sp.open([old]).plan_notes())


def test_exchanged_alleles_and_those_whose_strand_cannot_be_told_are_one_warning(
    tmp_path: Path, genotypes: Any, recwarn: pytest.WarningsRecorder
) -> None:
    pairs = [("A", "T"), ("C", "G")] + [("A", "G")] * 201
    pca = sp.PCA(2, missing="mean", missing_scores="mean").fit(write(tmp_path / "1.bed", genotypes[:60], alleles=pairs))
    turned, same = genotypes[60:].copy(), pca.transform(write(tmp_path / "s.bed", genotypes[60:], 60, pairs))
    turned[:, 0] = np.where(turned[:, 0] < 0, -1, 2 - turned[:, 0])
    recwarn.clear()
    new = write(tmp_path / "2.bed", turned, 60, [("T", "A"), *pairs[1:]])
    np.testing.assert_array_equal(pca.transform(new), same)
    (said,) = [str(w.message) for w in recwarn.list if "alleles" in str(w.message)]
    assert "1 variants have the alleles of the fit exchanged" in said
    assert "2 variants have alleles A/T or C/G" in said


def test_the_commands_count_the_alleles_of_the_run(
    tmp_path: Path, genotypes: Any, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    turned, alleles = exchange_some(genotypes[60:])
    for place in ("plain", "turned"):
        (tmp_path / place).mkdir()
        write(tmp_path / place / "1.bed", genotypes[:60])
        config = {
            "source": {"path": f"{place}/*.bed"},
            "preprocess": {"missing": "mean"},
            "model": {"n_components": 2, "solver": "covariance"},
            "output": {"directory": f"runs/{place}", "state": True},
        }
        Path(f"{place}.yaml").write_text(yaml.safe_dump(config))
        assert Command(capsys).quietly("run", f"{place}.yaml").status == 0
    same, new = write(Path("same.bed"), genotypes[60:], 60), write(Path("new.bed"), turned, 60, alleles)
    with pytest.warns(UserWarning, match="68 variants have the alleles of the fit exchanged"):
        assert Command(capsys).quietly("transform", "runs/plain", new, "scores.zarr").status == 0
    written = zarr.open_array("scores.zarr/scores", mode="r")[...]
    np.testing.assert_array_equal(written, np.asarray(sp.load("runs/plain").transform(same)))
    write(tmp_path / "plain" / "2.bed", genotypes[60:], 60)
    write(tmp_path / "turned" / "2.bed", turned, 60, alleles)
    for place in ("plain", "turned"):
        assert Command(capsys).quietly("update", f"runs/{place}").status == 0
    one, two = (sp.load(f"runs/{place}") for place in ("plain", "turned"))
    np.testing.assert_array_equal(one.explained_variance_, two.explained_variance_)
    np.testing.assert_array_equal(one.components_, two.components_)
    assert "68 of" in Path("runs/turned/manifest.json").read_text()


def test_genotypes_are_called_by_their_name(tmp_path: Path) -> None:
    with pytest.raises(NotAvailableError, match="and these are PLINK files: copy them"):
        sp.open("s3://bucket/x.bed")
    (tmp_path / "x.h5").touch()
    with pytest.raises(DataError, match=r"files of several kinds cannot be one table: .*x.h5, .*y.bed"):
        sp.open([tmp_path / "x.h5", tmp_path / "y.bed"])


def test_a_prefix_is_told_the_name_of_the_file(tmp_path: Path, genotypes: Any) -> None:
    write(tmp_path / "people.bed", genotypes)
    with pytest.raises(DataError, match=r"people: no such file or directory: .*; did you mean .*people\.bed\?"):
        sp.open(tmp_path / "people")


def test_variants_with_blanks_between_their_columns_are_told_apart_from_damage(tmp_path: Path, genotypes: Any) -> None:
    path = write(tmp_path / "x.bed", genotypes)
    variants = path.with_suffix(".bim")
    variants.write_text(variants.read_text().replace("\t", " "))
    with pytest.raises(DataError, match=r"x\.bim: found no tab in the first line.*plink2 --make-just-bim"):
        sp.open(path)
