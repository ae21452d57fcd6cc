"""Versions that a manifest states."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from unittest.mock import patch

import numpy as np
from facade import versions_read_again

import streampca as sp


def test_source_tree_that_is_not_installed_has_versions(tmp_path: Path) -> None:
    installed = metadata.version

    def version(name: str) -> str:
        if name == "streampca":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((20, 3)))
    output = {"directory": str(tmp_path / "run"), "report": False, "scores": False}
    with versions_read_again(), patch("importlib.metadata.version", version):
        run = sp.run({"source": {"path": str(tmp_path / "x.npy")}, "model": {"n_components": 1}, "output": output})
    assert run.manifest["versions"]["streampca"] == sp.__version__
    assert run.manifest["versions"]["numpy"] == installed("numpy")
