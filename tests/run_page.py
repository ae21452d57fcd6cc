"""Runs the blocks of code of a page from top to bottom; only the standard library is needed, so that any environment can."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BLOCK = re.compile(r"^(<!-- not run: .* -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MEASURED = re.compile(r"[\d.]+ s;|[\d.]+ [KMG]iB[,;)]?|[\d.]+ [KMG]iB$")
"""Seconds and sizes of memory in the closing lines of a run."""
_COMMANDS = (".venv/bin/", "scripts/")
_LEFT_OUT = ("scripts/test",)  # which is what runs this


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return language and text of the blocks of code that are to be run."""
    return [(language, text) for left_out, language, text in _BLOCK.findall(page.read_text()) if not left_out]


def run_page(page: Path, command: Callable[[list[str]], str]) -> None:
    """Run the Python, the commands and the configurations of `page`; compare what is printed with the block below.

    `command` runs the words of a line of shell and returns what it prints.
    """
    names: dict[str, Any] = {}
    printed = None
    for language, text in blocks(page):
        lines = [shlex.split(line, comments=True) for line in text.splitlines()] if text.startswith(_COMMANDS) else []
        if language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile(text, page.name, "exec"), names)
            printed = output.getvalue()
        elif language == "yaml" and text.startswith("# "):
            Path(text.splitlines()[0].removeprefix("# ")).write_text(text)
        elif language == "" and lines:
            printed = "".join(command(words) for words in lines if words[0] not in _LEFT_OUT) or None
        elif language == "" and printed is not None:
            assert _told(printed) == _told(text), f"printed:\n{printed}\nthe page says:\n{text}"
            printed = None


def _told(text: str) -> str:
    """Return `text` without what differs from run to run, and without its line breaks."""
    return " ".join(_MEASURED.sub("…", text).split())


def _run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr}"
    return done.stdout


if __name__ == "__main__":
    run_page(Path(sys.argv[1]), _run)
