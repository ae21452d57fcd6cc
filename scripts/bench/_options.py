"""What the command lines of the benchmarks share."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from pathlib import Path


def parser_of(description: str | None, *, components: int = 50, repeats: int = 3) -> argparse.ArgumentParser:
    """Return a parser of the number of components, the number of runs and the file of JSON."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--components", type=int, default=components)
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--out", type=Path, help="write JSON here")
    return parser


def add_peers(parser: argparse.ArgumentParser, default: str | None, of: str) -> None:
    """Add the options of a comparison with peers, whose names `of` lists; with a default of None all of them are taken."""
    parser.add_argument("--peers", default=default, help=f"comma-separated, of: {of}; empty for none")
    parser.add_argument("--memory", default="", help="ceiling for the fit")


def peers_of(parser: argparse.ArgumentParser, given: str | None, known: Collection[str]) -> tuple[str, ...]:
    """Return the peers that were asked for, all of the `known` ones for None; end the process with an error for others."""
    peers = tuple(known) if given is None else tuple(name for name in given.split(",") if name)
    if unknown := set(peers) - set(known):
        parser.error(f"unknown peers: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return peers


def add_contenders(parser: argparse.ArgumentParser, known: Collection[str], once: str = "") -> None:
    """Add the options of a comparison of the `known` contenders, of which `once` runs a single time."""
    parser.add_argument("--memory", default="", help="ceiling of the fit, such as 1GiB (default: that of the machine)")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds after which a contender is stopped")
    parser.add_argument("--contenders", default=",".join(known), help="(default: %(default)s)")
    parser.add_argument("--once", default=once, help="those that are slow and run once (default: %(default)s)")
    add_same_process(parser)


def add_same_process(parser: argparse.ArgumentParser) -> None:
    """Add the option that runs contenders in this process."""
    parser.add_argument("--same-process", action="store_true", help="run the contenders in this process, for tests")


def contenders_of(parser: argparse.ArgumentParser, given: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the contenders that were asked for; end the process with an error for others."""
    names = tuple(given.split(","))
    if names[0] != "fit" or set(names) - set(known):
        parser.error(f"--contenders begins with fit; there are {', '.join(known)}")
    return names
