"""Signature, docstring, configuration file and refusals of every parameter agree."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import numpy as np
import pytest
from stores import Command

from streampca import PCA, KernelPCA
from streampca.errors import ParameterError

SECTIONS = {PCA: "PCAConfig", KernelPCA: "KernelPCAConfig"}
ROWS = np.random.default_rng(0).standard_normal((30, 4))
PARAMETERS = [
    pytest.param(estimator, parameter, id=f"{estimator.__name__}-{parameter.name}")
    for estimator in SECTIONS
    for parameter in inspect.signature(estimator).parameters.values()
]
_OTHERS = {"feature_weight", "progress", "kernel", "degree", "coef0", "kernel_params", "sampling"}
"""Parameters of which other values are refused in other words, or only where a kernel has them."""


def types_in_docstring(estimator: type) -> dict[str, str]:
    """Return the names of the section Parameters of a docstring with the types behind them."""
    text = (inspect.getdoc(estimator) or "").partition("Parameters\n----------\n")[2].partition("\n\nAttributes")[0]
    entries = re.findall(r"^(\w[\w, ]*?)(?: : (.*))?$", text, re.MULTILINE)
    return {name: kind for names, kind in entries for name in names.split(", ")}


@pytest.mark.parametrize("estimator", SECTIONS)
def test_docstring_names_every_parameter_in_order_of_the_signature(estimator: type) -> None:
    assert set(types_in_docstring(estimator)) == set(inspect.signature(estimator).parameters)


def test_keys_of_configurations_are_parameters_with_their_defaults(capsys: Any) -> None:
    schema = json.loads(Command(capsys)("schema").out)["$defs"]
    for estimator, section in SECTIONS.items():
        stated = inspect.signature(estimator).parameters
        own = {"kind", "kernel", "group_by"} | (
            {"rotation"} if estimator is PCA else set()
        )  # PCA rotates after the fit
        keys = schema[section]["properties"].keys() - own
        assert keys <= stated.keys()
        for name in keys | (schema["PreprocessConfig"]["properties"].keys() & stated.keys()):
            place = section if name in keys else "PreprocessConfig"
            assert schema[place]["properties"][name].get("default") == stated[name].default, name


def test_every_solver_is_described_by_its_name() -> None:
    names, text = types_in_docstring(PCA)["solver"], inspect.getdoc(PCA) or ""
    for name in PCA._solvers:
        assert f'"{name}"' in names
        assert re.search(rf"\W{name}: \w", text), name


@pytest.mark.parametrize(("estimator", "parameter"), PARAMETERS)
def test_value_that_is_none_is_refused_by_name(estimator: type, parameter: inspect.Parameter) -> None:
    if parameter.name in _OTHERS:
        return
    with pytest.raises(ParameterError, match=rf"{parameter.name}=.*: expected "):
        estimator(**{parameter.name: object()}).fit(ROWS)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"forgetting": 0}, "forgetting=0: expected a number in (0, 1]; 1 forgets nothing"),
        ({"tolerance": -1.0}, "tolerance=-1.0: expected a finite number of at least 0, or None for the default"),
        ({"pilot": -1}, 'pilot=-1: expected an integer of at least 0, or "auto"'),
        ({"n_hashes": True}, "n_hashes=True: expected an integer of at least 1"),
        ({"random_state": 0.5}, "random_state=0.5: expected an integer, so that a run can be repeated"),
        ({"checkpoint": 3}, "checkpoint=3: expected the path of a directory, or None"),
    ],
)
def test_refusal_says_what_is_expected(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match="^" + re.escape(message) + "$"):
        PCA(**parameters).fit(ROWS)


def test_scalars_of_numpy_are_those_of_python() -> None:
    plain = {"scale": True, "ddof": 0, "forgetting": 0.5, "tolerance": 0.25, "max_passes": 3}
    kinds = {"scale": np.True_, "ddof": np.int8(0), "forgetting": np.float32(0.5), "tolerance": np.float64(0.25)}
    one, other = (PCA(2, **given).fit(ROWS) for given in (plain, {**kinds, "max_passes": np.int64(3)}))
    np.testing.assert_array_equal(one.components_, other.components_)
    json.dumps(other.plan_.to_dict())
