from __future__ import annotations

from importlib import metadata

import pytest

from streampca import __version__
from streampca.system.versions import versions


def test_source_tree_that_is_not_installed_has_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "streampca":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", version)
    assert versions()["streampca"] == __version__
    assert versions()["numpy"] == installed("numpy")
