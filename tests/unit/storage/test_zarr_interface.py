"""Internal modules of zarr, whose names change between its versions, are imported in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import streampca

PACKAGE = Path(streampca.__file__).parent


def test_no_other_module_imports_internal_modules_of_zarr() -> None:
    internal = [
        f"{path.relative_to(PACKAGE)} imports {node.module}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "zarr_interface.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and node.module is not None
        and node.module.startswith(("zarr.core", "zarr._"))
    ]
    assert internal == []
