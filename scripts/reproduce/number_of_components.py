#!/usr/bin/env python
"""Counts how often each rule finds the number of factors of simulated tables.

Usage: scripts/reproduce/number_of_components.py [--repetitions 200] [--update docs/how-to/number-of-components.md] [--json counts.json]

A table has k = 5 factors with variances from 2² to 4² times what is detectable at all, (√γ for γ = features / samples, Baik,
Ben Arous & Péché 2005), plus noise: Gaussian of variance 1; of Student's t with 5 degrees of freedom; or of variances that
differ between features, uniform in [0.2, 1.8].
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

import streampca as sp
from streampca.linalg.component_rules import RULES
from streampca.typing import FloatArray

N_FACTORS = 5
SHAPES = ((1000, 50), (300, 100), (100, 300))
NOISES = ("Gaussian", "t₅", "of different variances")
MARK = re.compile(r"(<!-- table: by number_of_components.py -->\n).*?(\n<!-- end -->)", re.DOTALL)


def factor_model(shape: tuple[int, int], noise: str, rng: np.random.Generator) -> FloatArray:
    """Return a table of `N_FACTORS` factors in noise of mean variance 1."""
    n, d = shape
    loadings = np.linalg.qr(rng.standard_normal((d, N_FACTORS)))[0]
    strengths = np.linspace(4.0, 2.0, N_FACTORS) * (d / n) ** 0.25
    rows = rng.standard_normal((n, N_FACTORS)) * strengths @ loadings.T
    if noise == "t₅":
        added = rng.standard_t(5, shape) * np.sqrt(3 / 5)
    else:
        added = rng.standard_normal(shape)
        if noise != "Gaussian":
            added *= np.sqrt(rng.uniform(0.2, 1.8, d))
    return np.asarray(rows + added)


def counts(shape: tuple[int, int], noise: str, repetitions: int) -> dict[str, Counter[int | None]]:
    """Return for every rule how often it gave which number; `cross_validation` is asked for, so that its groups are accumulated."""
    found: dict[str, Counter[int | None]] = {rule: Counter() for rule in RULES}
    for seed in range(repetitions):
        rules = sp.PCA("cross_validation").fit(factor_model(shape, noise, np.random.default_rng(seed)))
        for rule, result in rules.component_rules_.items():
            found[rule][result.n_components] += 1
    return found


def cell(found: Counter[int | None]) -> str:
    """Return the share of right answers, and those of too few and too many."""
    total = found.total()
    if found[None] == total:
        return "–"
    few = sum(n for k, n in found.items() if k is not None and k < N_FACTORS)
    many = sum(n for k, n in found.items() if k is not None and k > N_FACTORS)
    return f"{found[N_FACTORS] / total:.0%} ({few / total:.0%}, {many / total:.0%})"


def table(repetitions: int) -> tuple[str, list[dict[str, object]]]:
    """Return the table in Markdown, with the versions and the machine, and how often every rule gave which number."""
    records: list[dict[str, object]] = []
    lines = ["| rows × features | noise | " + " | ".join(f"`{rule}`" for rule in RULES) + " |"]
    lines.append("|---" * (2 + len(RULES)) + "|")
    for shape in SHAPES:
        for noise in NOISES:
            found = counts(shape, noise, repetitions)
            lines.append(
                f"| {shape[0]:,} × {shape[1]:,} | {noise} | " + " | ".join(cell(found[r]) for r in RULES) + " |"
            )
            plain = {rule: {str(number): n for number, n in counter.items()} for rule, counter in found.items()}
            records.append({"shape": list(shape), "noise": noise, "repetitions": repetitions, "counts": plain})
            print(lines[-1], file=sys.stderr)
    when = datetime.now(UTC).date().isoformat()
    versions = (
        f"streampca {sp.__version__}, numpy {np.__version__}, Python {platform.python_version()}, {platform.machine()}"
    )
    return "\n".join([*lines, "", f"{repetitions} tables for each line; {when}, {versions}."]), records


def main() -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--update", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    made, records = table(asked.repetitions)
    if asked.json is not None:
        asked.json.write_text(json.dumps(records, indent=1, ensure_ascii=False), encoding="utf-8")
    if asked.update is None:
        print(made)
        return
    page, n_tables = MARK.subn(lambda match: f"{match[1]}{made}{match[2]}", asked.update.read_text(encoding="utf-8"))
    if n_tables != 1:
        raise SystemExit(f"{asked.update}: expected the marks of the table once, found them {n_tables} times")
    asked.update.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
