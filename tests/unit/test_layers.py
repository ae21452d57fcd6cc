"""The order of imports: only from lower layers, in no circle, and internal modules of libraries from one module each."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = (
    "__main__",
    "cli",
    "runs",
    "anndata",
    "estimators",
    "export plotting",
    "solvers",
    "execution",
    "planning",
    "models",
    "parameters states",
    "accumulators sources",
    "linalg kernels transforms",
    "storage",
    "system metrics formatting conversion",
    "regressors",
    "labels",
    "calendars",
    "block counts random errors logs",
    "redaction suggestions typing version",
)
"""From the top to the bottom; packages of one line do not import each other."""
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names.split()}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "streampca").rglob("*.py")
}


@cache
def parsed(path: Path) -> ast.Module:
    """Return the tree of a file."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a file that import something."""
    return tuple(node for node in ast.walk(parsed(path)) if isinstance(node, ast.Import | ast.ImportFrom))


def imported(module: str) -> Iterator[str]:
    """Yield the modules of the package that `module` imports anywhere: in functions and for type checking, too."""
    for node in nodes(MODULES[module]):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # A module taken from a package needs the package itself, too.
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name and name != module:
                yield name


def package_of(module: str) -> str:
    """Return the first name below ``streampca``, or ``""`` for the package itself."""
    return module.partition(".")[2].partition(".")[0]


@pytest.mark.lint
@pytest.mark.slow
def test_every_import_leads_to_a_lower_layer() -> None:
    against = [
        f"{module} imports {other}"
        for module in sorted(MODULES)
        if (package := package_of(module))
        for other in imported(module)
        if package != package_of(other) and RANKS[package] >= RANKS[package_of(other)]
    ]
    assert against == []


def test_every_package_has_a_layer() -> None:
    assert {package_of(module) for module in MODULES} - {""} == set(RANKS)


@pytest.mark.lint
@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: set(imported(module)) for module in MODULES if module != "streampca"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" → ".join(error.args[1])) from None


@pytest.mark.lint
@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "public", "allowed"),
    [
        ("distributed", {"distributed", "distributed.security"}, ""),
        (
            "zarr",
            {"zarr", "zarr.abc", "zarr.abc.codec", "zarr.abc.store", "zarr.codecs", "zarr.storage"},
            "streampca.storage.zarr_interface",
        ),
    ],
)
def test_internal_modules_of_a_library_are_imported_by_one_module(library: str, public: set[str], allowed: str) -> None:
    internal = [
        f"{module} imports {node.module}"
        for module, path in MODULES.items()
        if module != allowed
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module is not None
        if node.module.split(".")[0] == library and node.module not in public
    ]
    assert internal == []


def test_checking_a_configuration_does_not_wait_for_the_optimisers_of_scipy() -> None:
    code = "import sys, streampca.cli, streampca.runs.run; print('scipy.optimize' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.slow
def test_importing_an_estimator_imports_no_library_that_only_stores_and_clusters_need() -> None:
    unwanted = {"zarr", "distributed", "fsspec", "yaml", "onnx", "faiss", "xarray", "sklearn", "pandas", "asyncio"}
    code = f"import sys, streampca; streampca.PCA; print({unwanted} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"


def test_fits_and_scores_of_arrays_import_no_scikit_learn() -> None:
    code = "import sys, numpy, streampca as sp; sp.PCA(2).fit_transform(numpy.eye(5)); print('sklearn' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "False\n"


DOORS = {
    "streampca",
    "streampca.accumulators",
    "streampca.anndata",
    "streampca.errors",
    "streampca.kernels",
    "streampca.metrics",
    "streampca.sources",
    "streampca.states",
    "streampca.transforms",
}
"""Modules whose names tests may use; all others stand in `tests/facade.py`."""
MOST_INNER_NAMES = 60
"""Names of other modules that tests may import outside of the facade, all together."""
MOST_PATCHES = 20
"""Places at which tests may replace attributes of the package, all together."""
_PATCHING = {"setattr", "setitem", "delattr", "delitem", "object", "dict"}


def inner_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names of inner modules that a test imports, whole modules among them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module not in DOORS:
            if node.module.partition(".")[0] == "streampca":
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module in DOORS - {"streampca"}:
            yield from (
                name for alias in node.names if (name := f"{node.module}.{alias.name}") in MODULES and name not in DOORS
            )
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("streampca.") and a.name not in DOORS)


def patches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of what replaces an attribute of the package; those of other libraries are not counted."""
    others = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if "streampca" not in (getattr(node, "module", None) or alias.name)
    }
    others |= {
        name.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and any(getattr(inner, "attr", "") == "importorskip" for inner in ast.walk(node.value))
        for name in ast.walk(node.targets[0])
        if isinstance(name, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _PATCHING:
            text = ast.unparse(node)
            target = ast.unparse(node.args[0]).strip("'").partition(".")[0] if node.args else ""
            if text.startswith(("monkeypatch.", "patch.", "mock.patch.")) and target not in others:
                yield node.lineno, text
        elif (
            isinstance(node, ast.Call)
            and "patch" in (getattr(node.func, "id", ""), getattr(node.func, "attr", ""))
            and ast.unparse(node.func) in ("patch", "mock.patch")
            and ast.unparse(node).partition("(")[2].startswith("'streampca")
        ):
            yield node.lineno, ast.unparse(node)


@pytest.mark.lint
@pytest.mark.slow
def test_tests_name_few_inner_things() -> None:
    """A wall inside the package may then move without thousands of edits: what tests need is behind `tests/facade.py`."""
    users: dict[str, list[str]] = {}
    patched = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        file = path.relative_to(ROOT).as_posix()
        if file == "tests/facade.py":
            continue
        tree = ast.parse(path.read_text())
        for name in inner_names(tree):
            users.setdefault(name, []).append(file)
        patched += [f"{file}:{line}: {text[:100]}" for line, text in patches(tree)]
    listed = "\n".join(f"{name}: {', '.join(sorted(set(files)))}" for name, files in sorted(users.items()))
    assert len(users) <= MOST_INNER_NAMES, f"tests import {len(users)} inner names:\n{listed}"
    places = "\n".join(patched)
    assert len(patched) <= MOST_PATCHES, f"tests replace attributes at {len(patched)} places:\n{places}"
