"""Signature, docstring, statement, configuration file, schema and reference of every parameter agree."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from streampca import PCA, KernelPCA
from streampca.errors import ParameterError
from streampca.parameters import KERNEL_PCA_PARAMETERS, PCA_PARAMETERS, Parameter, Parameters
from streampca.parameters.domains import Choice, Special
from streampca.runs.config import KernelPCAConfig, PCAConfig, PreprocessConfig, parse_config
from streampca.runs.config.kernels import KernelConfig
from streampca.solvers.kernel.parameters import KernelParameters

STATED = {PCA: PCA_PARAMETERS, KernelPCA: KERNEL_PCA_PARAMETERS}
SECTIONS = {PCA: PCAConfig, KernelPCA: KernelPCAConfig}
ALL = [
    pytest.param(estimator, parameter, id=f"{estimator.__name__}-{parameter.name}")
    for estimator, parameters in STATED.items()
    for parameter in parameters
]


def types_in_docstring(estimator: type) -> dict[str, str]:
    """Return the names of the section Parameters of a docstring with the types behind them."""
    text = inspect.getdoc(estimator).partition("Parameters\n----------\n")[2].partition("\n\nAttributes")[0]
    entries = re.findall(r"^(\w[\w, ]*?)(?: : (.*))?$", text, re.MULTILINE)
    return {name: kind for names, kind in entries for name in names.split(", ")}


@pytest.mark.parametrize("estimator", STATED)
def test_signature_has_the_stated_names_and_defaults_in_order(estimator: type) -> None:
    signature = inspect.signature(estimator).parameters.values()
    assert [(p.name, p.default) for p in signature] == [(p.name, p.default) for p in STATED[estimator]]


@pytest.mark.parametrize("estimator", STATED)
def test_docstring_names_every_parameter_and_its_choices(estimator: type) -> None:
    written = types_in_docstring(estimator)
    assert set(written) == {p.name for p in STATED[estimator]}
    for parameter in STATED[estimator]:
        if isinstance(parameter.domain, Choice) and written[parameter.name].startswith("{"):
            assert written[parameter.name] == parameter.domain.type


@pytest.mark.parametrize(("estimator", "parameter"), ALL)
def test_configuration_has_the_stated_default(estimator: type, parameter: Parameter) -> None:
    if parameter.path is None:
        return
    kind = "pca" if estimator is PCA else "kernel_pca"
    value: Any = parse_config(f"{{source: {{path: x}}, model: {{kind: {kind}}}}}", name="x")
    for key in parameter.path.split("."):
        value = getattr(value, key)
    assert value == ((KernelConfig(name=parameter.default),) if parameter.name == "kernel" else parameter.default)


def test_sections_have_no_other_keys() -> None:
    for estimator, section in SECTIONS.items():
        assert set(section.model_fields) - {"kind", "kernel", "group_by"} == {
            p.name for p in STATED[estimator] if p.key == "model" and p.name != "kernel"
        }
    stated = {p.name for p in (*PCA_PARAMETERS, *KERNEL_PCA_PARAMETERS) if p.key == "preprocess"}
    assert set(PreprocessConfig.model_fields) == stated | {"sample_weight"}


@pytest.mark.parametrize(
    ("estimator", "of_a_fit", "others"),
    [
        (
            PCA,
            Parameters,
            {"threads", "read_ahead", "sample_weight", "feature_weight", "given", "remove", "n_regressors"},
        ),
        (KernelPCA, KernelParameters, {"threads", "read_ahead", "kernel", "sampling", "given"}),
    ],
)
def test_parameters_of_a_fit_have_the_stated_defaults(estimator: type, of_a_fit: type, others: set[str]) -> None:
    defaults = {f.name: f.default for f in fields(of_a_fit)}
    for parameter in STATED[estimator]:
        if parameter.field is not None:
            assert defaults.pop(parameter.field or parameter.name) == parameter.default
    assert set(defaults) == others


@pytest.mark.parametrize(("estimator", "parameter"), ALL)
def test_sentence_is_one_and_ends_with_a_full_stop(estimator: type, parameter: Parameter) -> None:
    assert parameter.text.endswith(".")
    assert "\n" not in parameter.text


@pytest.mark.parametrize(("estimator", "parameter"), ALL)
def test_value_outside_the_domain_is_refused_by_name(estimator: type, parameter: Parameter) -> None:
    if not parameter.checked or isinstance(parameter.domain, Special):
        return
    for value in ("nonsense", object(), np.zeros(3), np.nan, -np.inf):
        with pytest.raises(ParameterError, match=f"^{parameter.name}=.*: expected ") as caught:
            estimator(**{parameter.name: value})._parameters()
        assert parameter.domain.expected in str(caught.value)


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
        PCA(**parameters)._parameters()


def test_scalars_of_numpy_become_plain() -> None:
    parameters = PCA(
        scale=np.True_, ddof=np.int8(0), forgetting=np.float32(0.5), tolerance=np.float64(0.25), max_passes=np.int64(3)
    )._parameters()
    values = (parameters.scale, parameters.ddof, parameters.forgetting, parameters.tolerance, parameters.max_passes)
    assert values == (True, 0, 0.5, 0.25, 3)
    assert [type(value) for value in values] == [bool, int, float, float, int]
