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

from streampca.accumulators.quality import Quality
from streampca.models.kernel import KernelModel
from streampca.models.pca import PCAModel
from streampca.parameters import (
    COUPLED_PARAMETERS,
    FACTOR_PARAMETERS,
    KERNEL_PCA_PARAMETERS,
    PCA_PARAMETERS,
    Parameter,
)
from streampca.planning import scores
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
from streampca.solvers import gram
from streampca.solvers.approximate import ApproximateSolver
from streampca.solvers.capabilities import CONFLICTS, TRAITS, WAYS, Table
from streampca.solvers.choosing import CONTINUABLE, SOLVERS
from streampca.solvers.covariance import CovarianceSolver, OnDisk
from streampca.solvers.kernel.empirical_map import EmpiricalMapMethod
from streampca.solvers.kernel.exact import ExactMethod, PairsMethod
from streampca.solvers.kernel.landmarks import LandmarkMethod
from streampca.solvers.removing import Removing

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "docs" / "reference"
SCHEMA = ROOT / "configs" / "streampca.schema.json"


def table_of(parameters: tuple[Parameter, ...], known: tuple[Parameter, ...] = ()) -> str:
    """Return the table of the parameters of an estimator, with one line for those that another table has in the same words."""
    rows = {parameter.name: _row(parameter) for parameter in parameters}
    there = {_row(parameter) for parameter in known}
    lines = ["| parameter | default | values | in a file | meaning |", "|---|---|---|---|---|"]
    lines += [row for row in rows.values() if row not in there]
    same = [f"`{name}`" for name, row in rows.items() if row in there]
    return "\n".join([*lines, "", f"As for `PCA`: {', '.join(same)}."] if same else lines)


def _row(parameter: Parameter) -> str:
    key = f"`{parameter.path}`" if parameter.path else ""
    values, text = _cell(parameter.domain.values), _cell(parameter.text)
    return f"| `{parameter.name}` | `{parameter.default!r}` | {values} | {key} | {text} |"


def keys() -> str:
    """Return the tables of the keys of a configuration file, one for each section."""
    schema = json_schema()
    sections: dict[str, list[str]] = {}
    for path, entry in _entries(schema, schema, ""):
        default = f"`{_yaml(entry['default'])}`" if "default" in entry else ""
        section, _, key = path.rpartition(".")
        sections.setdefault(section, []).append(f"| `{key}` | {default} | {_cell(entry.get('description', ''))} |")
    return "\n\n".join("\n".join([_heading(name), "", *_HEAD, *rows]) for name, rows in sections.items())


_HEAD = ["| key | default | meaning |", "|---|---|---|"]


def _heading(section: str) -> str:
    """Return the heading of a section such as `model(pca)`, a kind of the section `model`."""
    name, _, kind = section.partition("(")
    if not name:
        return "### At the top of the file"
    return f"### `{name}`" + (f", `kind: {kind.rstrip(')')}`" if kind else "")


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
    """Return the formulas of what each solver needs, and of what solvers share, as their docstrings state them."""
    sections: dict[str, tuple[Callable[..., Any], ...]] = {
        "All solvers": (Work.budget, buffer_bytes, reading_needs, eigenproblem_bytes, model_need, scores_bytes),
        "`covariance`": (CovarianceSolver.needs,),
        "`covariance` with the matrix on disk": (OnDisk.needs,),
        "`gram`": (gram.GramSolver.needs, gram.components_bytes),
    }
    others: dict[str, tuple[Callable[..., Any], ...]] = {
        "`sketch` and `adaptive`": (ApproximateSolver.needs,),
        "Kernel PCA by landmarks": (LandmarkMethod.needs, LandmarkMethod.scratch_bytes),
        "Kernel PCA by pairs of rows": (
            PairsMethod.needs,
            ExactMethod.sizes,
            EmpiricalMapMethod.sizes,
            EmpiricalMapMethod.needs,
        ),
        "What comes along with any solver": (
            Removing.needs,
            Quality.state_bytes,
        ),
        "Scores only": (scores.ByFeatures.needs, PCAModel.encoding_bytes, KernelModel.encoding_bytes),
    }
    listed = {function for functions in (sections | others).values() for function in functions}
    # Solvers whose formulas are one docstring need no entry here.
    alone = [each for each in _below(Work) if getattr(each, "name", "") in SOLVERS and each.needs not in listed]
    sections |= {f"`{each.name}`": (each.needs,) for each in alone} | others
    lines = []
    for title, functions in sections.items():
        lines += ["", f"### {title}", ""]
        for function in functions:
            text = " ".join((inspect.getdoc(function) or "").split())
            lines.append(f"- `{function.__qualname__}`: {text.removeprefix('Return ')}")
    return "\n".join(lines).strip()


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
