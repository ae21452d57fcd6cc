#!/usr/bin/env python
"""Writes the tables of docs/reference/parameters.md, configuration.md, combinations.md and memory-formulas.md, and configs/streampca.schema.json.

They follow from the statements of the parameters, the schema of configuration files, the table of what goes together, and
the docstrings of the formulas of memory.

Usage: scripts/reference.py [--check]    (--check: write nothing; status 1 if a page is not up to date)
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

from streampca.parameters import (
    COUPLED_PARAMETERS,
    FACTOR_PARAMETERS,
    KERNEL_PCA_PARAMETERS,
    PCA_PARAMETERS,
    Parameter,
)
from streampca.planning.memory import (
    PURPOSES,
    Purpose,
    buffer_bytes,
    eigenproblem_bytes,
    model_need,
    reading_needs,
    scores_bytes,
)
from streampca.planning.work import Work
from streampca.runs.config.models import json_schema
from streampca.solvers.approximate import ApproximateSolver
from streampca.solvers.capabilities import CONFLICTS, TRAITS, WAYS, Table
from streampca.solvers.choosing import CONTINUABLE, SOLVERS
from streampca.solvers.covariance import CovarianceSolver, OnDisk
from streampca.solvers.gram import GramSolver
from streampca.solvers.sketch import SketchOfSamples

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
SCHEMA = ROOT / "configs" / "streampca.schema.json"


def table_of(parameters: tuple[Parameter, ...], known: tuple[Parameter, ...] = ()) -> str:
    """Return the table of the parameters of an estimator, with one line for those that another table has in the same words."""
    rows = {parameter.name: _row(parameter) for parameter in parameters}
    there = {_row(parameter) for parameter in known}
    lines = ["| parameter | default | values | meaning |", "|---|---|---|---|"]
    lines += [row for row in rows.values() if row not in there]
    same = [f"`{name}`" for name, row in rows.items() if row in there]
    return "\n".join([*lines, "", f"As for `PCA`: {', '.join(same)}."] if same else lines)


def _row(parameter: Parameter) -> str:
    values, text = _cell(parameter.domain.values.replace("}", "")), _cell(parameter.text)
    return f"| `{parameter.name}` | `{parameter.default!r}` | {values} | {text} |"


def keys() -> str:
    """Return the keys of a configuration file, one table for each section; kinds of models with the same keys share one.

    Keys that are parameters with the same default and values are named below the table.
    """
    schema: dict[str, Any] = json_schema()
    sections: dict[str, str] = {}
    meanings: dict[str, str] = {}
    for section, entries in _sections(schema).items():
        rows: list[str] = []
        same: dict[str, list[str]] = {}
        for key, entry in entries.items():
            meaning = _cell(entry.get("description", "")).partition(" Allowed: ")[0]
            title, parameter = _parameter(section, key)
            if key == "kind":
                default = " (default)" if "default" in entry else ""
                meanings[section] = meaning.partition(";")[0].rstrip(".") + default
            elif parameter is None:
                rows.append(_key(key, entry, schema, meaning))
            elif parameter.name == key and parameter.domain.schema and parameter.default == entry.get("default"):
                same.setdefault(title, []).append(f"`{key}`")
            else:
                rows.append(_key(key, entry, schema, _link(title, f".{parameter.name}")))
        named = "; of ".join(f"{_link(title)}: {', '.join(names)}" for title, names in same.items())
        parts = ["\n".join([*_HEAD, *rows])] * bool(rows) + [f"Parameters of {named}."] * bool(same)
        sections[section] = "\n\n".join(parts)
    together: dict[str, list[str]] = {}
    for section, text in sections.items():
        together.setdefault(text or section, []).append(section)
    return "\n\n".join(_section(names, sections[names[0]], meanings) for names in together.values())


def _sections(schema: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the entries of a schema by section and key."""
    sections: dict[str, dict[str, dict[str, Any]]] = {}
    for path, entry in _entries(schema, schema, ""):
        section, _, key = path.rpartition(".")
        sections.setdefault(section, {})[key] = entry
    return sections


def _key(key: str, entry: dict[str, Any], schema: dict[str, Any], meaning: str) -> str:
    default = f"`{_yaml(entry['default'])}`" if "default" in entry else ""
    return f"| `{key}` | {default} | {_values(entry, schema['$defs'])} | {meaning} |"


def _section(names: list[str], text: str, meanings: dict[str, str]) -> str:
    """Return heading and text of sections with the same keys, such as `model(mca)` and `model(cca)`, two kinds of `model`."""
    name = names[0].partition("(")[0]
    kinds = " or ".join(f"`kind: {each.partition('(')[2].rstrip(')')}`" for each in names if "(" in each)
    heading = (f"### `{name}`" + (f", {kinds}" if kinds else "")) if name else "### At the top of the file"
    meaning = " ".join(f"{meanings[each][:1].upper()}{meanings[each][1:]}." for each in names if each in meanings)
    return "\n\n".join(part for part in (heading, meaning, text) if part)


