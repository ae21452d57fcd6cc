"""The templates of pages: one frame, and headings, charts and tables that all pages have."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from streampca.runs.report.downloads import Names, csv_address, svg_address

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
    """Return what the templates of one page call: names of headings, each once, and addresses of the files that links save."""
    return {"named": Names(), "svg_address": svg_address, "csv_address": csv_address}
