"""Strict YAML: text to plain data and back, without tags, aliases, duplicate keys or the surprises of YAML 1.1."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import yaml
from yaml.reader import ReaderError

from streampca.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
"""Keys and list indices from the top of a document down to a value."""

MAX_BYTES = 256 * 1024
MAX_DEPTH = 20
MAX_NODES = 10_000
MAX_INTEGER = 2**63 - 1

_STRING, _INT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:int"
_RESOLVERS = (
    ("int", r"[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9][0-9]*)\.[0-9]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|(?:0|[1-9][0-9]*)[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$",
        "-+.0123456789",
    ),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
)
"""Plain scalars of YAML 1.2 that are no text: tag, pattern, and the characters that they begin with."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_PLAIN_KEY = re.compile(r"[\w-]+")


class _RefusedError(yaml.MarkedYAMLError):
    """YAML that is well formed, or nearly, but that a configuration may not hold."""


class StrictLoader(yaml.SafeLoader):
    """Reads the scalars of YAML 1.2; refuses tags, anchors, aliases, keys given twice, great depth and great numbers."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the base class declares it so

    def __init__(self, text: str):
        super().__init__(text)
        self._path: KeyPath = ()
        self._n_nodes = 0
        self._lines: dict[KeyPath, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose the next node: an item at an index, the value of the key `index`, or a key of the mapping `parent`.

        Depth is checked before the recursion, so that it never runs out of stack.
        """
        event = self.peek_event()  # type: ignore[no-untyped-call]
        above, is_key = self._path, isinstance(parent, yaml.MappingNode) and index is None
        self._n_nodes += 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            self._refuse(event, "anchors (&) and aliases (*) are refused: write the value out, or quote the text")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, "tags (!) are refused: write the plain value, or quote the text")
        if self._n_nodes > MAX_NODES:
            self._refuse(event, f"more than {MAX_NODES} values, which is too many for a configuration")
        if is_key and not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, f"a key{self._inside()} is a list or mapping: keys are text")
        if index is not None:
            self._path = (*above, index.value if isinstance(index, yaml.Node) else index)
        if isinstance(event, yaml.CollectionStartEvent) and len(self._path) >= MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode):
            self._require_plain(node, is_key)
        self._path = above
        return node

    def _require_plain(self, node: yaml.ScalarNode, is_key: bool) -> None:
        """Refuse a scalar that no value can hold, and a key that is no text or was there before."""
        text: str = node.value
        if is_key and node.tag != _STRING:
            self._refuse(node, f"a key{self._inside()} is {shorten(text)}: keys are text")
        # Longer than any 64-bit integer: int() itself refuses thousands of digits.
        if node.tag == _INT and (len(text) > 20 or abs(int(text)) > MAX_INTEGER):
            self._refuse(node, f"{spell_key(self._path)} does not fit in 64 bits")
        if node.tag == _STRING and has_control_characters(text, line_breaks=False):
            self._refuse(node, f"{spell_key(self._path) or 'a text'} holds a control character")
        if is_key:
            path = (*self._path, text)
            if path in self._lines:
                self._refuse(node, f"{spell_key(path)} is given twice, first on line {self._lines[path]}")
            self._lines[path] = node.start_mark.line + 1

    def _inside(self) -> str:
        return f" in {spell_key(self._path)}" if self._path else ""

    def _refuse(self, place: Any, problem: str) -> NoReturn:
        raise _RefusedError(problem=problem, problem_mark=place.start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that YAML 1.1 or the rules above would read as anything but text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _name, _pattern, _first in _RESOLVERS:
    for _class in (StrictLoader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), list(_first))


def require_size(n_bytes: int, name: str) -> None:
    """Raise `ConfigError` for more bytes than a configuration may have; `name` stands in front."""
    if n_bytes > MAX_BYTES:
        raise ConfigError(f"{name}: larger than the {MAX_BYTES // 1024} KiB that a configuration may have")


def load_strict(text: str, name: str) -> object:
    """Turn one YAML document into dicts with text keys, lists, and scalars; null for an empty one.

    Raises
    ------
    ConfigError
        With one line that opens with `name` and gives the line of the text.
    """
    require_size(len(text.encode("utf-8", "surrogatepass")), name)
    line = 1
    try:
        loader = StrictLoader(text)
        try:
            return loader.get_single_data()
        finally:
            line = loader.line + 1
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        says = f"the control character {chr(error.character)!a} is refused"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else line
        says = " ".join(part for part in (error.context, error.problem) if part)
        if not isinstance(error, _RefusedError):
            says = f"not YAML: {''.join(c if c.isprintable() else ' ' for c in says)[:200]}"
    except (yaml.YAMLError, ValueError, OverflowError):
        # The scanner lets chr() and int() fail on escapes such as "\U00110000" and on absurd %YAML versions.
        says = "not YAML: an escape or directive cannot be read"
    raise ConfigError(f"{name}: line {line}: {says}")


def dump(tree: object) -> str:
    """Write plain data as YAML that `load_strict` and any YAML 1.1 or 1.2 reader turn into the same data."""
    return str(yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6))


def with_texts(value: Any, written: Mapping[KeyPath, str], path: KeyPath = ()) -> Any:
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
