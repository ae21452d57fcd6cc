"""Code of the documentation: examples of pages and docstrings run and print what stands below them; configurations are valid."""

from __future__ import annotations

import doctest
import multiprocessing
import re
import tomllib
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml
import zarr
from facade import cli, run_command
from run_page import blocks, run_page
from stores import REPOSITORY

import scripts
import streampca

_LINK = re.compile(r"\]\(([^()\s]+)\)")
_FENCED = re.compile(r"^(`{3,}).*?^\1$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,4} +(.+?)$", re.MULTILINE)  # as deep as `myst_heading_anchors` in docs/conf.py
_LABEL = re.compile(r"^\(([\w-]+)\)=$", re.MULTILINE)
_PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("[!_a]*/**/*.md"))]


def _run_script(words: list[str]) -> str:
    """Run a script of the repository that a page calls, in this process; other commands of pages are not run."""
    if words[0] == ".venv/bin/python":
        done = scripts.run(REPOSITORY / words[1], *words[2:])
        assert done.status == 0, (words, done.stderr)
    return ""


@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize(
    "page",
    [page for page in _PAGES[1:] if any(language == "python" for language, _ in blocks(page))],
    ids=lambda page: page.stem,
)
def test_examples_print_what_the_page_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page in a process of its own, because ceilings on pages count what the process takes."""
    monkeypatch.chdir(tmp_path)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(run_page, page, _run_script).result()


def _stand_in(source: dict[str, Any]) -> str:
    """Write a small store of what `source` names in the working directory, with files of weights, and return its path; none for others."""
    path, dims = str(source["path"]), ("time", "lat", "lon")
    if path.startswith("builtin:") or "://" in path or not path.endswith(".zarr"):
        return path if path.startswith("builtin:") else ""
    group, shape = zarr.open_group(path, mode="w", zarr_format=3), (120, 6, 10)
    if not ({"samples", "variables"} & source.keys()):
        zarr.create_array(path, data=np.ones((120, 60)), overwrite=True)
        return path
    for name in source.get("variables", [source.get("array", "x")]):
        group.create_array(name, data=np.ones(shape), dimension_names=dims)
    for name, length in zip(dims, shape, strict=True):
        units = "days since 2000-01-01" if name == "time" else "degrees"
        group.create_array(name, data=10.0 * np.arange(length), dimension_names=(name,), attributes={"units": units})
    np.save("land.npy", np.ones(shape[1:], dtype=bool))
    np.save("indices.npy", np.ones((shape[0], 2)) * np.arange(shape[0])[:, None] ** [2, 3])
    return path


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_configurations_on_pages_are_valid(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block of YAML is a configuration that can be planned, without its source where the page is about other sections."""
    monkeypatch.chdir(tmp_path)
    for text in [text for language, text in blocks(page) if language == "yaml"]:
        whole = (
            text if re.search("^source:", text, re.MULTILINE) else f"source: {{path: x.zarr, samples: time}}\n{text}"
        )
        Path("page.yaml").write_text(re.sub(r"\$\{\w+\}", "secret", whole))
        assert run_command("check", "page.yaml") == 0, text
        if _stand_in(yaml.safe_load(whole)["source"]):
            assert run_command("plan", "page.yaml", "--set", "resources.memory=8GiB") == 0, (
                text
            )  # of a process with all tests


def _links(page: Path) -> list[str]:
    """Return the links and pictures of a page, but for those of other sites and of the gallery, which is made when the site is built."""
    links = _LINK.findall(_FENCED.sub("", page.read_text()))
    return [link for link in links if not re.match(r"\w+:|(\.\./)*auto_gallery/", link)]


def _anchors(text: str) -> set[str]:
    """Return what a link may name after ``#`` in a page: explicit labels, and headings by the rule of MyST and GitHub.

    That is the text of the heading without markup in lower case, hyphens for spaces, without other punctuation; a number follows
    from the second heading of the same text on.
    """
    text = _FENCED.sub("", text)
    anchors, seen = set(_LABEL.findall(text)), Counter[str]()
    for heading in _HEADING.findall(text):
        title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip()
        slug = re.sub(r"[^\w\- ]", "", title.lower().replace(" ", "-"))
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


_ALL_PAGES = pytest.mark.parametrize("page", [*_PAGES, *(REPOSITORY / "docs").glob("*.md")], ids=lambda page: page.stem)


@_ALL_PAGES
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in _links(page) if not link.startswith("#")]
    assert [link for link in links if not (page.parent / link).exists()] == []


@_ALL_PAGES
def test_links_to_sections_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _links(page):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if anchor and target.suffix == ".md" and anchor not in _anchors(target.read_text()):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize(
    ("text", "anchors"),
    [
        ("# The `qr` solver: why?\n\n## A\n\n## A\n", {"the-qr-solver-why", "a", "a-1"}),
        ("(here)=\n## A [link](b.md), *n* × d\n", {"here", "a-link-n--d"}),
        ("```\n# no heading\n```\n##### too deep\n", set()),
    ],
)
def test_anchors_follow_the_rule_of_myst(text: str, anchors: set[str]) -> None:
    assert _anchors(text) == anchors


def _modules() -> list[ModuleType]:
    return [getattr(streampca, name) for name in streampca._MODULES]


def _examples() -> list[doctest.DocTest]:
    """Return the examples in docstrings of public names and of their public methods."""
    finder = doctest.DocTestFinder(recurse=True)
    objects = [getattr(module, name) for module in [streampca, *_modules()] for name in module.__all__]
    found = [
        test
        for each in {id(each): each for each in objects if callable(each)}.values()
        for test in finder.find(each, getattr(each, "__name__", "name"), module=False)  # type: ignore[arg-type]
        if test.examples
    ]
    return sorted({test.name: test for test in found}.values(), key=lambda test: test.name)


@pytest.mark.parametrize("example", _examples(), ids=lambda example: example.name)
def test_examples_in_docstrings(
    example: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    example.globs = {}
    failed, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS).run(example)
    assert failed == 0, capsys.readouterr().out


def test_configurations_and_commands_are_named_on_the_pages_that_list_them() -> None:
    listed = (REPOSITORY / "docs/reference/configuration.md").read_text()
    assert [path.name for path in (REPOSITORY / "configs").glob("*.yaml") if f"`{path.name}`" not in listed] == []
    features = (REPOSITORY / "docs/reference/features.md").read_text()
    assert [name for name in cli.commands if f"`{name}`" not in features] == []


def test_extras_are_named_on_the_page_about_installing() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    page = (REPOSITORY / "docs/how-to/install.md").read_text()
    extras = set(project["optional-dependencies"]) - {"test", "docs", "dev"}
    assert extras == set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
