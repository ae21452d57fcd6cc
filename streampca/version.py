"""The version of the package, and the command that installs optional packages."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"


def install_command(extra: str) -> str:
    """Return the command of pip that installs an extra: by the name of the package, or by the path of a clone that is not installed."""
    from importlib.metadata import (  # here, because it takes as long as the whole module
        PackageNotFoundError,
        distribution,
    )

    try:
        distribution("streampca")
    except PackageNotFoundError:
        return f'pip install "{Path(__file__).resolve().parents[1]}[{extra}]"'
    return f'pip install "streampca[{extra}]"'
