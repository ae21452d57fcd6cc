"""Installs the wheel into fresh environments, runs it there without the repository, and prints what happened as a table.

One cell for each Python that is there and the lowest and the newest versions of the dependencies; uv resolves the lowest. Each has the
core only: no extra, no HOME, a working directory of its own, and an installation whose files must be the same afterwards.
``--quick`` is this Python and the newest that is there, with the newest versions, which earlier Pythons may not get. ``--tests`` also
installs the extra ``test``, with its lowest or newest versions, and runs `TESTS`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
TESTS = (
    *(
        f"tests/unit/{part}"
        for part in ("accumulators", "estimators", "export", "linalg", "models", "sources", "storage")
    ),
    "tests/e2e/test_anndata.py",
)
SHOWN = ("numpy", "scipy", "dask", "zarr", "pydantic")
IN_PARALLEL = ("-n", "2", "--dist", "loadgroup")
MOST_MEGABYTES, MOST_PACKAGES = 335, 37

SMOKE = """
import json, subprocess, sys
from pathlib import Path
import numpy as np
import zarr
import streampca as sp
assert "site-packages" in sp.__file__, sp.__file__
rows = np.random.default_rng(0).standard_normal((4000, 40)) * np.arange(1, 41)
stored = zarr.create_array("x.zarr", shape=rows.shape, chunks=(500, 40), dtype="f8")
stored[:] = rows
Path("job.yaml").write_text(
    "source: {path: x.zarr}\\nmodel: {n_components: 5}\\noutput: {directory: out, scores: true}\\n"
)
command = [str(Path(sys.executable).with_name("streampca"))]
subprocess.run([*command, "run", "job.yaml", "--quiet"], check=True)
expected = np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[:5] ** 2 / (len(rows) - 1)
model = sp.load("out/model.zarr")
np.testing.assert_allclose(model.explained_variance_, expected, rtol=1e-10)
np.testing.assert_allclose(sp.PCA(5, solver="gram").fit(rows[:30]).singular_values_, np.linalg.svd(
    rows[:30] - rows[:30].mean(axis=0), compute_uv=False)[:5], rtol=1e-8)
sp.PCA(3, solver="sketch").fit("x.zarr"); sp.KernelPCA(2, n_landmarks=50).fit(rows[:300])
scores = zarr.open_array("out/scores.zarr/scores", mode="r")
np.testing.assert_allclose(scores[:], model.transform(rows), atol=1e-9 * abs(rows).max())
assert "streampca[report]" in Path("out/report.html").read_text()
missing = subprocess.run([*command, "plan", "job.yaml", "--set", "source.path=y.parquet"], capture_output=True, text=True)
assert missing.returncode in (2, 5), missing
try:
    sp.open("builtin:iris")
except sp.StreamPCAError as error:
    assert error.exit_status == 2 and 'pip install "streampca[examples]"' in str(error), error
"""


@dataclass
class Cell:
    """One environment and what happened in it."""

    python: str
    """Version of Python, such as ``"3.12"``."""
    versions: str
    """``"lowest"`` or ``"newest"`` versions of the dependencies."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of each step."""
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of the installed packages, without pip."""
    megabytes: float = 0.0
    """Size of the installed files."""
    outcome: str = "ok"
    """``"ok"``, or what failed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="this Python and the newest, with the newest versions")
    parser.add_argument("--tests", action="store_true", help="also run tests, with the extra test")
    parser.add_argument("--python", action="append", help="a version, such as 3.12; repeat for more", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="streampca-matrix-") as place:
        here = Path(place)
        wheel = build_wheel(here)
        if options.quick:
            own = ".".join(map(str, sys.version_info[:2]))
            pythons = dict(list(find_pythons(PYTHONS).items())[-1:]) | {own: sys.executable}
            cells = [Cell(python, "newest") for python in pythons]
        else:
            pythons = find_pythons(options.python or PYTHONS)
            cells = [Cell(python, versions) for python in pythons for versions in ("lowest", "newest")]
        for cell in cells:
            try_cell(cell, pythons[cell.python], wheel, here / f"{cell.python}-{cell.versions}", tests=options.tests)
            print(f"{cell.python} {cell.versions}: {cell.outcome}", file=sys.stderr, flush=True)
    print_table(cells)
    return any(cell.outcome != "ok" for cell in cells)


