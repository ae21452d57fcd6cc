"""What the formats cannot express is refused, by a table of settings and formats; nothing is written over, or in part."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cells
import numpy as np
import onnxruntime
import pytest
from facade import export
from sklearn.exceptions import NotFittedError

import streampca as sp
from streampca.errors import NotAvailableError, OutputError, ParameterError, PlanError

ROWS = np.random.default_rng(0).standard_normal((60, 6)) @ np.diag([6.0, 5, 4, 3, 2, 1])
HOLES = np.where(np.random.default_rng(1).random(ROWS.shape) < 0.1, np.nan, ROWS)
COUNTS = cells.make_counts()
USED = np.arange(40) % 3 != 1
TARGETS = ("sklearn", "onnx", "faiss", "npz", "nc", "csv")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Write cells with a mask of features and return their path."""
    return str(cells.write_cells(tmp_path_factory.mktemp("cells") / "a.zarr", COUNTS, var={"used": USED}))


def normalized(store: str, mask: str | None = None, **normalize: Any) -> sp.PCA:
    return sp.PCA(3).fit(sp.open(store, mask_var=mask, normalize=normalize))


MODELS: dict[str, Callable[[str], Any]] = {
    "remove": lambda _: sp.PCA(2, remove={"trend": 1}).fit(ROWS),
    "rotate": lambda _: sp.PCA(3, scale=True).fit(ROWS).rotate(2),
    "promax factors": lambda _: sp.FactorAnalysis(2, rotation="promax").fit(ROWS),
    "MCA": lambda _: sp.MCA(2, first=3).fit(ROWS),
    "CCA": lambda _: sp.CCA(2, first=3).fit(ROWS),
    "factors of constant features": lambda _: sp.FactorAnalysis(2).fit(np.column_stack([ROWS, np.ones(60)])),
    "missing_scores='conditional'": lambda _: sp.PCA(2, missing="pairwise").fit(HOLES),
    "missing_scores='mean'": lambda _: sp.PCA(2, missing="mean", missing_scores="mean").fit(HOLES),
    "normalize": lambda store: normalized(store, target_sum=1e4, log1p=True),
    "normalize with a mask of features": lambda store: normalized(store, "used", target_sum=1e4),
    "log1p with a mask": lambda store: normalized(store, "used", log1p=True),
    "norm with a mask": lambda store: normalized(store, "used", norm="l2"),
    "norm with missing_scores": lambda _: sp.PCA(2, missing="mean", missing_scores="mean").fit(
        sp.open(HOLES, normalize={"norm": "l2"})
    ),
    "norm of one table": lambda _: sp.MCA(2).fit(sp.open(ROWS[:, :3], normalize={"norm": "l2"}), ROWS[:, 3:]),
    "mask": lambda store: sp.PCA(3).fit(sp.open(store, mask_var="used")),
    "KernelPCA": lambda _: sp.KernelPCA(2, gamma=0.1).fit(ROWS),
    "constant features": lambda _: sp.PCA(7, scale=True).fit(np.column_stack([ROWS, np.ones(60)])),
    "whitened noise": lambda _: sp.PCA(3, whiten=True).fit(ROWS[:, :2] @ np.ones((2, 5))),
    "range of float32": lambda _: sp.PCA(2).fit(1e-33 * ROWS),
    "whitened tiny values": lambda _: sp.PCA(2, whiten=True).fit(1e-33 * ROWS),
}
"""A fit of each setting."""
REFUSED: dict[str, dict[str, str]] = {
    "remove": dict.fromkeys(("sklearn", "onnx", "faiss", "npz"), "cannot express remove: "),
    "rotate": {"sklearn": "cannot express rotate: components of its PCA are orthogonal; export to .onnx, .faiss, .npz"},
    "promax factors": {
        "sklearn": "cannot express rotation='promax': factors of its FactorAnalysis are uncorrelated; fit"
    },
    "MCA": {"sklearn": "cannot express two tables (MCA, CCA): its PCA takes one table"},
    "CCA": {"sklearn": "cannot express two tables (MCA, CCA): its PCA takes one table"},
    "factors of constant features": {"sklearn": "cannot express factors of features that never vary or have weight 0"},
    "missing_scores='conditional'": dict.fromkeys(
        ("sklearn", "onnx", "faiss"), "express missing_scores='conditional': "
    ),
    "missing_scores='mean'": {
        "faiss": "faiss cannot express missing_scores='mean': replacing NaN is not a linear map; fit with"
    },
    "normalize": dict.fromkeys(("sklearn", "faiss", "npz"), "cannot express normalize: "),
    "normalize with a mask of features": {
        **dict.fromkeys(("sklearn", "faiss", "npz"), "cannot express normalize: "),
        "onnx": "ONNX cannot express normalize with a mask of features: the sum of a row includes features",
    },
    "log1p with a mask": dict.fromkeys(("sklearn", "faiss", "npz"), "cannot express normalize: "),
    "norm with a mask": dict.fromkeys(("faiss", "npz"), "cannot express normalize: "),
    "norm with missing_scores": {
        "sklearn": "scikit-learn cannot express normalize with missing_scores: its norms take no missing values",
        "faiss": "faiss cannot express missing_scores='mean': ",
        "npz": "cannot express normalize: ",
    },
    "norm of one table": {
        **dict.fromkeys(("onnx", "faiss", "npz"), "cannot express normalize of one of two tables: it takes the rows"),
        "sklearn": "cannot express two tables (MCA, CCA): its PCA takes one table",
    },
    "mask": {},
    "KernelPCA": dict.fromkeys(
        ("sklearn", "onnx", "faiss", "npz", "csv"), "cannot express KernelPCA: its scores are kernel values"
    ),
    "constant features": {
        "sklearn": "components that lie along features that never vary: fit with n_components=6 or fewer"
    },
    "whitened noise": {"sklearn": "components that have no variance above rounding"},
    "range of float32": dict.fromkeys(("onnx", "faiss"), "leave the range of float32; "),
    "whitened tiny values": {
        **dict.fromkeys(("onnx", "faiss"), "leave the range of float32; "),
        "sklearn": "scikit-learn cannot express whitened components with standard deviations below 2.2e-16",
    },
}
"""The settings of `MODELS` that formats refuse, with words of the message; all others are exported."""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("setting", MODELS)
def test_a_setting_is_exported_or_refused_by_name_with_a_cure(
    setting: str, target: str, store: str, tmp_path: Path
) -> None:
    pca, expected = MODELS[setting](store), REFUSED[setting].get(target)
    path = tmp_path / f"m.{target}"
    write = pca.to_sklearn if target == "sklearn" else lambda: export(pca, path)
    if expected is None:
        write()
        return
    with pytest.raises(NotAvailableError) as caught:
        write()
    assert expected in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.numerical
