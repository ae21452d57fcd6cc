"""The templates of pages: one frame, and headings, charts and tables that all pages have."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment


@cache
def environment() -> Environment:
    """Return the templates beside this module; texts are escaped, and a name that is not given is an error."""
    import jinja2

    return jinja2.Environment(
        loader=jinja2.PackageLoader("streampca.runs", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def helpers() -> dict[str, object]:
    """Return what the templates of one page call: names of headings, each given once."""
    return {"named": Names()}


class Names:
    """Names for anchors that follow from titles, each given once."""

    def __init__(self) -> None:
        self._given: dict[str, int] = {}

    def __call__(self, title: str) -> str:
        """Return a name for `title`, with a number where an earlier title had the same."""
        name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60].strip("-") or "figure"
        self._given[name] = count = self._given.get(name, 0) + 1
        return f"at-{name}" if count == 1 else f"at-{name}-{count}"
