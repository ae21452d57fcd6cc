"""The page that follows one fit names the functions that it passes."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from stores import write_store

import streampca as sp

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "architecture.md"
PACKAGE = str(Path(sp.__file__).parent)
MOST = 12
MOST_MODULES, MOST_CLIMBS = 52, 33


def of_package(frame: FrameType) -> bool:
    """Return whether a function of the package runs, other than those that check the keywords of public functions before them."""
    file = frame.f_code.co_filename
    return file.startswith(PACKAGE) and not file.endswith("suggestions.py")


def stack(frame: FrameType | None) -> Iterator[str]:
    """Yield the functions of the package that wait for `frame`, itself first."""
    while frame is not None:
        if of_package(frame):
            yield frame.f_code.co_qualname
        frame = frame.f_back


def test_a_fit_passes_at_most_twelve_functions_before_it_multiplies_and_the_page_names_them(
    tmp_path: Path,
) -> None:
    passed: dict[str, list[str]] = {}

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_qualname in ("_on_threads", "Covariance.add_scatter"):
            passed.setdefault(frame.f_code.co_qualname, list(stack(frame))[::-1])

    rows = np.random.default_rng(0).normal(size=(2000, 100)).astype(np.float32)
    store = write_store(tmp_path / "rows.zarr", rows, chunks=(500, 100))
    before = sys.getprofile()
    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        sp.PCA(3, solver="covariance").fit(store)
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    functions = passed["_on_threads"] + passed["Covariance.add_scatter"]
    table = PAGE.read_text(encoding="utf-8").split("## A solver is a generator")[0]
    assert functions == re.findall(r"^\| \d+ \| `([\w.]+)`", table, re.MULTILINE)
    assert len(functions) <= MOST


def test_the_way_from_fit_to_the_first_block_enters_few_modules_and_seldom_climbs_back() -> None:
    """A climb is a pair of modules of which the first calls the second, which the fit had entered before it."""
    calls: list[tuple[str, str]] = []
    arrived = False

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal arrived
        if event != "call" or arrived or not of_package(frame):
            return
        caller = frame.f_back
        while caller is not None and not of_package(caller):
            caller = caller.f_back
        calls.append(("" if caller is None else caller.f_code.co_filename, frame.f_code.co_filename))
        arrived = frame.f_code.co_qualname == "drive"

    rows = np.random.default_rng(0).normal(size=(500, 20))
    sp.PCA(4).fit(rows)  # what is imported or made once is not counted
    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        sp.PCA(4).fit(rows)
    finally:
        sys.setprofile(before)
    entered = {module: number for number, module in reversed([*enumerate(called for _, called in calls)])}
    climbs = {pair for pair in calls if pair[0] and entered[pair[1]] < entered[pair[0]]}
    assert arrived
    assert len(entered) <= MOST_MODULES
    assert len(climbs) <= MOST_CLIMBS
