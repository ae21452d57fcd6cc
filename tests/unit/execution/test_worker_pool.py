"""Who gets a leaf on a cluster, which worker is silent, and which leaf is to blame, without a cluster."""

from __future__ import annotations

import random
from typing import Any

import pytest

from streampca.execution.distributed.attempts import LeafAttempts
from streampca.execution.distributed.retries import ATTEMPTS
from streampca.execution.distributed.workers import WorkerPool


def told(seen: float = 1.0, **threads: int) -> dict[str, dict[str, Any]]:
    return {name: {"nthreads": n, "last_seen": seen, "nanny": None, "status": "running"} for name, n in threads.items()}


def fleet_of(*, leaves_per_worker: int = 0, **threads: int) -> WorkerPool:
    fleet = WorkerPool(10.0, leaves_per_worker)
    assert fleet.update(told(**threads), 0.0) == []
    return fleet


def place(fleet: WorkerPool, key: str, **how: Any) -> str | None:
    worker = fleet.assign(key, **how)
    return None if worker is None else worker.address


def test_tasks_go_where_there_is_least_to_do() -> None:
    fleet = fleet_of(a=1, b=3)
    assert (fleet.usable, fleet.capacity) == (2, 4)
    assert [place(fleet, f"{i}") for i in range(5)] == ["a", "b", "b", "b", None]
    fleet.release("b", "2")
    assert place(fleet, "5") == "b"
    assert place(fleet, "6") is None
    assert place(fleet, "6", ahead=True) in ("a", "b")


def test_no_more_leaves_are_ahead_than_at_work_and_none_where_memory_is_for_fewer_than_threads() -> None:
    fleet = fleet_of(a=2)
    assert [place(fleet, f"{i}", ahead=True) for i in range(5)] == ["a"] * 4 + [None]
    tight = fleet_of(a=4, leaves_per_worker=2)
    assert tight.capacity == 2
    assert [place(tight, f"{i}", ahead=True) for i in range(3)] == ["a", "a", None]


def test_one_alone_has_a_worker_for_itself() -> None:
    fleet = fleet_of(a=2, b=2)
    assert [place(fleet, f"{i}") for i in range(3)] == ["a", "b", "a"]
    assert place(fleet, "alone", alone=True) is None
    assert fleet.workers["b"].tasks
    assert place(fleet, "more") == "a" or place(fleet, "more") is None
    fleet.release("b", "1")
    assert place(fleet, "alone", alone=True) == "b"
    assert place(fleet, "another") != "b"
    assert place(fleet, "another", ahead=True) != "b"
    fleet.release("b", "alone")
    assert place(fleet, "after") == "b"


def test_a_worker_is_kept_free_only_while_one_waits_for_it() -> None:
    fleet = fleet_of(a=2)
    assert place(fleet, "0") == "a"
    assert place(fleet, "alone", alone=True) is None
    assert place(fleet, "1") is None
    fleet.clear_reservation()
    assert place(fleet, "1") == "a"


def test_what_was_offered_in_the_past_is_forgotten() -> None:
    fleet = fleet_of(a=1, b=2, c=1)
    for i in range(1000):
        worker = place(fleet, f"{i}")
        assert worker is not None
        fleet.release(worker, f"{i}")
    assert len(fleet._heap) < 40


def test_a_state_that_stays_does_not_go_where_two_wait_but_one_that_is_waited_for_does() -> None:
    fleet = fleet_of(a=2, b=1)
    fleet.add_states("a", 2)
    fleet.add_states("gone", 1)
    assert [place(fleet, f"{i}", keeps_state=True) for i in range(2)] == ["b", None]
    assert place(fleet, "next") == "a"
    fleet.add_states("a", -1)
    assert place(fleet, "2", keeps_state=True) == "a"


def test_a_kept_worker_that_goes_is_not_waited_for() -> None:
    fleet = fleet_of(a=1, b=1)
    assert {place(fleet, "0"), place(fleet, "1")} == {"a", "b"}
    assert place(fleet, "alone", alone=True) is None
    assert fleet.remove("a") in (["0"], ["1"])
    fleet.release("b", "0")
    fleet.release("b", "1")
    assert place(fleet, "alone", alone=True) == "b"


def test_a_worker_on_which_a_leaf_failed_is_the_last_to_get_it_again() -> None:
    fleet = fleet_of(a=1, b=1)
    assert place(fleet, "0", avoid={"a"}) == "b"
    assert place(fleet, "1", avoid={"b"}) == "a"
    fleet.release("a", "1")
    assert place(fleet, "2", avoid={"a"}) is None
    fleet.remove("b")
    assert place(fleet, "2", avoid={"a"}) == "a"


def test_a_removed_worker_gives_back_its_tasks_and_gets_no_more() -> None:
    fleet = fleet_of(a=2)
    place(fleet, "0")
    place(fleet, "1")
    assert fleet.remove("a") == ["0", "1"]
    assert fleet.remove("a") == []
    assert place(fleet, "2") is None
    assert fleet.update(told(2.0, b=1), 1.0) == []
    assert place(fleet, "2") == "b"
    assert fleet.update({}, 1.0) == ["b"]


