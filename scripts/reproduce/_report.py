"""Tables, figures and pictures of the scripts in this directory, and the command line that they share."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits


@dataclass
class Report:
    """What a part has to tell."""

    figures: dict[str, Any] = field(default_factory=dict)
    """Everything measured, as plain numbers."""
    tables: list[str] = field(default_factory=list)
    """Tables in Markdown, each with its heading."""

    def table(self, title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table."""
        lines = [f"### {title}", "", f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        self.tables.append("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]))


Part = Callable[[bool, Path | None], Report]
"""From whether to be quick and a directory for pictures, or None, to what was measured."""


def note(text: str) -> None:
    """Tell on stderr how far it is."""
    print(text, file=sys.stderr, flush=True)


def brief(value: float) -> str:
    """Return a number of either sign in at most eight characters, two digits of it."""
    if value == 0:
        return "0"
    return f"{value:.2f}" if 0.1 <= abs(value) < 100 else f"{value:.1e}"


@contextmanager
def drawing(
    path: Path, n_panels: int = 1, *, n_rows: int = 1, width: float = 6.4, height: float = 4.4
) -> Iterator[list[Any]]:
    """Give the axes of `n_panels` panels, row by row; write the picture to `path` afterwards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size = {"figsize": (width, height), "layout": "constrained"}
    figure, panels = pyplot.subplots(n_rows, -(-n_panels // n_rows), squeeze=False, **size)
    yield list(panels.ravel())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    _with_a_palette(path)


def _with_a_palette(path: Path) -> None:
    """Write a picture again with 128 colours, which takes a third of the bytes."""
    from PIL import Image

    with Image.open(path) as image:
        narrow = image.convert("RGB").quantize(128, dither=Image.Dither.NONE)
    narrow.save(path, optimize=True)


def machine() -> dict[str, Any]:
    """Return date, kind of machine and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
    packages = ("streampca", "numpy", "scipy", "scikit-learn")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": model,
        "cores": cores,
        "python": platform.python_version(),
        "versions": {package: version(package) for package in packages},
    }


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- begin: {name} -->", f"<!-- end: {name} -->"


def require_marks(page: Path, names: Iterable[str]) -> None:
    """Stop unless `page` has the lines between which the tables of these parts go, once each."""
    text = page.read_text() if page.exists() else ""
    for mark in (mark for name in names for mark in _marks(name)):
        if text.count(mark) != 1:
            raise SystemExit(f"{page}: found {text.count(mark)} lines {mark}, expected one")


def write_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace what stands in `page` between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->`` for every name."""
    text = page.read_text()
    for name, table in tables.items():
        before, after = _marks(name)
        head, rest = text.split(before)
        text = f"{head}{before}\n\n{table}\n\n{after}{rest.split(after)[1]}"
    page.write_text(text)


def main(parts: Mapping[str, Part], description: str | None) -> None:
    """Run the parts that the command line asks for; print their tables and write what it names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(parts)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="few sizes and seeds: seconds, and rough figures")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--pictures", type=Path, help="directory for pictures")
    parser.add_argument("--update", type=Path, metavar="PAGE", help="page to write the tables into, between its marks")
    options = parser.parse_args()
    if options.parts == ["all"]:
        options.parts = list(parts)
    unknown = sorted(set(options.parts) - set(parts))
    if unknown:
        parser.error(f"unknown part {unknown[0]}: expected any of {', '.join(parts)}")
    if options.update is not None:
        require_marks(options.update, options.parts or parts)
    figures: dict[str, Any] = {}
    tables: dict[str, str] = {}
    with threadpool_limits(limits=1):
        for name in options.parts or parts:
            began = time.perf_counter()
            report = parts[name](options.quick, options.pictures)
            seconds = round(time.perf_counter() - began, 1)
            note(f"{name}: {seconds} s")
            figures[name] = report.figures | {"machine": machine() | {"seconds": seconds}}
            tables[name] = "\n\n".join(report.tables)
            print(tables[name], end="\n\n", flush=True)
    if options.json is not None:
        _write_figures(options.json, figures)
    if options.update is not None:
        write_tables(options.update, tables)


def _write_figures(path: Path, figures: Mapping[str, Any]) -> None:
    """Write figures, beside those of other parts that are there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | dict(figures), indent=1) + "\n")
