"""Configurations and arguments that nobody would write: each gives a configuration, or one line that says what is wrong."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from documents import CASES
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as from_seed
from score import Score, again


def run(count: int, seed: int) -> Score:
    """Try `count` of them, as many of each kind."""
    score, began = Score("configurations and arguments at random: accepted, or refused in one line"), time.monotonic()
    for check, drawn in CASES.values():
        tried = settings(
            max_examples=-(-count // len(CASES)),
            deadline=None,
            database=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        try:
            from_seed(seed)(tried(given(**drawn)(_counting(check, score))))()
        except Exception as error:  # noqa: BLE001 whatever was raised is what was found
            score.tracebacks += 1
            told = " ".join([str(error), *getattr(error, "__notes__", ())])
            score.notes.append(
                f"{check.__name__}: {type(error).__name__}: {told}: {again('fuzz', seed)} with --count {count}"
            )
    score.detected = score.injected - score.tracebacks
    score.seconds = time.monotonic() - began
    return score


def _counting(check: Callable[..., None], score: Score) -> Callable[..., None]:
    @functools.wraps(check)
    def counted(**drawn: Any) -> None:
        score.injected += 1
        check(**drawn)

    return counted
