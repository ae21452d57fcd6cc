"""The scripts that reproduce published figures run, and their quick form already shows what is claimed."""

from __future__ import annotations

import json

import numpy as np
import pytest

import scripts

SCRIPTS = scripts.SCRIPTS / "reproduce"
pytestmark = pytest.mark.deep  # half a minute; continuous integration runs it with the documents


def everything(script, folder):
    """Return printed tables, figures and names of pictures of all parts of a script."""
    files = ("--json", folder / "figures.json", "--pictures", folder / "pictures")
    done = scripts.run(SCRIPTS / script, "--quick", *files)
    assert done.status == 0, done.stderr
    pictures = sorted(path.name for path in (folder / "pictures").iterdir())
    figures = json.loads((folder / "figures.json").read_text())
    machine = [figures[part].pop("machine") for part in figures]
    assert all(where["cores"] >= 1 and where["versions"]["streampca"] for where in machine)
    return done.stdout, figures, pictures


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory):
    """Return what the experiments of the tutorial give."""
    return everything("approximate_pca.py", tmp_path_factory.mktemp("tutorial"))


@pytest.fixture(scope="module")
def yardsticks(tmp_path_factory):
    """Return what the published yardsticks give."""
    return everything("yardsticks.py", tmp_path_factory.mktemp("yardsticks"))


def test_every_part_prints_its_tables_and_draws(tutorial, yardsticks):
    printed, figures, pictures = tutorial
    assert set(figures) == {"dot-products", "aligned", "recovery", "passes", "eigenvalues", "grouping"}
    assert printed.count("### ") == 13
    names = ("dot-products", "eigenvalues", "recovery")
    assert pictures == sorted(f"{name}-{data}.png" for name in names for data in ("digits", "patches"))
    printed, figures, pictures = yardsticks
    assert set(figures) == {"orders", "columns", "tropp", "halko", "shares"}
    assert printed.count("### ") == 5
    assert pictures == ["orders.png", "tropp.png"]


def test_the_published_scale_of_hashes_loses_what_it_must(tutorial):
    for data in tutorial[1]["dot-products"].values():
        for n_hashes in (4, 5):
            errors = data["errors"][f"hashing, l = {n_hashes}, entries 1/l"]["1000"]
            assert np.mean(errors, axis=0)[0] == pytest.approx(1 - 1 / n_hashes, abs=0.03)
    for data in tutorial[1]["recovery"].values():
        for n_hashes in (4, 5):
            right, published = (data[f"conversion, hashing, l = {n_hashes}{scale}"] for scale in ("", ", entries 1/l"))
            for size in right:
                for one, other in zip(right[size], published[size], strict=True):
                    assert one["similarity"] == other["similarity"]
                    assert one["difference"] < other["difference"] > 0.6


def test_one_hash_loses_the_subspace_of_axes_and_no_other_transform_does(tutorial):
    for name, similarities in tutorial[1]["aligned"].items():
        kept = np.quantile(similarities["axes"], 0.05)
        assert (kept < 0.9) == (name == "hashing, l = 1"), (name, kept)
        assert np.min(similarities["anywhere"]) > 0.99


def test_nystrom_makes_more_of_the_same_products_than_the_conversion(tutorial):
    for data in tutorial[1]["recovery"].values():
        for name in [name for name in data if name.startswith("Nyström")]:
            for size, runs in data[name].items():
                for best, literature in zip(runs, data[name.replace("Nyström", "conversion")][size], strict=True):
                    assert best["similarity"] > literature["similarity"] + 0.1, (name, size)
                    assert best["difference"] < literature["difference"] / 2, (name, size)
    digits = tutorial[1]["recovery"]["digits, z-scores"]["Nyström, Gaussian"]["60"]
    assert np.median([run["similarity"] for run in digits]) > 0.99


