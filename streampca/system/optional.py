"""Packages that are not always installed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from streampca.errors import NotAvailableError


def optional_module(name: str, purpose: str, extra: str) -> ModuleType:
    """Return the module `name`; `NotAvailableError` with what needs it and the extra that installs it if it cannot be imported."""
    package = name.partition(".")[0]
    try:
        import_module(package)
        return import_module(name)
    except ImportError as error:
        raise NotAvailableError(
            f'{purpose} needs {package}, which is not installed: pip install "streampca[{extra}]"'
        ) from error
