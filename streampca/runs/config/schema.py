"""The JSON Schema of configuration files, for editors, and the table of their keys, for the reference."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from typing import get_args

from pydantic import BaseModel

from streampca.counts import NORMALIZE, CountKey
from streampca.parameters import (
    KERNEL_PCA_PARAMETERS,
    KINDS,
    PCA_PARAMETERS,
    Parameter,
)
from streampca.runs.config import (
    ANALYSES,
    KernelPCAConfig,
    NormalizeConfig,
    PCAConfig,
    PreprocessConfig,
    RunConfig,
    StatisticsConfig,
)
from streampca.runs.config.models import OF_FEATURES
from streampca.runs.config.problems import all_sections

_STATED: dict[type[BaseModel], Sequence[Parameter | CountKey]] = {
    PCAConfig: PCA_PARAMETERS,
    PreprocessConfig: PCA_PARAMETERS,
    StatisticsConfig: PCA_PARAMETERS,
    KernelPCAConfig: KERNEL_PCA_PARAMETERS,
    **{section: KINDS[name].parameters for name, section in ANALYSES.items()},
    NormalizeConfig: NORMALIZE,
}
_DERIVED = {"RunConfig": ("name", "output"), "OutputConfig": ("directory",)}
"""Keys that follow from others if the file does not have them."""
_MODELS = (
    "Several models from the same readings, in place of model: a mapping of names to mappings with the keys of model, and "
    "preprocess with those keys in which it differs from the others; source names the features of a model that has not all of them."
)


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of a configuration file: every key with its meaning, default and values.

    References ``${NAME}`` to environment variables are known in texts only.
    """
    schema = RunConfig.model_json_schema()
    definitions = {"RunConfig": schema} | schema["$defs"]
    for section in {section for _, section in all_sections(RunConfig)}:
        definition = definitions[section.__name__]
        definition.pop("title")
        definition["description"] = inspect.cleandoc(section.__doc__ or "")
        for key, meaning in meanings_of(section).items():
            entry = definition["properties"][key]
            entry.pop("title", None)
            allowed = section.model_fields[key].description
            entry["description"] = f"{meaning} Allowed: {allowed}." if allowed else meaning
        left = set(definition.get("required", ())) - set(_DERIVED.get(section.__name__, ()))
        definition["required"] = sorted(left)
    of_source = definitions["SourceConfig"]["properties"]
    own = {"type": "object", "additionalProperties": False, "properties": {key: of_source[key] for key in OF_FEATURES}}
    preprocess = {"preprocess": definitions["RunConfig"]["properties"]["preprocess"], "source": own}
    kinds: list[type[BaseModel]] = [PCAConfig, KernelPCAConfig, *ANALYSES.values()]
    models = [definitions[kind.__name__] for kind in kinds]
    one = [each | {"properties": each["properties"] | preprocess} for each in models]
    schema["properties"]["models"] = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"anyOf": one},
        "description": _MODELS,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of a run of streampca",
        **schema,
    }


def meanings_of(section: type[BaseModel]) -> dict[str, str]:
    """Return a sentence for each key of `section`: of a stated parameter its text, else the string below the field."""
    stated = {parameter.name: parameter.text for parameter in _STATED.get(section, ())}
    if section in ANALYSES.values():
        (kind,) = get_args(section.model_fields["kind"].annotation)
        return {key: stated.get(key) or KINDS[kind].meaning for key in section.model_fields}
    body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    written = {}
    if isinstance(body, ast.ClassDef):
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                written[ast.unparse(field.target)] = inspect.cleandoc(str(below.value.value))
    return {key: written.get(key) or stated[key] for key in section.model_fields}
