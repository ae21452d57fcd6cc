"""Packages that are not always installed."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from types import ModuleType

from streampca.errors import NotAvailableError

_DISTRIBUTIONS = {
    "PIL": "pillow",
    "dask_jobqueue": "dask-jobqueue",
    "sklearn": "scikit-learn",
}


def package_of(data: object) -> str:
    """Return the name of the package that has the class of `data`; nothing is imported.

    It is compared in place of names of modules, which packages change: AnnData is in ``anndata._core.anndata``, later in ``anndata``.
    """
    return type(data).__module__.partition(".")[0]


def optional_module(name: str, purpose: str, extra: str) -> ModuleType:
    """Return the module `name`; `NotAvailableError` with what needs it and the extra that installs it if it cannot be imported."""
    package = name.partition(".")[0]
    try:
        import_module(package)
        return import_module(name)
    except ImportError as error:
        raise not_installed(package, purpose, extra) from error


def not_installed(package: str, purpose: str, extra: str) -> NotAvailableError:
    """Return the error that names what needs `package`, and how the extra of this package that has it is installed."""
    name = _DISTRIBUTIONS.get(package, package)
    return NotAvailableError(f"{purpose} needs {name}, which is not installed: {installing(extra)}")


def installing(extra: str) -> str:
    """Return the command that installs what `extra` has, which is the same for a clone, a wheel and an index."""
    wanted = _requirements(extra)
    named = " ".join(f'"{requirement}"' for requirement in wanted)
    return f"pip install {named} (the extra [{extra}])" if wanted else f'pip install "streampca[{extra}]"'


def _requirements(extra: str) -> list[str]:
    """Return the requirements of an extra by the metadata of the installed package, those of extras within it included."""
    try:
        entries = requires("streampca") or []
    except PackageNotFoundError:
        return []
    wanted = []
    for entry in entries:
        requirement, _, marker = (part.strip() for part in entry.partition(";"))
        if marker.replace("'", '"') != f'extra == "{extra}"':
            continue
        within = re.fullmatch(r"streampca\[(.+)\]", requirement)
        wanted += [each for name in within[1].split(",") for each in _requirements(name)] if within else [requirement]
    return wanted


def is_installed(package: str) -> bool:
    """Return whether `package` can be imported; does not import it."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None
