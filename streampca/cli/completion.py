"""Shell completions that click cannot know: keys of the configuration, and built-in data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_key(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the keys of a configuration that begin with `incomplete`, each with the equals sign."""
    from click.shell_completion import CompletionItem

    from streampca.runs.config.models import json_schema

    schema = json_schema()
    keys = dict(_keys(schema, schema))
    return [CompletionItem(f"{key}=", help=text) for key, text in keys.items() if key.startswith(incomplete)]


def _keys(node: Mapping[str, Any], schema: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key paths of single values below `node`, each with its meaning."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    for inner in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _keys(inner, schema, prefix)
    for key, value in node.get("properties", {}).items():
        below = list(_keys(value, schema, f"{prefix}{key}."))
        yield from below or [(f"{prefix}{key}", value.get("description", "").partition(". ")[0])]


def complete_source(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the built-in data sets that begin with `incomplete`; where there are none the shell completes files."""
    from click.shell_completion import CompletionItem

    from streampca.sources.builtin import BUILTIN_NAMES

    names = [f"builtin:{name}" for name in BUILTIN_NAMES]
    found = [name for name in names if incomplete and name.startswith(incomplete)]
    return [CompletionItem(name) for name in found] or [CompletionItem(incomplete, type="file")]
