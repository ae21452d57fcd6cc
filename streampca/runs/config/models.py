"""Configurations of several models, the JSON Schema of configuration files, and the table of their keys for the reference."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

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
    validated,
)
from streampca.runs.config.document import Document, KeyPath, all_sections, describe, dump

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,59}")
OF_FEATURES = ("variables", "mask", "mask_var", "columns")
"""Keys of the source that a model may set for itself; they select its features."""
_SECTIONS = ("preprocess", "source")
"""Sections that a model may set for itself, as a whole or in part."""


def is_model_name(name: object) -> bool:
    """Return whether `name` is allowed for one of several models; it is also the name of a directory."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class ModelsConfig:
    """A configuration file with several models."""

    common: RunConfig
    """Configuration that they share; its `model` has no meaning."""
    models: Mapping[str, RunConfig]
    """Configuration of a separate run of each model, in ``models/NAME`` of the common directory."""

    def to_yaml(self) -> str:
        """Write the configuration with every default and with ``${NAME}`` references unresolved."""
        tree, models = self.common.to_tree(), {}
        del tree["model"]
        for name, config in self.models.items():
            one = config.to_tree()
            models[name] = one["model"]
            for section in _SECTIONS:
                own = {key: value for key, value in one[section].items() if value != tree[section][key]}
                models[name] |= {section: own} if own else {}
        return dump(tree | {"models": models})


def load_any_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig | ModelsConfig:
    """Read and validate a YAML file with `model` or `models`; otherwise as `load_config`."""
    return _validated(Document.read(path, overrides))


def parse_any_config(text: str, *, name: str, overrides: Sequence[str] = ()) -> RunConfig | ModelsConfig:
    """Validate a YAML text that errors call `name`, with `model` or `models`."""
    return _validated(Document.parse(text, name, overrides))


def _validated(document: Document) -> RunConfig | ModelsConfig:
    if "models" not in document.tree:
        return validated(document)
    tree = {key: value for key, value in document.tree.items() if key != "models"}
    common = validated(replace(document, tree=tree))
    models = _entries(document)
    if common.output.anndata:
        raise document.refusal({("output", "anndata"): " cannot be combined with models: run the model by itself"})
    return ModelsConfig(common, {key: _config_of(document, tree, key, entry) for key, entry in models.items()})


def _entries(document: Document) -> dict[str, dict[str, Any]]:
    """Return the models of a document by name; `ConfigError` unless they are a mapping of mappings, without `model`."""
    written, problems = document.tree["models"], dict[KeyPath, str]()
    if not isinstance(written, dict) or not written:
        raise document.refusal({("models",): f": found {describe(written)}, allowed: a mapping of names to models"})
    if document.tree.get("model") not in ({"kind": "pca"}, {}):
        raise document.refusal({(): "model and models: give one of them"})
    for name, entry in written.items():
        path = ("models", name)
        if not is_model_name(name):
            problems["models",] = f": found the name {describe(name)}, allowed: letters, digits, dots, _ and -"
        elif not isinstance(entry, dict | None):
            problems[path] = f": found {describe(entry)}, allowed: a mapping with the keys of model, and preprocess"
        else:
            problems |= _problems_of(path, entry or {})
    if problems:
        raise document.refusal(problems)
    return {name: entry or {} for name, entry in written.items()}


def _problems_of(path: KeyPath, entry: dict[str, object]) -> dict[KeyPath, str]:
    """Return problems of a model at a key path, apart from the keys of `model` itself."""
    problems: dict[KeyPath, str] = {}
    for section in _SECTIONS:
        own = entry.get(section, {})
        if not isinstance(own, dict):
            problems[*path, section] = f": found {describe(own)}, allowed: a mapping with keys of {section}"
        elif section == "source":
            allowed = f": all models read the same rows: expected some of {', '.join(OF_FEATURES)}"
            problems |= {(*path, section, key): allowed for key in own if key not in OF_FEATURES}
    if entry.get("group_by") is not None:
        problems[*path, "group_by"] = ": groups have a run of their own: give model in place of models"
    return problems


def _config_of(document: Document, tree: dict[str, Any], name: str, entry: dict[str, Any]) -> RunConfig:
    """Return the configuration of a separate run of one model."""
    sections = {section: tree.get(section, {}) | entry.get(section, {}) for section in _SECTIONS}
    model = {"kind": "pca"} | {key: value for key, value in entry.items() if key not in sections}
    one = tree | {"model": model} | sections
    config = validated(replace(document, name=f"{document.name}: in models.{name}", tree=one))
    output = config.output.model_copy(update={"directory": config.output.directory / "models" / name})
    return config.model_copy(update={"output": output, "name": f"{config.name}: {name}"})


_STATED: dict[type[BaseModel], Sequence[Parameter | CountKey]] = {
    PCAConfig: PCA_PARAMETERS,
    PreprocessConfig: PCA_PARAMETERS,
    StatisticsConfig: PCA_PARAMETERS,
    KernelPCAConfig: KERNEL_PCA_PARAMETERS,
    **{section: KINDS[name].parameters for name, section in ANALYSES.items()},
    NormalizeConfig: NORMALIZE,
}
_DERIVED = {"RunConfig": ("name", "output"), "OutputConfig": ("directory",)}
"""Keys with defaults that follow from other keys."""
_MODELS = (
    "Several models from the same passes, in place of model: a mapping of names to mappings with the keys of model. preprocess holds "
    "the keys that differ from the other models; source selects the features of a model that does not use all."
)


def json_schema() -> dict[str, object]:
    """Return the JSON Schema (draft 2020-12) of a configuration file: every key with its meaning, default and values.

    It accepts references ``${NAME}`` to environment variables only in texts.
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
    """Return a sentence for each key of `section`: the string below the field, else the text of the parameter."""
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
