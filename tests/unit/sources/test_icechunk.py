"""Snapshots of icechunk repositories: which one is read, and an update that reads what was written since another."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from stores import make_values

import streampca as sp
from scripts import SCRIPTS, module
from streampca.errors import (
    ChangedInputError,
    DataError,
    NotAvailableError,
    ParameterError,
    StreamPCAError,
)

icechunk = pytest.importorskip("icechunk")
VALUES = make_values(1010, 20)


class Repository:
    """A repository of icechunk with an array ``x`` of chunks of 100 rows."""

    def __init__(self, directory: Path, rows: int = 1000, shards: tuple[int, ...] | None = None):
        self.place = f"icechunk:{directory}"
        self.stored = icechunk.Repository.create(icechunk.local_filesystem_storage(str(directory)))

        def write(store: Any) -> None:
            array = zarr.create_array(store, name="x", shape=(rows, 20), dtype="f8", chunks=(100, 20), shards=shards)
            array[...] = VALUES[:rows]

        self.first = self.commit(write)

    def commit(self, change: Callable[[Any], None]) -> str:
        session = self.stored.writable_session("main")
        change(session.store)
        return str(session.commit("a change"))

    def append(self, rows: np.ndarray[Any, Any]) -> str:
        return self.commit(lambda store: zarr.open_array(store, path="x", mode="r+").append(rows))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def run_on(repository: Repository, directory: Path, **source: Any) -> Any:
    document = {
        "source": {"path": repository.place, **source},
        "model": {"n_components": 4},
        "output": {"directory": str(directory), "state": True, "scores": False, "report": False},
    }
    return sp.run(document)


def test_a_branch_a_tag_and_a_snapshot_are_read(repository: Repository) -> None:
    repository.stored.create_tag("v1", repository.first)
    second = repository.append(VALUES[1000:])
    repository.stored.create_branch("old", repository.first)
    for options, n_rows, snapshot in (
        ({}, 1010, second),
        ({"branch": "main"}, 1010, second),
        ({"branch": "old"}, 1000, repository.first),
        ({"tag": "v1"}, 1000, repository.first),
        ({"snapshot": repository.first}, 1000, repository.first),
    ):
        table = sp.open(repository.place, **options)  # type: ignore[arg-type]
        assert table.description == f"{repository.place}@{snapshot}"
        assert table.describe()["snapshot"] == snapshot
        np.testing.assert_array_equal(table.read(0, n_rows)[0], VALUES[:n_rows])
        again = sp.open(table.description)
        assert again.shape == table.shape
        assert again.fingerprint == table.fingerprint
    assert len(sp.PCA(2).fit(repository.place).transform(repository.place)) == 1010


def test_a_table_stays_the_snapshot_that_was_opened(repository: Repository) -> None:
    table = sp.open(repository.place)
    repository.append(VALUES[1000:])
    for each in (table, pickle.loads(pickle.dumps(table))):
        assert sp.PCA(2).fit(each).n_samples_seen_ == 1000
    table.require_unchanged()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"branch": "nothere"}, DataError, "has no branch 'nothere': it has main"),
        ({"tag": "nothere"}, DataError, "has no tag 'nothere': it has none"),
        ({"snapshot": "nothere"}, DataError, "has no snapshot nothere"),
        ({"branch": "main", "tag": "v1"}, ParameterError, "branch, tag were given .*: expected one of them"),
        ({"storage_options": {"region": "x"}}, NotAvailableError, "storage_options"),
        ({"array": "y"}, DataError, "y"),
    ],
)
def test_what_is_not_there_is_named(
    repository: Repository, options: dict[str, Any], error: type[StreamPCAError], said: str
) -> None:
    with pytest.raises(error, match=said):
        sp.open(repository.place, **options)


def test_options_of_a_local_repository_are_used_or_refused(repository: Repository) -> None:
    allowed = {"authorize_virtual_chunk_access": None}
    assert sp.open(repository.place, storage_options=allowed).shape == (1000, 20)
    for place in (repository.place, repository.place.replace("icechunk:", "icechunk:file://")):
        assert sp.open(place).shape == (1000, 20)
        with pytest.raises(NotAvailableError, match="storage_options region does not apply to a local repository"):
            sp.open(place, storage_options={"region": "x"})


def test_places_that_are_no_repository_are_named(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        sp.open(f"icechunk:{tmp_path / 'nothere'}")
    with pytest.raises(DataError, match="is no icechunk repository"):
        sp.open(f"icechunk:{tmp_path}")
    with pytest.raises(DataError, match="expected icechunk:PATH"):
        sp.open("icechunk:ftp://host/place")
    with pytest.raises(DataError, match="not those of icechunk"):
        sp.open("icechunk:s3://bucket/place", storage_options={"nothere": 1})
    with pytest.raises(ParameterError, match="names a snapshot"):
        sp.open(f"{repository.place}@{repository.first}", tag="v1")


@pytest.mark.parametrize("shards", [None, (200, 20)])
def test_an_update_reads_what_was_written_since_the_snapshot_of_the_run(
    tmp_path: Path, shards: tuple[int, ...] | None
) -> None:
    repository = Repository(tmp_path / "repository", 1000, shards)
    run_on(repository, tmp_path / "run")
    second = repository.append(VALUES[1000:])
    update = sp.update(tmp_path / "run")
    entry = update.run.manifest["updates"][0]
    assert update.n_rows == 10
    assert entry["compared"]["stored_bytes"] == 0
    assert entry["bytes"] <= 10 * 20 * 8
    assert update.run.manifest["source"]["snapshot"] == second
    expected = np.linalg.eigvalsh(np.cov(VALUES.T))[::-1][:4]
    np.testing.assert_allclose(update.run.model.explained_variance_, expected, rtol=1e-12)
    assert sp.update(tmp_path / "run").n_rows == 0


@pytest.mark.parametrize("shards", [None, (200, 20)])
def test_a_hundredth_more_rows_costs_a_hundredth_and_gives_the_bits_of_a_merged_fit(
    tmp_path: Path, shards: tuple[int, ...] | None
) -> None:
    repository = Repository(tmp_path / "repository", 1000, shards)
    run_on(repository, tmp_path / "run")
    repository.append(VALUES[1000:])
    update = sp.update(tmp_path / "run")
    entry = update.run.manifest["updates"][0]
    assert entry["bytes"] + entry["compared"]["stored_bytes"] <= 0.02 * VALUES.nbytes
    # The same division of the rows: those of the first snapshot, and those written since.
    first = sp.PCA(4, solver="covariance").fit(sp.open(repository.place, snapshot=repository.first))
    fresh: Any = sp.merge([first, sp.PCA(4, solver="covariance").fit(VALUES[1000:])])
    updated = sp.load(update.run.directory / "model.zarr")
    found, expected = (vars(each)["_fitted_state"].state for each in (updated, fresh))
    assert found.n_samples == expected.n_samples == 1010
    for name in ("origin", "offset", "scatter"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    for name in ("components_", "explained_variance_", "mean_"):
        np.testing.assert_array_equal(getattr(update.run.model, name), getattr(fresh, name))


def test_an_update_decodes_a_last_chunk_that_was_not_full(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", 950)
    run_on(repository, tmp_path / "run")
    repository.append(VALUES[950:])
    update = sp.update(tmp_path / "run")
    entry = update.run.manifest["updates"][0]
    # The chunk is read twice: as it is stored, and its values.
    assert (update.n_rows, entry["compared"]["chunks"], entry["bytes"]) == (60, 2, 110 * 20 * 8)
    expected = np.linalg.eigvalsh(np.cov(VALUES.T))[::-1][:4]
    np.testing.assert_allclose(update.run.model.explained_variance_, expected, rtol=1e-12)


def test_rows_that_were_changed_between_two_snapshots_are_refused(repository: Repository, tmp_path: Path) -> None:
    run_on(repository, tmp_path / "run")

    def change(store: Any) -> None:
        zarr.open_array(store, path="x", mode="r+")[250:260] = 0.0

    repository.commit(change)
    repository.append(VALUES[1000:])
    with pytest.raises(ChangedInputError, match=r"1 of 10 chunks have changed .*c/2/0"):
        sp.update(tmp_path / "run")


@pytest.mark.parametrize("same", [True, False])
def test_an_array_that_was_made_anew_is_compared_by_its_bytes(
    repository: Repository, tmp_path: Path, same: bool
) -> None:
    run_on(repository, tmp_path / "run")

    def make_again(store: Any) -> None:
        array = zarr.create_array(store, name="x", shape=(1010, 20), dtype="f8", chunks=(100, 20), overwrite=True)
        array[...] = VALUES if same else VALUES + 1.0

    repository.commit(make_again)
    if same:
        assert sp.update(tmp_path / "run").n_rows == 10
    else:
        with pytest.raises(ChangedInputError, match="10 of 10 chunks have changed"):
            sp.update(tmp_path / "run")


def test_a_run_that_is_stopped_goes_on_with_its_snapshot_only(
    repository: Repository, tmp_path: Path, blocks_of: Any, all_checkpoints: None
) -> None:
    blocks_of(100)
    document = {
        "source": {"path": repository.place},
        "model": {"n_components": 4, "solver": "covariance"},
        "checkpoint": {"every": "1ms"},
        "output": {"directory": str(tmp_path / "run"), "scores": False, "report": False},
    }

    def stop(progress: Any) -> None:
        if progress.rows > 500:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sp.run(document, progress=stop)
    repository.append(VALUES[1000:])
    with pytest.raises(StreamPCAError, match="the input has changed"):
        sp.run(document, resume=True)
    repository.stored.reset_branch("main", repository.first)
    seen: list[int] = []
    resumed = sp.run(document, resume=True, progress=lambda progress: seen.append(progress.rows))
    assert seen[0] > 100
    np.testing.assert_allclose(
        resumed.model.explained_variance_, np.linalg.eigvalsh(np.cov(VALUES[:1000].T))[::-1][:4], rtol=1e-12
    )


def test_a_repository_in_s3_is_read_and_its_secrets_are_in_no_pickle(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    repository = Repository(tmp_path / "b" / "repository")
    with module(SCRIPTS / "bench/object_server.py") as script:
        server = script.ObjectServer(tmp_path)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        options = {
            "endpoint": f"http://127.0.0.1:{server.server_address[1]}",
            "region": "us-east-1",
            "access_key_id": "canary-key",
            "secret_access_key": "canary-secret",
        }
        table = sp.open("icechunk:s3://b/repository", storage_options=options)
        assert table.description == f"icechunk:s3://b/repository@{repository.first}"
        pickled = pickle.dumps(table)
        assert b"canary" not in pickled
        np.testing.assert_array_equal(pickle.loads(pickled).read(0, 1000)[0], VALUES[:1000])
        with pytest.raises(DataError, match="has no tag 'v1'"):
            sp.open("icechunk:s3://b/repository", tag="v1", storage_options=options)
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.distributed
def test_workers_of_a_cluster_read_the_snapshot(repository: Repository, client: Any) -> None:
    table = sp.open(repository.place)
    expected = sp.PCA(3, solver="covariance").fit(table)
    repository.append(VALUES[1000:])
    with client.as_current():
        found = sp.PCA(3, solver="covariance").fit(table)
    np.testing.assert_array_equal(found.components_, expected.components_)
    np.testing.assert_array_equal(found.explained_variance_, expected.explained_variance_)
