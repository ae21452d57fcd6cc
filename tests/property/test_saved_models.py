"""Every fitted estimator that `save` takes is given back by `load`: parameters, attributes, and the bits of `transform`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import facade
import numpy as np
import pytest
import strategies
from hypothesis import event, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import streampca as sp
from streampca.errors import StreamPCAError

pytestmark = pytest.mark.numerical

ROWS = {
    "n": st.sampled_from((2, 3, 5, 8, 20, 60)),
    "d": st.sampled_from((1, 2, 3, 5, 10, 40)),
    "dtype": st.sampled_from(("float64", "float32", "float16", "uint8", "int16", "bool")),
    "kind": st.sampled_from(strategies.KINDS),
    "seed": st.integers(0, 2**16),
}
RULES = st.one_of(st.integers(1, 5), st.sampled_from((None, 0.5, 0.95)), st.just(sp.Threshold(1e-3)))
PCA_OPTIONS = {
    "n_components": RULES,
    "solver": st.sampled_from(("auto", "covariance", "gram", "qr", "sketch", "sketch", "adaptive")),
    "recovery": st.sampled_from(("nystrom", "conversion")),
    "sketch": st.sampled_from(("auto", "gaussian", "count_sketch", "sparse_sign", "grouping")),
    "missing": st.sampled_from(("error", "error", "drop_rows", "mean", "pairwise")),
    "missing_scores": st.sampled_from(("conditional", "mean")),
    "center": st.booleans(),
    "scale": st.sampled_from([False, True, "block"]),
    "whiten": st.booleans(),
    "ddof": st.integers(0, 1),
    "pilot": st.sampled_from(("auto", 0)),
    "tolerance": st.sampled_from((None, 0.0, 0.01)),
    "forgetting": st.sampled_from((1.0, 1.0, 0.9)),
    "random_state": st.integers(0, 9),
    "memory": st.sampled_from((None, "2GiB", 2**31)),
}
KERNELS = (
    "rbf",
    "linear",
    "poly",
    "sigmoid",
    "laplacian",
    "cosine",
    sp.kernels.RBF(sigma=2.0) + 2.0 * sp.kernels.Polynomial(degree=2),
)
KERNEL_OPTIONS = {
    "n_components": RULES,
    "kernel": st.sampled_from(KERNELS),
    "gamma": st.sampled_from((None, 0.1)),
    "method": st.sampled_from(("auto", "exact", "nystrom", "nystrom_extension", "empirical_map")),
    "sampling": st.sampled_from(("auto", "uniform", "diagonal", "column_norm", "rpcholesky", "indices", "landmarks")),
    "n_landmarks": st.sampled_from((2, 5, 1000)),
    "recovery": st.sampled_from(("nystrom", "conversion")),
    "center": st.booleans(),
    "scale": st.booleans(),
    "fit_inverse_transform": st.booleans(),
    "random_state": st.integers(0, 9),
}


def assert_same_after_loading(fitted: Any, rows: NDArray[Any], *, state: bool = False) -> None:
    """Save and load `fitted`; whatever is refused has to be refused by `save`, with an error of ours."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            path = fitted.save(Path(directory) / "model.zarr", **({"state": True} if state else {}))
        except StreamPCAError as error:
            event(f"not saved: {error}")
            return
        loaded: Any = sp.load(path)
        parameters = loaded.get_params()
        for name, value in fitted.get_params().items():
            np.testing.assert_equal(parameters[name], value, err_msg=name)
        for name, value in facade.fitted_attributes(fitted).items():
            np.testing.assert_equal(getattr(loaded, name), value, err_msg=name)
        try:
            scores = fitted.transform(rows)
        except (StreamPCAError, ValueError):  # holes in rows that were fitted with a weight of 0
            return
        np.testing.assert_array_equal(loaded.transform(rows), scores)


@st.composite
def weights(draw: st.DrawFn, n: int) -> NDArray[np.float64] | None:
    """Draw weights of `n` rows: none, a single row that counts, whole numbers, or small fractions."""
    kind = draw(st.sampled_from(("none", "single", "whole", "small")))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    if kind == "none":
        return None
    if kind == "single":
        return 3.0 * (np.arange(n) == rng.integers(n))
    return rng.integers(0, 3, n).astype(float) if kind == "whole" else 0.1 * rng.random(n)


@pytest.mark.slow
@settings(max_examples=strategies.examples(50))
@given(data=st.data(), weighted=st.booleans(), **ROWS)
def test_saved_pca_is_the_same_when_loaded(
    data: st.DataObject, n: int, d: int, dtype: str, kind: str, seed: int, weighted: bool
) -> None:
    rows = strategies.make_rows(n, d, dtype, kind, seed)
    rng = np.random.default_rng(seed)
    options: dict[str, Any] = {name: data.draw(values, label=name) for name, values in PCA_OPTIONS.items()}
    if isinstance(options["n_components"], int):
        options["n_components"] = min(options["n_components"], n, d)
    if options["solver"] in ("gram", "adaptive"):
        options |= {"missing": "error", "forgetting": 1.0}
    if options["missing"] != "error" and rows.dtype.kind == "f":
        rows[rng.random(rows.shape) < 0.1] = np.nan
    pca = sp.PCA(**options, feature_weight=rng.integers(0, 3, d) if weighted else None)
    try:
        pca.fit(rows, sample_weight=data.draw(weights(n)))
    except (StreamPCAError, ValueError) as error:
        event(f"not fitted: {type(error).__name__} {str(error)[:60]}")
        return
    assert_same_after_loading(
        pca, rows, state=pca._fitted_state is not None and data.draw(st.booleans(), label="state")
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:n_components=.* eigenvalues? of the")  # fewer are positive than were asked for
@settings(max_examples=strategies.examples(30))
@given(data=st.data(), **ROWS)
def test_saved_kernel_pca_is_the_same_when_loaded(
    data: st.DataObject, n: int, d: int, dtype: str, kind: str, seed: int
) -> None:
    rows = strategies.make_rows(n, d, dtype, kind, seed)
    options: dict[str, Any] = {name: data.draw(values, label=name) for name, values in KERNEL_OPTIONS.items()}
    given_rows = {"indices": np.arange(0, n, 2), "landmarks": rows[:3]}
    if options["method"] in ("auto", "exact"):
        options["sampling"] = "auto"
    options["sampling"] = given_rows.get(options["sampling"], options["sampling"])
    model = sp.KernelPCA(**options)
    try:
        model.fit(rows)
    except (StreamPCAError, ValueError) as error:
        event(f"not fitted: {type(error).__name__} {str(error)[:60]}")
        return
    assert_same_after_loading(model, rows)