def build_wheel(place: Path) -> Path:
    """Return the wheel of the repository, built from a copy."""
    copied = place / "source"
    shutil.copytree(ROOT / "streampca", copied / "streampca", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copied)
    run([sys.executable, "-m", "venv", str(place / "pip")])
    pip = [str(place / "pip/bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    run([*pip, "wheel", "--no-deps", "--wheel-dir", str(place), str(copied)])
    return next(place.glob("*.whl"))


def find_pythons(wanted: tuple[str, ...] | list[str]) -> dict[str, str]:
    """Return the interpreters of the wanted versions that are there: on the PATH, or installed by pyenv."""
    found = {}
    for version in wanted:
        pyenv = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
        for candidate in (f"python{version}", *map(str, reversed(pyenv))):
            path = shutil.which(candidate)
            code = f"import sys, venv; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
            if path and subprocess.run([path, "-c", code], capture_output=True, check=False).returncode == 0:
                found[version] = path
                break
        else:
            print(f"Python {version} is not here", file=sys.stderr)
    return found


def try_cell(cell: Cell, interpreter: str, wheel: Path, place: Path, *, tests: bool) -> None:
    """Make the environment of `cell` at `place`, install `wheel`, run it, and note what happened."""
    python, work = str(place / "venv/bin/python"), place / "work"
    work.mkdir(parents=True)
    steps = {
        "install": lambda: install(cell, interpreter, wheel, place),
        "smoke": lambda: smoke(place, python, work),
    }
    if tests:
        steps["tests"] = lambda: run_tests(cell, interpreter, wheel, place)
    for name, step in steps.items():
        started = time.monotonic()
        try:
            step()
        except (subprocess.CalledProcessError, AssertionError) as error:
            said = [getattr(error, name, None) or "" for name in ("stdout", "stderr")]
            print(*said, sep="\n", file=sys.stderr)
            lines = ("".join(said) or str(error)).strip().splitlines()
            cell.outcome = f"{name}: {lines[-1] if lines else error}"
            return
        finally:
            cell.seconds[name] = time.monotonic() - started
        if name == "install":
            measure(cell, place)
    if cell.versions == "newest" and (cell.megabytes > MOST_MEGABYTES or len(cell.packages) > MOST_PACKAGES):
        cell.outcome = f"size: at most {MOST_MEGABYTES} MB and {MOST_PACKAGES} packages are allowed"


def install(cell: Cell, interpreter: str, wheel: Path, place: Path) -> None:
    """Install `wheel` without extras, with the versions of `cell`."""
    run([interpreter, "-m", "venv", str(place / "venv")])
    run([*pip_of(place), "install", str(wheel), *pins(cell, interpreter, place)])


def pip_of(place: Path) -> list[str]:
    """Return the beginning of commands of pip in the environment at `place`."""
    return [str(place / "venv/bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input"]


def pins(cell: Cell, interpreter: str, place: Path, extra: str | None = None) -> list[str]:
    """Return the arguments by which pip installs the versions of `cell` of all dependencies, and of those of `extra`."""
    pip, project = pip_of(place), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if cell.versions == "lowest":
        run([*pip, "install", "--target", str(place / "uv"), "uv"])
        wanted = place / "wanted.txt"
        # The dependencies themselves: those of a wheel that is required would not be direct, and be the newest.
        direct = [*project["dependencies"], *(requirements(project["optional-dependencies"], extra) if extra else ())]
        wanted.write_text("\n".join(direct) + "\n")
        lowest = [
            str(place / "uv/bin/uv"),
            "pip",
            "compile",
            "--quiet",
            "--resolution",
            "lowest-direct",
            "--only-binary",
            ":all:",
        ]
        listed = run(
            [*lowest, "--python", interpreter, "--no-annotate", "--no-header", str(wanted)], more=pip_links(pip)
        )
        pins_file = place / "pins.txt"
        pins_file.write_text("".join(line + "\n" for line in listed.splitlines() if "==" in line))
        return ["--constraint", str(pins_file)]
    return []


def requirements(extras: dict[str, list[str]], name: str) -> list[str]:
    """Return the requirements of the extra `name` and of those that it contains."""
    found = []
    for line in extras[name]:
        if line.startswith("streampca["):
            for inner in line.removeprefix("streampca[").rstrip("]").split(","):
                found += requirements(extras, inner)
        else:
            found.append(line)
    return found


def pip_links(pip: list[str]) -> dict[str, str]:
    """Return for uv, as environment variables, where pip is configured to look for packages."""
    names = {
        "global.index-url": "UV_DEFAULT_INDEX",
        "global.extra-index-url": "UV_INDEX",
        "global.find-links": "UV_FIND_LINKS",
    }
    settings = {}
    for line in run([*pip, "config", "list"]).splitlines():
        key, _, value = line.partition("=")
        if key in names:
            settings[names[key]] = " ".join(value.strip("'").replace("\\n", " ").split())
    return settings


def measure(cell: Cell, place: Path) -> None:
    """Note the packages of the environment and their size, without pip and setuptools."""
    code = "import importlib.metadata as m; [print(d.metadata['Name'], d.version) for d in m.distributions()]"
    listed = run([str(place / "venv/bin/python"), "-I", "-c", code]).splitlines()
    packages = dict(line.split(" ", 1) for line in listed)
    cell.packages = {name: version for name, version in packages.items() if name not in ("pip", "setuptools")}
    left_out = ("pip", "setuptools", "pkg_resources", "_distutils_hack")
    cell.megabytes = sum(
        path.lstat().st_blocks * 512 / 2**20
        for top in site_packages(place).iterdir()
        if not top.name.startswith(left_out)
        for path in ([top] if top.is_file() else [top, *top.rglob("*")])
    )


def site_packages(place: Path) -> Path:
    """Return the directory of the installed packages."""
    return next((place / "venv/lib").glob("python*/site-packages"))


def smoke(place: Path, python: str, work: Path) -> None:
    """Run `SMOKE` without HOME, and require that it leaves the installation as it is."""
    installed = site_packages(place)
    set_writable(installed, writable=False)
    before = picture(installed)
    try:
        run([python, "-I", "-B", "-c", SMOKE], cwd=work, bare=True)
        assert picture(installed) == before, "the run changed files of its installation"
    finally:
        set_writable(installed, writable=True)


def run_tests(cell: Cell, interpreter: str, wheel: Path, place: Path) -> None:
    """Run `TESTS` against the installed package."""
    run([*pip_of(place), "install", f"{wheel}[test]", *pins(cell, interpreter, place, "test")])
    for part in ("tests", "scripts"):
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", place)
    python = str(place / "venv/bin/python")
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-W", "default", *IN_PARALLEL, *TESTS]
    # The tests of scikit-learn 1.6 want this with scipy 1.14 and the package array-api-compat, which xeofs installs.
    run(command, cwd=place, more={"SCIPY_ARRAY_API": "1"} if cell.versions == "lowest" else None)


def picture(directory: Path) -> str:
    """Return a digest of the names, sizes and times of all files below `directory`."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        state = path.lstat()
        digest.update(f"{path} {state.st_size if path.is_file() else 0} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def set_writable(directory: Path, *, writable: bool) -> None:
    """Let nobody, or the owner again, write below `directory`."""
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o200 if writable else path.stat().st_mode & ~0o222)


def run(command: list[str], *, cwd: Path | None = None, more: dict[str, str] | None = None, bare: bool = False) -> str:
    """Return the output of `command`; `bare` is without HOME and all other variables but PATH."""
    environment = {"PATH": os.environ["PATH"]} if bare else {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= (more or {}) | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def print_table(cells: list[Cell]) -> None:
    """Print the cells as a table in Markdown."""
    heads = ("Python", "dependencies", *SHOWN, "packages", "MB", "install", "run", "outcome")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for cell in cells:
        versions = [cell.packages.get(name, "–") for name in SHOWN]
        times = [f"{cell.seconds[name]:.0f} s" if name in cell.seconds else "–" for name in ("install", "smoke")]
        row = (
            cell.python,
            cell.versions,
            *versions,
            str(len(cell.packages)),
            f"{cell.megabytes:.0f}",
            *times,
            cell.outcome,
        )
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    sys.exit(main())
