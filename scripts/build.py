"""Builds sdist and wheel from the files of the repository alone, with the times and modes that make two builds the same.

Usage: scripts/build.py SOURCE DIST    (both are made; needs build and setuptools)
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(source: Path, dist: Path) -> None:
    copy_repository(source)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(dist), str(source)], check=True)
    for archive in dist.glob("*.tar.gz"):
        normalise(archive, int(os.environ["SOURCE_DATE_EPOCH"]))


def copy_repository(source: Path) -> None:
    """Copy the files that git knows to `source`; all but caches where there is no git."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        ignored = shutil.ignore_patterns(
            ".venv", "__pycache__", "*.egg-info", "build", "dist", ".*_cache", ".hypothesis"
        )
        shutil.copytree(ROOT, source, ignore=ignored)
        return
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)


def normalise(archive: Path, seconds: int) -> None:
    """Write `archive` again in the order of names, with one time, no owner, and modes of 644 or 755."""
    with tarfile.open(archive) as read:
        members = [(info, read.extractfile(info)) for info in sorted(read.getmembers(), key=lambda info: info.name)]
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as written:
            for info, content in members:
                executable = info.isdir() or bool(info.mode & 0o100)
                info.mtime, info.uid, info.gid, info.uname, info.gname = seconds, 0, 0, "", ""
                info.mode, info.pax_headers = 0o755 if executable else 0o644, {}
                written.addfile(info, content)
    with archive.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=seconds) as compressed:
        compressed.write(plain.getvalue())


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
