"""What is on the disk when: nothing gets its final name before all it stands for was flushed, and then its directory is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from slow_run import SlowRun
from stores import config_text, make_values, write_store

_FLUSH = re.compile(r"(?:fsync|fdatasync)\(\d+<(?P<path>[^>]*)>\)\s+= 0")  # strace aligns what follows "resumed>)"
_RENAME = re.compile(r'rename(?:at2?)?\((?:[^"]*)"(?P<old>[^"]*)", (?:[^"]*)"(?P<new>[^"]*)"[^)]*\)\s+= 0')
_CALLS = "trace=fsync,fdatasync,rename,renameat,renameat2"


def _traced(directory: Path) -> list[tuple[str, str, str]]:
    """Return what a run did in order: ("flush", path, "") or ("rename", old, new), absolute."""
    run = SlowRun(directory, delay=0.005, block_rows=100)
    code = f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parents[1])]!r}; import slow_run; "
    code += f"slow_run.go_slowly([], flushes=True, **{run.terms!r})"
    log = directory.parent / "trace"
    command = ["strace", "-f", "-y", "-s", "4096", "-o", str(log), "-e", _CALLS, sys.executable, "-c", code]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode and "ptrace" in done.stderr:
        pytest.skip(f"processes cannot be traced here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0, done.stderr
    found, begun = [], {}
    for line in log.read_text().splitlines():
        pid, _, call = line.partition(" ")
        if call.rstrip().endswith("<unfinished ...>"):  # another thread came between
            begun[pid] = call.rstrip().removesuffix("<unfinished ...>").rstrip()
            continue
        resumed = re.match(r"\s*<\.\.\. \w+ resumed>(.*)", call)
        call = begun.pop(pid) + resumed[1] if resumed else call.strip()
        if flush := _FLUSH.match(call):
            found.append(("flush", flush["path"], ""))
        elif rename := _RENAME.match(call):
            found.append(("rename", *(str(directory / rename[name]) for name in ("old", "new"))))
    return found


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    directory = tmp_path_factory.mktemp("traced") / "job"
    directory.mkdir()
    write_store(directory / "x.zarr", make_values(3_000, 8), chunks=(100, 8))
    text = config_text("x.zarr", "out", "model: {n_components: 3, solver: covariance}", "resources: {threads: 1}")
    (directory / "c.yaml").write_text(text)
    return directory, _traced(directory)


@pytest.mark.slow
def test_a_result_gets_its_name_after_all_of_it_was_flushed_and_then_its_directory_is(traced):
    directory, happened = traced
    (commit,) = [i for i, (what, _, new) in enumerate(happened) if what == "rename" and new == str(directory / "out")]
    part = happened[commit][1]
    last = {path: i for i, (what, path, _) in enumerate(happened[:commit]) if what == "flush"}
    named = {new: i for i, (what, _, new) in enumerate(happened[:commit]) if what == "rename"}
    files = list((directory / "out").rglob("*"))
    assert len(files) > 20
    for path in [directory / "out", *files]:
        before = os.path.join(part, path.relative_to(directory / "out")).rstrip("/.")
        assert before in last, f"{before} was not flushed before it was named"
        assert last[before] > named.get(before, -1), f"{before} was flushed before it had its name"
    assert happened[commit + 1] == ("flush", str(directory), "")


@pytest.mark.slow
def test_a_ledger_gets_its_name_after_the_states_it_names_were_flushed(traced):
    directory, happened = traced
    place = str(directory / "out.checkpoint")
    ledgers = [i for i, (what, _, new) in enumerate(happened) if what == "rename" and "/ledger-" in new]
    assert len(ledgers) > 3
    states = [i for i, (what, _, new) in enumerate(happened) if what == "rename" and "/state-" in new]
    assert states
    for i in (*ledgers, *states):
        assert ("flush", happened[i][1], "") in happened[:i]
        after = next(event for event in happened[i + 1 :] if event[1].startswith(place))
        assert after == ("flush", place, "")
