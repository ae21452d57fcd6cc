"""Errors for unknown keywords, keys and names suggest the name that was meant; signatures stay as they are written."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streampca as sp
from streampca.errors import ParameterError

ROWS = np.random.default_rng(0).normal(size=(40, 5))
CALLS: dict[str, tuple[Callable[[Any], Any], str, str]] = {
    "PCA": (lambda pca: sp.PCA(n_component=3), "n_component", "n_components"),
    "KernelPCA": (lambda pca: sp.KernelPCA(2, gama=1.0), "gama", "gamma"),
    "MCA": (lambda pca: sp.MCA(2, n_pac=3), "n_pac", "n_pca"),
    "CCA": (lambda pca: sp.CCA(2, centre=False), "centre", "center"),
    "FactorAnalysis": (lambda pca: sp.FactorAnalysis(2, rotaton="varimax"), "rotaton", "rotation"),
    "RotatedPCA": (lambda pca: sp.RotatedPCA(pca, methd="promax"), "methd", "method"),
    "RBF": (lambda pca: sp.kernels.RBF(gama=1.0), "gama", "gamma"),
    "CountSketch": (lambda pca: sp.transforms.CountSketch(n_feature=5), "n_feature", "n_features"),
    "open": (lambda pca: sp.open(ROWS, sample="time"), "sample", "samples"),
    "fit_many": (lambda pca: sp.fit_many({"a": sp.PCA(2)}, ROWS, feature={}), "feature", "features"),
    "load": (lambda pca: sp.load(pth="model.zarr"), "pth", "path"),
    "merge": (lambda pca: sp.merge(model=[pca]), "model", "models"),
    "run": (lambda pca: sp.run("job.yaml", overide=[]), "overide", "overrides"),
    "update": (lambda pca: sp.update("run", overide=[]), "overide", "overrides"),
    "PCA.fit": (lambda pca: pca.fit(ROWS, sample_weights=1), "sample_weights", "sample_weight"),
    "PCA.transform": (lambda pca: pca.transform(ROWS, removes=None), "removes", "remove"),
    "PCA.transform_to": (lambda pca: pca.transform_to(ROWS, "x", overwite=True), "overwite", "overwrite"),
    "PCA.fit_groups": (lambda pca: pca.fit_groups(ROWS, label=[1]), "label", "labels"),
    "PCA.rotate": (lambda pca: pca.rotate(2, methods="promax"), "methods", "method"),
    "PCA.save": (lambda pca: pca.save("x", overwrit=True), "overwrit", "overwrite"),
    "ComponentPlots.biplot": (lambda pca: pca.plot.biplot(ROWS, label=[]), "label", "labels"),
    "pca": (lambda pca: sp.anndata.pca(ROWS, n_comp=3), "n_comp", "n_comps"),
}


@pytest.fixture(scope="module")
def pca() -> sp.PCA:
    return sp.PCA(2).fit(ROWS)


@pytest.mark.parametrize("name", CALLS)
def test_a_keyword_that_does_not_exist_is_a_type_error_with_the_nearest(name: str, pca: sp.PCA) -> None:
    call, given, meant = CALLS[name]
    with pytest.raises(TypeError) as raised:
        call(pca)
    assert str(raised.value) == (f"{name}() got an unexpected keyword argument {given!r}; did you mean {meant!r}?")


def test_where_no_name_is_near_the_accepted_ones_are_listed(pca: sp.PCA) -> None:
    with pytest.raises(
        TypeError, match=r"argument 'zzz'; expected some of pca, k, method, normalize, power, memory, pro"
    ):
        sp.RotatedPCA(pca, zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("estimator", "meant"),
    [
        (sp.PCA(2, remove={"group": ROWS[:, 0]}), "groups"),
        (sp.PCA({"frobenus": 0.9}), "frobenius"),
        (sp.PCA(2, solver="covarance"), "covariance"),  # type: ignore[arg-type]
        (sp.KernelPCA(2, kernel="rbff"), "rbf"),
        (sp.PCA(2, scale="paterson"), "patterson"),  # type: ignore[arg-type]
        (sp.PCA("tracy-widom"), "tracy_widom"),  # type: ignore[arg-type]
    ],
)
def test_keys_and_values_have_a_suggestion(estimator: Any, meant: str) -> None:
    with pytest.raises(ParameterError, match=f"; did you mean '{meant}'\\?"):
        estimator.fit(ROWS)
    with pytest.raises(ParameterError, match="did you mean 'n_components'"):
        estimator.set_params(n_component=2)


def test_options_of_open_are_told_from_parameters(pca: sp.PCA) -> None:
    for call in (lambda: sp.PCA(2, normalize={}), lambda: pca.fit(ROWS, where="a > 0")):  # type: ignore[call-arg]
        with pytest.raises(
            TypeError, match=r"it is an option of open: give streampca\.open\(data, (normalize|where)=…\)"
        ):
            call()
    with pytest.raises(ParameterError, match=r"""did you mean \{"norm": "l2"\}\?"""):
        sp.open(ROWS, normalize="l2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="argument 'data'; expected some of X, "):
        pca.fit(data=ROWS)  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match="did you mean 'log1p'"):
        sp.open(ROWS, normalize={"log1": True})


@pytest.mark.parametrize("value", [ROWS, "x" * 500, {"a": ROWS}])
def test_messages_do_not_print_whole_values(value: Any) -> None:
    for estimator in (sp.PCA(2, remove=value), sp.PCA(value), sp.PCA(2, solver=value)):
        with pytest.raises(ParameterError) as raised:
            estimator.fit(ROWS)
        assert len(str(raised.value)) < 500
        assert "\n" not in str(raised.value)


def test_signatures_clones_and_pickles_are_those_of_the_constructor() -> None:
    from sklearn.base import clone

    pca = sp.PCA(3, scale=True)
    assert list(inspect.signature(sp.PCA).parameters) == list(inspect.signature(sp.PCA.__init__).parameters)[1:]
    assert list(inspect.signature(sp.PCA.fit).parameters) == ["self", "X", "y", "sample_weight"]
    assert list(inspect.signature(sp.fit_many).parameters)[:3] == ["models", "X", "features"]
    for copy in (clone(pca), pickle.loads(pickle.dumps(pca)), sp.PCA(**pca.get_params())):
        assert copy.get_params() == pca.get_params()


def test_a_warning_of_a_fit_names_the_line_of_the_caller() -> None:
    rows = np.array([[2.0**53 + 2 * i, -float(i)] for i in range(30)]).astype(np.int64)
    rows[:, 0] += np.arange(30) % 3
    with pytest.warns(UserWarning, match="integers|rounding") as caught:
        sp.PCA(1).fit(rows)
    assert {Path(each.filename).name for each in caught} == {Path(__file__).name}
