"""Entries of the description of a store in words: arrays, dimensions, variables, and the source that reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from streampca.typing import Json


def _array(entry: Json) -> str:
    shape, chunks = (
        " x ".join(f"{n:,}" for n in entry[key]) or "a single value" if key in entry else ""
        for key in ("shape", "chunks")
    )
    named = f" ({', '.join(entry['dims'])})" if "dims" in entry else ""
    packed = ", ".join(f"{name}={value}" for name, value in entry.get("packing", {}).items())
    more = [*([entry["units"]] if "units" in entry else []), *([f"packed ({packed})"] if packed else [])]
    more += [f"chunks {chunks}"] if chunks else []
    return ", ".join([f"{entry['name']}: {shape}{named}", entry["dtype"], *more])


def _dimension(entry: Json) -> str:
    span = f", {entry['first']} to {entry['last']}" if "first" in entry else ""
    units = f" {entry['units']}" if "units" in entry else ""
    return f"{entry['name']}: {entry['size']:,}{span}{units}" + (f" ({entry['of']})" if "of" in entry else "")


def _variable(entry: Json) -> str:
    shape = " x ".join(f"{n:,}" for n in entry["shape"]) or "a single value"
    units = f", {entry['units']}" if "units" in entry else ""
    return f"{entry['name'] or 'the array'}: {shape} ({', '.join(entry['dims'])}){units}"


def _fragment(entry: Json) -> str:
    return f"{entry['name']}: {entry['n_rows']:,} rows, {entry['n_bytes']:,} bytes"


IN_WORDS: dict[str, Callable[[Json], str]] = {
    "arrays": _array,
    "dimensions": _dimension,
    "variables": _variable,
    "fragments": _fragment,
}
"""Functions that return an entry of a list in words, by the key of the list."""


def source_in_words(keys: Mapping[str, object]) -> str:
    """Return keys of a source as YAML on one line."""
    return "{" + ", ".join(f"{key}: {_plain(value)}" for key, value in keys.items()) + "}"


def _plain(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_plain, value))}]"
    text = str(value)
    return text if text.replace("_", "").replace("/", "").replace(".", "").isalnum() else json.dumps(text)
