"""Strict YAML: text to plain data and back, without tags, aliases, duplicate keys or the surprises of YAML 1.1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from streampca.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of a document down to a value."""

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
MAX_NODES = 10_000
MAX_INTEGER = 2**63 - 1

_STRING, _INT, _FLOAT, _BOOL, _NULL = (f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null"))
_INT_PATTERN = re.compile(r"[-+]?(?:0|[1-9][0-9]*)$")
_FLOAT_PATTERN = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*(?:[eE][-+]?[0-9]+)?"
    r"|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+"
    r"|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)
_BOOL_PATTERN = re.compile(r"(?:true|True|TRUE|false|False|FALSE)$")
_NULL_PATTERN = re.compile(r"(?:~|null|Null|NULL|)$")
_RESOLVERS: list[tuple[str, re.Pattern[str], list[str]]] = [
    (_INT, _INT_PATTERN, list("-+0123456789")),
    (_FLOAT, _FLOAT_PATTERN, list("-+.0123456789")),
    (_BOOL, _BOOL_PATTERN, list("tTfF")),
    (_NULL, _NULL_PATTERN, ["~", "n", "N", ""]),
]
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_PLAIN_KEY = re.compile(r"[\w-]+")


class _RefusedError(yaml.YAMLError):
    """YAML that is well formed, or nearly, but that a configuration may not hold."""

    def __init__(self, line: int, problem: str):
        super().__init__(problem)
        self.line = line
        self.problem = problem


class StrictLoader(yaml.SafeLoader):
    """Composes nodes with YAML 1.2 scalars; refuses tags, anchors, aliases, great depth and great numbers."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the base class declares it so

    def __init__(self, text: str):
        super().__init__(text)
        self._depth = 0
        self._n_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose the next node; the depth is checked before the recursion, so that it never runs out of stack."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _RefusedError(line, "anchors (&) and aliases (*) are refused: write the value out, or quote the text")
        if getattr(event, "tag", None) is not None:
            raise _RefusedError(line, "tags (!) are refused: write the plain value, or quote the text")
        self._n_nodes += 1
        if self._n_nodes > MAX_NODES:
            raise _RefusedError(line, f"more than {MAX_NODES} values, which is too many for a configuration")
        if not isinstance(event, yaml.CollectionStartEvent):
            return super().compose_node(parent, index)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _RefusedError(line, f"nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or the rules above would read as anything but text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _tag, _pattern, _first in _RESOLVERS:
    StrictLoader.add_implicit_resolver(_tag, _pattern, _first)
    _Dumper.add_implicit_resolver(_tag, _pattern, _first)


def decode(data: bytes, name: str) -> str:
    """Decode UTF-8; `name` stands in front of the error."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than the {MAX_BYTES // 1024} KiB that a configuration may have")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{name}: line {line}: not UTF-8 text: save the file as UTF-8") from None


def load_strict(text: str, name: str) -> object:
    """Turn one YAML document into dicts with text keys, lists, and scalars; null for an empty one.

    Raises
    ------
    ConfigError
        With one line that opens with `name` and gives the line of the text.
    """
    if len(text) > MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than the {MAX_BYTES // 1024} KiB that a configuration may have")
    if unprintable := _UNPRINTABLE.search(text):
        line = text.count("\n", 0, unprintable.start()) + 1
        raise ConfigError(f"{name}: line {line}: the control character {unprintable.group()!a} is refused")
    loader = StrictLoader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _plain(node, ())
    except _RefusedError as error:
        raise ConfigError(f"{name}: line {error.line}: {error.problem}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        what = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError(f"{name}: {where}not YAML: {_one_line(what)}") from None
    except (yaml.YAMLError, ValueError, OverflowError):
        # The scanner lets chr() and int() fail on escapes such as "\U00110000" and on absurd %YAML versions.
        raise ConfigError(f"{name}: line {loader.line + 1}: not YAML: an escape or directive cannot be read") from None


def dump(tree: object) -> str:
    """Write plain data as YAML that `load_strict` and any YAML 1.1 or 1.2 reader turn into the same data."""
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6))


def with_texts(value: object, written: Mapping[KeyPath, str], path: KeyPath = ()) -> object:
    """Return what pydantic dumps as YAML holds it, with the texts of `written` at their key paths."""
    if path in written:
        return written[path]
    if isinstance(value, dict):
        return {key: with_texts(item, written, (*path, key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_texts(item, written, (*path, index)) for index, item in enumerate(value)]
    return str(value) if isinstance(value, Path) else value


def spell_key(path: KeyPath) -> str:
    """Return ``model.kernel[0].gamma`` for ``("model", "kernel", 0, "gamma")``, on one line whatever the keys hold."""
    spelled = ""
    for part in path:
        if isinstance(part, int):
            spelled += f"[{part}]"
        else:
            shown = part if _PLAIN_KEY.fullmatch(part) and len(part) <= 60 else shorten(part)
            spelled += f".{shown}" if spelled else shown
    return spelled


def shorten(text: str) -> str:
    """Quote a text on one line, the middle of a long one left out."""
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}")


def has_control_characters(text: str, *, line_breaks: bool) -> bool:
    """Say whether a text holds control characters, `line_breaks` and tabs counted or not."""
    return bool(_CONTROL.search(text) or (line_breaks and re.search("[\t\n\r\u2028\u2029]", text)))


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)[:200]


def _plain(node: yaml.Node, path: KeyPath) -> object:
    """Turn a node into plain data; its depth was bounded when it was composed."""
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(child, (*path, position)) for position, child in enumerate(node.value)]
    return _scalar(node, path)


def _mapping(node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
    mapping: dict[str, object] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        inside = f" in {spell_key(path)}" if path else ""
        if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _STRING:
            shown = shorten(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "a list or mapping"
            raise _RefusedError(line, f"a key{inside} is {shown}: keys are text")
        key = str(_scalar(key_node, path))
        if key in lines:
            raise _RefusedError(line, f"{spell_key((*path, key))} is given twice, first on line {lines[key]}")
        lines[key] = line
        mapping[key] = _plain(value_node, (*path, key))
    return mapping


def _scalar(node: yaml.Node, path: KeyPath) -> object:
    text: str = node.value
    if node.tag == _NULL:
        return None
    if node.tag == _BOOL:
        return text.lower() == "true"
    if node.tag == _INT:
        # Longer than any 64-bit integer: int() itself refuses thousands of digits.
        if len(text) > 20 or abs(int(text)) > MAX_INTEGER:
            raise _RefusedError(node.start_mark.line + 1, f"{spell_key(path)} does not fit in 64 bits")
        return int(text)
    if node.tag == _FLOAT:
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if has_control_characters(text, line_breaks=False):
        raise _RefusedError(node.start_mark.line + 1, f"{spell_key(path) or 'a text'} holds a control character")
    return text
