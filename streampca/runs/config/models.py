"""Configurations of several models of the same source: ``models``, a mapping of names to models, in place of ``model``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from streampca.errors import ConfigError
from streampca.runs.config import RunConfig, validated
from streampca.runs.config.document import Document, describe, read_text
from streampca.runs.config.yaml import dump, load_strict

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,59}")
OF_FEATURES = ("variables", "mask", "mask_var", "columns")
"""Keys of the source that a model may have of its own: which features it takes."""


def is_model_name(name: object) -> bool:
    """Tell whether `name` may be that of one of several models; it is the name of a directory, too."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class ModelsConfig:
    """A configuration file with several models."""

    common: RunConfig
    """What they have in common; its `model` says nothing."""
    models: Mapping[str, RunConfig]
    """The configuration of a run of each model alone, in ``models/NAME`` of the common directory."""

    def to_yaml(self) -> str:
        """Write the configuration with every default, ``${NAME}`` references as they were written."""
        tree = _tree_of(self.common)
        common = tree["preprocess"]
        del tree["model"]
        models = {}
        for name, config in self.models.items():
            one = _tree_of(config)
            models[name] = one["model"]
            for section, keys in (("preprocess", common), ("source", tree["source"])):
                own = {key: value for key, value in one[section].items() if value != keys[key]}
                models[name] |= {section: own} if own else {}
        return dump(tree | {"models": models})


def load_any_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig | ModelsConfig:
    """Read and validate a YAML file with `model` or `models`; otherwise as `load_config`."""
    text, name = read_text(path)
    return parse_any_config(text, name=name, overrides=overrides)


def parse_any_config(text: str, *, name: str, overrides: Sequence[str] = ()) -> RunConfig | ModelsConfig:
    """Validate a YAML text that errors call `name`, with `model` or `models`."""
    document = Document.parse(text, name, overrides)
    if "models" not in document.tree:
        return validated(document)
    tree = {key: value for key, value in document.tree.items() if key != "models"}
    common = validated(replace(document, tree=tree))
    models = _entries(document)
    configs = {key: _config_of(document, tree, key, entry) for key, entry in models.items()}
    _require_together(document.name, common)
    return ModelsConfig(common, configs)


def _entries(document: Document) -> dict[str, dict[str, object]]:
    """Return the models of a document by name; `ConfigError` unless they are a mapping of mappings and there is no `model`."""
    written, model = document.tree["models"], document.tree.get("model")
    if not isinstance(written, dict) or not written:
        raise ConfigError(f"{document.name}: models: found {describe(written)}, allowed: a mapping of names to models")
    if model != {"kind": "pca"} and model != {}:
        raise ConfigError(f"{document.name}: model and models: give one of them")
    entries: dict[str, dict[str, object]] = {}
    for name, entry in written.items():
        if not is_model_name(name):
            raise ConfigError(
                f"{document.name}: models: found the name {describe(name)}, allowed: letters, digits, dots, _ and -"
            )
        if not isinstance(entry, dict | None):
            raise ConfigError(
                f"{document.name}: models.{name}: found {describe(entry)}, allowed: a mapping with the keys of model, and preprocess"
            )
        entries[name] = entry or {}
    return entries


def _config_of(document: Document, tree: dict[str, object], name: str, entry: dict[str, object]) -> RunConfig:
    """Return the configuration of one model alone."""
    sections: dict[str, object] = {}
    for section in ("preprocess", "source"):
        own, common = entry.get(section, {}), tree.get(section) or {}
        if not isinstance(own, dict) or not isinstance(common, dict):
            raise ConfigError(
                f"{document.name}: models.{name}.{section}: found {describe(own)}, allowed: a mapping with keys of {section}"
            )
        others = [key for key in own if section == "source" and key not in OF_FEATURES]
        if others:
            raise ConfigError(
                f"{document.name}: models.{name}.source.{others[0]}: all models read the same rows: expected some of "
                f"{', '.join(OF_FEATURES)}"
            )
        sections[section] = common | own
    if entry.get("group_by") is not None:
        raise ConfigError(
            f"{document.name}: models.{name}.group_by: groups have a run of their own: give model in place of models"
        )
    model = {"kind": "pca"} | {key: value for key, value in entry.items() if key not in sections}
    one = deepcopy(tree) | {"model": model} | sections
    config = validated(replace(document, name=f"{document.name}: in models.{name}", tree=one))
    directory = config.output.directory / "models" / name
    run_name = f"{config.name}: {name}"
    output = config.output.model_copy(update={"directory": directory})
    return config.model_copy(update={"output": output, "name": run_name})


def _require_together(name: str, common: RunConfig) -> None:
    """Raise `ConfigError` for what a run of several models does not do."""
    for key, given in (("anndata", common.output.anndata), ("publish", common.output.publish)):
        if given:
            raise ConfigError(f"{name}: output.{key} does not go together with models: run the model by itself")


def _tree_of(config: RunConfig) -> dict[str, dict[str, object]]:
    """Return a configuration as plain data."""
    tree = load_strict(config.to_yaml(), "config.yaml")
    if not isinstance(tree, dict):
        raise TypeError("a configuration is a mapping")
    return tree
