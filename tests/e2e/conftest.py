"""The command in a directory with a store, and a finished run beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from facade import StopSignalError
from stores import Command, config_text, write_store

from streampca.sources.zarr import chunks
from streampca.storage.files import open_regular


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Return the command, called in a directory that holds the store good.zarr."""
    monkeypatch.chdir(tmp_path)
    write_store(tmp_path / "good.zarr")
    return Command(capsys)


@pytest.fixture
def job(tmp_path, call):
    """Return the configuration of a run that is finished, in runs/job, and may be replaced."""
    path = tmp_path / "job.yaml"
    path.write_text(config_text("good.zarr", "runs/job", output="overwrite: true, report: false"))
    assert call.quietly("run", path).status == 0
    return path


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the files that the direct reader opens."""
    counts: Counter[str] = Counter()

    def counting(path: Any, *arguments: Any, **options: Any) -> Any:
        counts[str(path)] += 1
        return open_regular(path, *arguments, **options)

    monkeypatch.setattr(chunks, "open_regular", counting)
    return counts


@pytest.fixture
def stop_at_scores(all_checkpoints: None) -> Callable[[Any], None]:
    """Make checkpoints cheap, so that all are written; return a callback that ends a run as a signal does when scores begin."""

    def stop(progress: Any) -> None:
        if progress.phase == "scores":
            raise StopSignalError(15)

    return stop
