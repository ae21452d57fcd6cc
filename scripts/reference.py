#!/usr/bin/env python
"""Writes the tables of docs/reference/parameters.md from the statements of the parameters and the schema of configuration files.

Usage: scripts/reference.py [--check]    (--check: write nothing; status 1 if the page is not up to date)
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streampca.parameters import KERNEL_PCA_PARAMETERS, PCA_PARAMETERS, Parameter
from streampca.parameters.domains import Number, Whole
from streampca.runs.config.schema import json_schema

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "parameters.md"


def table_of(parameters: tuple[Parameter, ...]) -> str:
    """Return the table of the parameters of an estimator."""
    lines = ["| parameter | default | values | in a file | meaning |", "|---|---|---|---|---|"]
    for parameter in parameters:
        domain = parameter.domain
        bounded = isinstance(domain, Whole | Number)
        values = _cell(domain.expected.removesuffix(domain.hint) if bounded else domain.type.strip("{}"))
        key = f"`{parameter.path}`" if parameter.path else ""
        lines.append(f"| `{parameter.name}` | `{parameter.default!r}` | {values} | {key} | {_cell(parameter.text)} |")
    return "\n".join(lines)


def keys() -> str:
    """Return the table of the keys of a configuration file."""
    schema = json_schema()
    lines = ["| key | default | meaning |", "|---|---|---|"]
    for path, entry in _entries(schema, schema, ""):
        default = f"`{_yaml(entry['default'])}`" if "default" in entry else ""
        lines.append(f"| `{path}` | {default} | {_cell(entry.get('description', ''))} |")
    return "\n".join(lines)


def _entries(schema: dict[str, Any], section: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, entry in section["properties"].items():
        below = [
            schema["$defs"][name] for name in re.findall(r"#/\$defs/(\w+)", str(entry.get("oneOf", entry.get("$ref"))))
        ]
        if not below:
            yield path + key, entry
        for each in below:
            kind = each["properties"].get("kind", {}).get("const")
            yield from _entries(schema, each, f"{path}{key}." if kind is None else f"{path}{key}({kind}).")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`").replace("\n", " ")


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def written(page: str) -> str:
    """Return the page with its tables made anew between their marks."""
    tables = {"PCA": table_of(PCA_PARAMETERS), "KernelPCA": table_of(KERNEL_PCA_PARAMETERS), "keys": keys()}
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- {name}: by scripts/reference.py -->\n).*?(\n<!-- end -->)", re.DOTALL)
        page, found = mark.subn(lambda match, table=table: f"{match[1]}{table}{match[2]}", page)  # type: ignore[misc]
        if found != 1:
            raise SystemExit(f"{PAGE}: expected the marks of the table {name} once, found them {found} times")
    return page


def main() -> None:
    """Write the page, or tell whether it is up to date."""
    before = PAGE.read_text(encoding="utf-8")
    after = written(before)
    if "--check" in sys.argv[1:]:
        if before != after:
            raise SystemExit(f"{PAGE.name} is not up to date: run scripts/reference.py")
        return
    PAGE.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    main()
