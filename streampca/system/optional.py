"""Optional packages."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from streampca.errors import NotAvailableError
from streampca.version import install_command

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
    return NotAvailableError(f"{purpose} needs {name}, which is not installed: {install_command(extra)}")


def is_installed(package: str) -> bool:
    """Return whether `package` can be imported; does not import it."""
    if package in sys.modules:
        return sys.modules[package] is not None
    return find_spec(package) is not None