def test_the_estimator_gives_what_the_building_blocks_give(tutorial):
    blocks, estimator = (tutorial[1][part]["digits, z-scores"] for part in ("recovery", "passes"))
    for one, other in zip(blocks["Nyström, Gaussian"]["60"], estimator["Nyström, Gaussian"]["60"], strict=True):
        assert one["similarity"] == pytest.approx(other["similarity"], abs=1e-9)
        assert one["difference"] == pytest.approx(other["difference"], rel=1e-6)
    for one, other in zip(blocks["conversion, Gaussian"]["60"], estimator["conversion, Gaussian"]["60"], strict=True):
        assert one["difference"] == pytest.approx(other["difference"], rel=1e-6)  # only the axes are made orthogonal


def test_pilots_and_further_passes_help_and_every_interval_holds(tutorial, yardsticks):
    tables = [*tutorial[1]["passes"].items(), *yardsticks[1]["orders"].items()]
    for name, data in tables:
        drifts = {way: next(iter(found.values())) for way, found in data.items()}
        middle = {way: np.median([run["difference"] for run in runs]) for way, runs in drifts.items()}
        pilot = next(way for way in middle if way.startswith("Nyström, pilot") and not way.endswith("passes"))
        assert middle[pilot] < middle["Nyström, Gaussian"] < middle["conversion, Gaussian"], name
        assert middle["Nyström, Gaussian, 2 passes"] < middle["Nyström, Gaussian"] / 20, name
        assert middle[f"{pilot}, 2 passes"] <= middle[pilot], name
        for way, found in data.items():
            for run_ in [one for runs in found.values() for one in runs]:
                assert run_.get("covered", True), (name, way)
                if "readings" in run_:
                    assert run_["readings"] == (2 if "2 passes" in way else 3 if "3 passes" in way else 1)


def test_eigenvalues_of_a_sketch_lie_below_and_the_certified_ends_above(tutorial):
    for name, data in tutorial[1]["eigenvalues"].items():
        exact = np.array(data["exact"])
        for way in ("Nyström, Gaussian", "Nyström, hashing, l = 5", "Nyström, pilot"):
            assert (np.array(data[way]) <= exact * (1 + 1e-6)).all(), (name, way)
        assert (np.array(data["upper"]) >= exact * (1 - 1e-9)).all(), name
        assert data["conversion, Gaussian"][0] > exact[0], name


def test_blocks_of_pixels_are_resizing_and_neighbours_matter(tutorial):
    for data in tutorial[1]["grouping"].values():
        for factor, found in data["blocks of pixels"].items():
            for recovered in ("conversion", "Nyström"):
                ours, pillow = found[recovered], data["resized, box"][factor][recovered]
                assert ours["similarity"] == pytest.approx(pillow["similarity"], abs=1e-4)
                assert ours["difference"] == pytest.approx(pillow["difference"], rel=1e-3)
            assert found["Nyström"]["similarity"] > data["pixels from anywhere"][factor]["Nyström"]["similarity"]


def test_a_sketch_of_the_covariance_beats_three_sketches_of_the_matrix(yardsticks):
    for name, storages in yardsticks[1]["tropp"].items():
        for runs in storages.values():
            middle = {way: np.median([errors[way] for errors in runs]) for way in runs[0]}
            three, best = middle["three-sketch, best sizes"], middle["Nyström, Gaussian"]
            assert best <= max(three / 10, 1e-12), name
            assert middle["Nyström, Gaussian, 2 passes"] <= max(best, 1e-12), name
            assert min(middle.values()) > -1e-12, name


def test_no_axes_leave_less_than_the_best_and_two_passes_reach_it(yardsticks):
    for name, ranks in yardsticks[1]["halko"].items():
        for ways in ranks.values():
            assert all(min(runs) > 1 - 1e-6 for runs in ways.values()), name
            assert np.median(ways["Nyström, Gaussian, 2 passes"]) < 1.02, name
            assert np.median(ways["conversion, Gaussian"]) > np.median(ways["Nyström, Gaussian"]), name


