"""The built-in data sets: what they hold, and that reading them writes nothing."""

from __future__ import annotations

import pickle
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import streampca as sp
from streampca.errors import DataError, NotAvailableError, ParameterError

SHAPES = {
    "photo-patches": (257_500, 768),
    "digits": (1797, 64),
    "iris": (150, 4),
    "breast-cancer": (569, 30),
    "wine": (178, 13),
    "diabetes": (442, 10),
}


@pytest.fixture(autouse=True)
def _nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SHAPES)
def test_every_set_has_its_shape_and_says_what_it_is(name: str) -> None:
    source = sp.open(f"builtin:{name}")
    assert source.shape == SHAPES[name]
    assert source.dtype == (np.uint8 if name == "photo-patches" else np.float64)
    assert source.description == f"builtin:{name}"
    assert source.labels is not None
    assert "scikit-learn" in str(source.labels.variables[0].attributes["description"])
    assert source.feature_names is None or len(source.feature_names) == source.shape[1]
    assert source.feature_shape == {"photo-patches": (16, 16, 3), "digits": (8, 8)}.get(name)


@pytest.mark.parametrize("name", SHAPES)
def test_blocks_are_the_same_rows_here_and_in_another_process(name: str) -> None:
    source = sp.open(f"builtin:{name}")
    again = pickle.loads(pickle.dumps(source))
    assert again.fingerprint == source.fingerprint
    n = min(2_000, source.shape[0])
    whole = np.array(source.read(0, n)[0])
    edges = [0, 1, n // 3, n // 3 + 1, n]
    pieces = [again.read(start, stop)[0] for start, stop in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    out = np.empty((5, source.shape[1]), dtype=source.dtype, order="F")
    np.testing.assert_array_equal(source.read(n - 5, n, out)[0], whole[-5:])


def test_blocks_of_a_table_cannot_be_changed() -> None:
    rows, _ = sp.open("builtin:iris").read(0, 10)
    with pytest.raises(ValueError, match="read-only"):
        rows[0, 0] = 1.0


@pytest.mark.parametrize("row", [0, 1, 624, 625, 8191, 8192, 128_749, 128_750, 131_071, 257_499])
def test_a_row_is_the_patch_of_its_photograph_in_scan_order(row: int) -> None:
    photo, within = divmod(row, 206 * 625)
    top, left = 2 * (within // 625), within % 625
    with Image.open(str(files("sklearn.datasets.images") / ("china.jpg", "flower.jpg")[photo])) as image:
        expected = np.asarray(image)[top : top + 16, left : left + 16]
    first = max(0, row - 700)
    rows, count = sp.open("builtin:photo-patches").read(first, row + 1)
    np.testing.assert_array_equal(rows[-1], expected.reshape(-1))
    assert count.bytes == rows.nbytes


# The published counts of axes that carry 90, 95 and 99 % of the variance of z-scores.
@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("breast-cancer", [7, 10, 17]),
        ("iris", [2, 2, 3]),
        ("diabetes", [7, 8, 8]),
        ("digits", [31, 40, 54]),
        ("wine", [8, 10, 12]),
    ],
)
def test_tables_hold_the_published_data(name: str, axes: list[int]) -> None:
    values = np.asarray(sp.open(f"builtin:{name}").read(0, SHAPES[name][0])[0])
    spread = values.std(axis=0)
    scores = (values - values.mean(axis=0))[:, spread > 0] / spread[spread > 0]
    shares = np.cumsum(np.linalg.svd(scores, compute_uv=False) ** 2) / scores.size
    assert [int(np.searchsorted(shares, share)) + 1 for share in (0.90, 0.95, 0.99)] == axes


def test_features_can_be_rows_and_some_can_be_left_out() -> None:
    whole = np.array(sp.open("builtin:wine").read(0, 178)[0])
    turned = sp.open("builtin:wine", samples="feature")
    np.testing.assert_array_equal(turned.read(0, 13)[0], whole.T)
    some = sp.open("builtin:wine", mask=np.arange(13) != 5)
    np.testing.assert_array_equal(some.read(0, 178)[0], np.delete(whole, 5, axis=1))
    assert sp.open("builtin:iris", missing_value=0.2).read(0, 1)[0][0].tolist()[:3] == [5.1, 3.5, 1.4]
    assert np.isnan(sp.open("builtin:iris", missing_value=0.2).read(0, 1)[0][0, 3])


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"array": "x"}, NotAvailableError, "builtin:iris: array does not apply to built-in data"),
        ({"variables": ["x", "y"]}, NotAvailableError, "variables does not apply"),
        ({"verify": "manifest"}, NotAvailableError, "verify does not apply"),
        ({"layer": "counts"}, NotAvailableError, "layer is for an AnnData object"),
        ({"columns": ["a"]}, NotAvailableError, "columns is for a data frame, Parquet files, Arrow files"),
        ({"samples": "flower"}, ParameterError, "there is no dimension 'flower'"),
    ],
)
def test_options_about_stores_are_refused(
    options: dict[str, object], error: type[sp.StreamPCAError], words: str
) -> None:
    with pytest.raises(error, match=words):
        sp.open("builtin:iris", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "hint"), [("photopatches", "did you mean photo-patches"), ("mnist", "expected one of photo")]
)
def test_an_unknown_name_lists_the_names(name: str, hint: str) -> None:
    with pytest.raises(DataError, match=hint) as caught:
        sp.open(f"builtin:{name}")
    assert all(known in str(caught.value) for known in SHAPES)