_HEAD = ["| key | default | values | meaning |", "|---|---|---|---|"]
_ESTIMATORS = {
    "PCA": PCA_PARAMETERS,
    "KernelPCA": KERNEL_PCA_PARAMETERS,
    "MCA and CCA": COUPLED_PARAMETERS,
    "FactorAnalysis": FACTOR_PARAMETERS,
}
"""Sections of parameters.md, and their parameters."""
_OF_KINDS = {"kernel_pca": "KernelPCA", "mca": "MCA and CCA", "cca": "MCA and CCA", "factor_analysis": "FactorAnalysis"}
_IN_SHORT = {
    "a whole number of bytes": "bytes",
    r"a whole number of at least (\d+)": r"integer ≥ \1",
    "a number above 0 and at most 1": "number > 0 and ≤ 1",
    r"a number above (\d+)": r"number > \1",
    r"a number of at least (\d+)": r"number ≥ \1",
    r"a duration such as .*\)": "duration",
    "^true or false": "bool",
    "a mapping of options": "mapping",
    r"(^|, |, or )(?:an?|the) (?=\w)": r"\1",
    "path of an .npy file": ".npy file",
    "name of an array beside": "array beside",
    "different names": "names",
}
"""What the tables have in place of the words of error messages."""


def _values(entry: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the values of a key beside a default of null: what errors call allowed, or else the names or keys of its schema."""
    text = entry.get("description", "").partition(" Allowed: ")[2].removesuffix(".")
    if entry.get("default", "") is None:
        text = re.sub(",? or null$", "", text)
    either = [each for each in entry.get("anyOf", [entry]) if each.get("type") != "null"]
    if not text:
        keys = [key for each in either for key in definitions.get(each.get("$ref", "")[8:], {}).get("properties", ())]
        names = [name for each in either for name in each.get("enum", ())]
        return ", ".join(names) or (f"mapping with {', '.join(keys)}" if keys else "")
    if either and all(each.get("type") == "string" for each in either) and not re.search("[,:]", text):
        return "string"
    for long, short in _IN_SHORT.items():
        text = re.sub(long, short, text)
    return _cell(text)


def _parameter(section: str, key: str) -> tuple[str, Parameter | None]:
    """Return the parameter that a key stands for, and the section of parameters.md that has it."""
    name, _, kind = section.partition("(")
    title = _OF_KINDS.get(kind.rstrip(")"), "PCA")
    path = f"{name}.{key}" if name else key
    for parameter in _ESTIMATORS[title]:
        if parameter.path == path:
            common = _row(parameter) in {_row(each) for each in PCA_PARAMETERS}
            return ("PCA" if common else title), parameter
    return "", None


def _link(title: str, attribute: str = "") -> str:
    """Return a link to a section of parameters.md."""
    anchor = title.lower().replace(" ", "-")
    return f"[`{title.partition(' ')[0]}{attribute}`](parameters.md#{anchor})"


def _entries(schema: dict[str, Any], section: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, entry in section["properties"].items():
        below = [
            schema["$defs"][name] for name in re.findall(r"#/\$defs/(\w+)", str(entry.get("oneOf", entry.get("$ref"))))
        ]
        if not below:
            yield path + key, entry
        for each in below:
            named = each["properties"].get("kind", {})
            kind = ", ".join(named.get("enum", [])) or named.get("const")
            yield from _entries(schema, each, f"{path}{key}." if kind is None else f"{path}{key}({kind}).")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("``", "`").replace("\n", " ")


def _yaml(value: Any) -> str:
    """Return a default as YAML; a kernel without its keys that are null."""
    if isinstance(value, list):
        value = [{key: one for key, one in each.items() if one is not None} for each in value]
    return value if isinstance(value, str) else json.dumps(value)


def solvers() -> str:
    """Return which solver takes which trait of rows and parameters."""
    names = list(SOLVERS)
    refused = [trait for trait in TRAITS if any(trait in solver.refuses for solver in SOLVERS.values())]
    lines = [f"| | {' | '.join(f'`{name}`' for name in names)} |", f"|---|{'---|' * len(names)}"]
    for trait in refused:
        cells = ("" if trait in SOLVERS[name].refuses else "yes" for name in names)
        lines.append(f"| {_trait(trait)} | {' | '.join(cells)} |")
    lines.append(f"| rows can be added later | {' | '.join('yes' if name in CONTINUABLE else '' for name in names)} |")
    return "\n".join(lines)


def pairs(tables: dict[str, Table]) -> Callable[[], str]:
    """Return what makes the table of what does not go together."""

    def table() -> str:
        lines = ["| | not together with | instead |", "|---|---|---|"]
        for name, refused in tables.items():
            by_cure: dict[str, list[str]] = {}
            for trait, instead in refused.items():
                by_cure.setdefault(instead, []).append(_trait(trait))
            lines += [f"| {_trait(name)} | {', '.join(traits)} | {_cell(cure)} |" for cure, traits in by_cure.items()]
        return "\n".join(lines)

    return table


def _trait(name: str) -> str:
    """Return a trait for a table, as code where it is what a user writes."""
    return f"`{name}`" if "=" in name or "_" in name or name in ("forgetting", "remove") else name


def purposes() -> str:
    """Return the table of what memory is for."""
    lines = ["| `plan.memory` | content |", "|---|---|"]
    return "\n".join([*lines, *(f"| `{name}` | {_cell(PURPOSES[name])} |" for name in get_args(Purpose))])


def formulas() -> str:
    """Return the formulas of what fits need and of what solvers share, as their docstrings state them."""
    sections: dict[str, tuple[Callable[..., Any], ...]] = {
        "All solvers": (buffer_bytes, reading_needs, eigenproblem_bytes, model_need, scores_bytes),
        "`covariance`": (CovarianceSolver.needs,),
        "`covariance` with the matrix on disk": (OnDisk.needs,),
        "`gram`": (GramSolver.needs,),
    }
    others: dict[str, tuple[Callable[..., Any], ...]] = {
        "`sketch` and `adaptive`": (ApproximateSolver.needs,),
        "`sketch` by features": (SketchOfSamples.needs,),
    }
    listed = {function for functions in (sections | others).values() for function in functions}
    # Solvers whose formulas are one docstring need no entry here.
    alone = [each for each in _below(Work) if getattr(each, "name", "") in SOLVERS and each.needs not in listed]
    sections |= {f"`{each.name}`": (each.needs,) for each in alone} | others
    lines = []
    for title, functions in sections.items():
        lines += ["", f"### {title}", ""]
        lines += [("- " if len(functions) > 1 else "") + _formula(function) for function in functions]
    return "\n".join(lines).strip()


def _formula(function: Callable[..., Any]) -> str:
    """Return the docstring of a formula as a note, such as "Components: 8 k d.", without what names parts of the code."""
    text = " ".join((inspect.getdoc(function) or "").split())
    text = re.sub(r"(?<=\.) [^.]*`[^.]*\.", "", re.sub(r" \(`\w+`\)", "", text))
    text = re.sub(r"^Return (?:what )?(?:a fit takes\. )?", "", text)
    text = re.sub(r" takes?(?: beside it)?(?=[.,:;])", "", text, count=1)
    return text[:1].upper() + text[1:] if re.match(r"(?:a|[a-z]{2,})\b", text) else text


def _below(kind: type) -> Iterator[Any]:
    """Yield all classes that derive from `kind`."""
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def written(page: Path) -> str:
    """Return the text of a page with its tables made anew between their marks."""
    text = page.read_text(encoding="utf-8")
    for name, table in PAGES[page].items():
        mark = re.compile(rf"(<!-- {name}: by scripts/reference.py -->\n).*?(\n<!-- end -->)", re.DOTALL)
        text, found = mark.subn(lambda match, table=table: f"{match[1]}{table()}{match[2]}", text)  # type: ignore[misc]
        if found != 1:
            raise SystemExit(f"{page}: expected the marks of the table {name} once, found them {found} times")
    return text


PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    REFERENCE / "parameters.md": {
        "PCA": lambda: table_of(PCA_PARAMETERS),
        "KernelPCA": lambda: table_of(KERNEL_PCA_PARAMETERS, PCA_PARAMETERS),
        "MCA and CCA": lambda: table_of(COUPLED_PARAMETERS, PCA_PARAMETERS),
        "FactorAnalysis": lambda: table_of(FACTOR_PARAMETERS, PCA_PARAMETERS),
    },
    REFERENCE / "configuration.md": {"keys": keys},
    REFERENCE / "memory-formulas.md": {"purposes": purposes, "formulas": formulas},
    REFERENCE / "combinations.md": {"solvers": solvers, "conflicts": pairs(CONFLICTS), "ways": pairs(WAYS)},
}
"""Tables of each page."""


def main() -> None:
    """Write the pages, or tell whether they are up to date."""
    parser = argparse.ArgumentParser(prog="scripts/reference", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page is not up to date")
    check = parser.parse_args().check
    schema = json.dumps(json_schema(), indent=2) + "\n"
    for page, after in {SCHEMA: schema, **{page: written(page) for page in PAGES}}.items():
        if not check:
            page.write_text(after, encoding="utf-8")
        elif page.read_text(encoding="utf-8") != after:
            raise SystemExit(f"{page.name} is not up to date: run scripts/reference.py")


if __name__ == "__main__":
    main()