@pytest.mark.parametrize("normalize", [{"target_sum": 1e3, "log1p": True}, {"target_sum": 1e3}, {"log1p": True}])
def test_an_onnx_model_normalises_counts_as_the_reading_of_the_fit_did(
    store: str, tmp_path: Path, normalize: dict[str, Any]
) -> None:
    exported = normalized(store, **normalize).to_onnx(tmp_path / "m.onnx")
    counts = np.vstack([COUNTS.toarray(), np.zeros((1, 40))]).astype(np.float32)  # a cell without counts, too
    rows = cells.normalized(cells.csr_array(counts), normalize.get("target_sum"), log1p="log1p" in normalize)
    fitted = rows[: COUNTS.shape[0]]
    vectors, _ = cells.components(fitted, 3)
    expected = np.abs((rows - fitted.mean(axis=0)) @ vectors.T)
    (scores,) = onnxruntime.InferenceSession(exported.path).run(["scores"], {"X": counts})
    assert np.abs(np.abs(scores) - expected).max() <= 1e-5 * expected.max()
    assert exported.error is not None
    assert exported.error <= 1e-5


@pytest.mark.parametrize("target", ["onnx", "faiss", "npz", "nc"])
def test_a_file_is_replaced_only_if_asked_and_only_one_of_the_same_format(target: str, tmp_path: Path) -> None:
    pca, path = sp.PCA(2).fit(ROWS), tmp_path / f"m.{target}"
    export(pca, path)
    before = path.read_bytes()
    with pytest.raises(OutputError, match="exists already"):
        export(sp.PCA(3).fit(ROWS), path)
    assert path.read_bytes() == before
    export(sp.PCA(3).fit(ROWS), path, overwrite=True)
    assert path.read_bytes() != before
    other = tmp_path / f"notes.{target}"
    other.write_text("notes")
    link = tmp_path / f"link.{target}"
    link.symlink_to(path)
    for place in (other, link):
        with pytest.raises(OutputError, match="left untouched"):
            export(pca, place, overwrite=True)
    assert other.read_text() == "notes"
    with pytest.raises(OutputError, match="is not a directory"):
        export(pca, tmp_path / "absent" / path.name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([path.name, other.name, link.name])


def test_nothing_is_written_if_the_checker_of_onnx_refuses_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx

    def refuse(*_: object, **__: object) -> None:
        raise onnx.checker.ValidationError("no")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(onnx.checker.ValidationError):
        sp.PCA(2).fit(ROWS).to_onnx(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("package", "target"), [("onnx", "onnx"), ("faiss", "faiss"), ("xarray", "nc")])
def test_a_missing_package_is_named_with_its_extra(
    package: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pca = sp.PCA(2).fit(ROWS)
    monkeypatch.setitem(sys.modules, package, None)
    extra = "xarray" if package == "xarray" else "export"
    with pytest.raises(NotAvailableError, match=rf'pip install "streampca\[{extra}\]"'):
        export(pca, tmp_path / f"m.{target}")


def test_other_errors_are_named(tmp_path: Path) -> None:
    pca = sp.PCA(2).fit(ROWS)
    with pytest.raises(
        ParameterError, match=r"names no format: expected a name that ends with \.onnx, \.faiss, \.npz, \.nc, \.csv"
    ):
        export(pca, tmp_path / "model.pkl")
    with pytest.raises(ParameterError, match="dtype='float16'"):
        pca.to_onnx(tmp_path / "m.onnx", dtype="float16")  # type: ignore[arg-type]
    for method in ("to_sklearn", "to_onnx", "to_faiss"):
        with pytest.raises(NotFittedError):
            getattr(sp.PCA(2), method)(*[] if method == "to_sklearn" else [tmp_path / "m"])


def test_components_that_exceed_the_ceiling_are_refused(tmp_path: Path) -> None:
    pca = sp.PCA(2).fit(ROWS)
    pca.set_params(memory="8MiB")
    for target in ("onnx", "faiss", "npz"):
        with pytest.raises(PlanError, match="the exported model: projected"):
            export(pca, tmp_path / f"m.{target}")