def test_counts_of_components_are_those_of_the_literature_and_within_what_is_certified(yardsticks):
    shares = yardsticks[1]["shares"]
    assert {name: found["exact"] for name, found in shares.items()} == {
        "diabetes": [7, 8, 8],
        "breast-cancer": [7, 10, 17],
        "iris": [2, 2, 3],
        "digits": [31, 40, 54],
        "wine": [8, 10, 12],
    }
    for name, found in shares.items():
        for count, (low, high) in zip(found["exact"], found["certified"], strict=True):
            assert low <= count <= (high or count), name


def test_tables_go_into_a_page_between_its_marks_and_figures_beside_others(tmp_path):
    page, figures = tmp_path / "page.md", tmp_path / "figures.json"
    page.write_text("before\n<!-- begin: shares -->\nold\n<!-- end: shares -->\nafter\n")
    figures.write_text('{"orders": 1}')
    done = scripts.run(SCRIPTS / "yardsticks.py", "--quick", "shares", "--update", page, "--json", figures)
    assert done.status == 0, done.stderr
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- end: shares -->\nafter\n")
    assert "| wine |" in text
    assert "old" not in text
    assert set(json.loads(figures.read_text())) == {"orders", "shares"}


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("nothing here\n")
    done = scripts.run(SCRIPTS / "yardsticks.py", "--quick", "shares", "--update", page)
    assert done.status != 0
    assert "<!-- begin: shares -->" in done.stderr
    assert page.read_text() == "nothing here\n"


def test_a_linear_kernel_is_pca_in_the_textbook_example(tmp_path):
    done = scripts.run(SCRIPTS / "kernel_pca.py", "textbook", "--quick", "--json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())["textbook"]
    values = [figures[name] for name in figures if "eigenvalues" in name or "PCA over" in name or "by hand" in name]
    assert len(values) == 4
    np.testing.assert_allclose(values, np.broadcast_to(values[0], (4, 2)), rtol=1e-12)
    assert figures["largest difference of scores"] < 1e-12
    assert "a linear kernel is PCA" in done.stdout


@pytest.mark.deep
def test_figures_of_the_tutorial_are_drawn_from_what_is_installed(tmp_path):
    """The cheap parts, one of each module, each with its picture; the bounds of figure 5 hold."""
    parts = ("figure-2", "figure-5", "figure-9", "table-3")
    files = ("--json", tmp_path / "figures.json", "--pictures", tmp_path)
    done = scripts.run(SCRIPTS / "tutorial.py", *parts, "--quick", *files)
    assert done.status == 0, done.stderr
    assert sorted(path.stem for path in tmp_path.glob("*.png")) == ["figure-2", "figure-5", "figure-9"]
    figures = json.loads((tmp_path / "figures.json").read_text())
    bounds = [group for name, group in figures["figure-5"].items() if name != "machine"]
    assert len(bounds) == 6
    assert all(0 < each["change"] <= each["spectral"] <= each["frobenius"] for each in bounds)
    for kernel, ways in figures["figure-9"].items():
        if kernel != "machine":
            hashing = [ways[f"Approx-KPCA (f), entries 1/{scale}"]["by size"]["100"] for scale in ("l", "√l")]
            assert hashing[1] < 0.2 < hashing[0] < 0.65
    assert len(figures["table-3"]) == 1 + 4
    assert scripts.run(SCRIPTS / "tutorial.py", "figure-10").status == 2


def test_sampling_errors_are_near_those_of_resampled_rows(tmp_path):
    done = scripts.run(
        SCRIPTS / "sampling_errors.py", "--quick", "coverage", "bootstrap", "--json", tmp_path / "figures.json"
    )
    assert done.status == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert min(min(shares) for name, shares in figures["coverage"].items() if name != "machine") >= 0.6
    assert figures["bootstrap"]["normal, eigenvalues, 200"] == pytest.approx([1.0] * 4, abs=0.4)
