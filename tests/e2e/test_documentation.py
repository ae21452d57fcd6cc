"""The examples of pages of the documentation print what the pages say."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from stores import REPOSITORY

import scripts

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [
        "how-to/labelled-data.md",
        "how-to/files-of-rows.md",
        "how-to/anndata.md",
        "how-to/many-models.md",
        "how-to/export.md",
        "how-to/rotation.md",
        "how-to/growing-stores.md",
    ],
)
def test_examples_print_what_the_page_says(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the calls of scripts and the Python of a page from top to bottom, and compare their output with the block below."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    printed = None
    for language, text in _BLOCK.findall((REPOSITORY / "docs" / page).read_text()):
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(text, page, "exec"), names)
            printed = output.getvalue()
        elif language == "" and printed is not None:
            assert printed == text
            printed = None
        for line in text.splitlines() if language == "" else ():
            if line.startswith(".venv/bin/python scripts/"):
                path, *arguments = shlex.split(line, comments=True)[1:]
                assert scripts.run(REPOSITORY / path, *arguments).status == 0
