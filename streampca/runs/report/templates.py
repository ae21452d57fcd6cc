"""The templates of pages: one frame, and headings, charts and tables that all pages have."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from streampca.storage.files import write_atomically
from streampca.typing import Json

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def _environment() -> Environment:
    """Return the templates beside this module; texts are escaped, and a name that is not given is empty."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("streampca.runs", "report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )


def write_page(directory: Path, template: str, page: Json) -> Path:
    """Write ``report.html`` in `directory` from a template and what it shows, whole or not at all; return its path."""
    html = _environment().get_template(template).render(page=page, named=_Names())
    target = directory / "report.html"
    write_atomically(target, [html.encode("utf-8")])
    return target


class _Names:
    """Names for anchors that follow from titles, each given once."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def __call__(self, title: str) -> str:
        """Return a name for `title`, with a number where an earlier title had the same."""
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "figure"
        self._given[name] = count = self._given.get(name, 0) + 1
        return f"at-{name}" if count == 1 else f"at-{name}-{count}"
