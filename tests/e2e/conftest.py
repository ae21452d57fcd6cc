"""The command in a directory with a store, and a finished run beside it."""

import pytest
from stores import Command, config_text, write_store


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