def test_silence_is_counted_in_seconds_that_were_watched_and_ends_with_a_word() -> None:
    fleet = fleet_of(a=1, b=1)
    for second in range(10):
        seen = {"a": told(1.0, a=1)["a"], "b": told(2.0 + second, b=1)["b"]}
        fleet.update(seen, 1.0)
        assert fleet.newly_silent() == []
        assert fleet.unheard == 0
    fleet.update({"a": told(1.0, a=1)["a"], "b": told(20.0, b=1)["b"]}, 1.0)
    assert [worker.address for worker in fleet.newly_silent()] == ["a"]
    assert fleet.newly_silent() == []
    assert fleet.usable == 1
    assert {place(fleet, "0"), place(fleet, "1")} == {"b", None}
    fleet.update(told(30.0, a=1, b=1), 1.0)
    assert fleet.usable == 2
    assert place(fleet, "2") == "a"


def test_a_result_is_a_sign_of_life() -> None:
    fleet = fleet_of(a=1)
    for i in range(30):
        place(fleet, f"{i}")
        fleet.update(told(1.0, a=1), 1.0)
        fleet.release("a", f"{i}", alive=True)
        assert fleet.newly_silent() == []


def test_a_worker_that_takes_no_tasks_gets_none_until_it_does() -> None:
    fleet = fleet_of(a=1)
    paused = told(2.0, a=1)
    paused["a"]["status"] = "paused"
    fleet.update(paused, 1.0)
    assert fleet.usable == 0
    assert place(fleet, "0") is None
    fleet.update(told(3.0, a=1), 1.0)
    assert place(fleet, "0") == "a"


@pytest.mark.parametrize("seed", range(30))
def test_a_fleet_keeps_its_rules_whatever_happens(seed: int) -> None:
    """Against a plain account of who has what: no worker above its limit, nothing beside one that is alone, none idle in vain."""
    rng, fleet = random.Random(seed), WorkerPool(1e9)
    has: dict[str, set[str]] = {}
    alone: set[str] = set()
    for step in range(400):
        act = rng.random()
        if act < 0.05 or not has:
            has[f"w{step}"] = set()
            fleet.update({name: told(float(step), w=2)["w"] for name in has}, 0.1)
        elif act < 0.08:
            gone = rng.choice(sorted(has))
            assert set(fleet.remove(gone)) == has.pop(gone)
        elif act < 0.5 and any(has.values()):
            name = rng.choice([name for name in sorted(has) if has[name]])
            key = rng.choice(sorted(has[name]))
            has[name].remove(key)
            fleet.release(name, key)
        else:
            key, by_itself = f"k{step}", rng.random() < 0.2
            where = place(fleet, key, alone=by_itself, ahead=rng.random() < 0.5)
            if where is None:
                idle = [name for name in has if not has[name]]
                assert not idle or (not by_itself and len(idle) == 1), seed  # kept for one that is to be alone
                continue
            assert not (has[where] and by_itself), seed
            assert not has[where] & alone, seed
            has[where].add(key)
            alone |= {key} if by_itself else set()
            assert len(has[where]) <= 4, seed


def test_a_leaf_that_dies_alone_is_blamed_at_the_fourth_attempt_for_one_block() -> None:
    trial = LeafAttempts(3)
    assert [trial.record_loss(alone=True, all_losses=n) for n in (1, 2, 3)] == [False] * 3
    assert trial.block == 0
    trial.block_succeeded(4)
    trial.block_succeeded(4)
    assert (trial.block, trial.blocks_passed) == (2, False)
    assert trial.record_loss(alone=True, all_losses=4)
    assert (trial.losses, trial.block) == (ATTEMPTS, 2)


def test_a_leaf_of_which_no_block_dies_alone_is_blamed_as_a_whole() -> None:
    trial = LeafAttempts(3)
    for n in (1, 2, 3):
        trial.record_loss(alone=True, all_losses=n)
    for _ in range(4):
        trial.block_succeeded(4)
    assert (trial.block, trial.blocks_passed) == (None, True)
    assert trial.record_loss(alone=True, all_losses=4)


def test_the_first_loss_may_be_shared_but_no_other() -> None:
    trial = LeafAttempts(3)
    assert not trial.record_loss(alone=False, all_losses=1)
    assert [trial.record_loss(alone=True, all_losses=n) for n in (2, 3)] == [False] * 2
    assert trial.block == 0
    assert trial.record_loss(alone=True, all_losses=4)
    shared = LeafAttempts(3)
    assert not any(shared.record_loss(alone=False, all_losses=n) for n in range(1, 30))
    assert shared.block is None


def test_where_other_leaves_lose_workers_too_blame_takes_three_times_as_long() -> None:
    trial, count = LeafAttempts(3), 0
    while not trial.record_loss(alone=True, all_losses=trial.losses + 2):
        count += 1
        assert count < 20
    assert trial.losses == 3 * ATTEMPTS
