"""Configuration files as text: strict YAML with line numbers, overrides, and messages about refused values."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NoReturn, TypeAlias, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from yaml.reader import ReaderError

from streampca.errors import ConfigError
from streampca.redaction import is_hidden
from streampca.storage.files import open_regular
from streampca.suggestions import nearest

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
"""Plain scalars of YAML 1.2 that are not text: tag, pattern, and possible first characters."""
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_PLAIN_KEY = re.compile(r"[\w-]+")


class _RefusedError(yaml.MarkedYAMLError):
    """Well-formed, or nearly well-formed, YAML that a configuration may not contain."""


class StrictLoader(yaml.SafeLoader):
    """Read the scalars of YAML 1.2; refuse tags, anchors, aliases, duplicate keys, deep nesting and huge numbers."""

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
            self._refuse(event, "anchors (&) and aliases (*) are not allowed: write the value out, or quote the text")
        if getattr(event, "tag", None) is not None:
            self._refuse(event, "tags (!) are not allowed: write the plain value, or quote the text")
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
        """Refuse a scalar that no value can hold, a key that is not text, and a duplicate key."""
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
    """Quote every text that YAML 1.1 or the rules above would not read as text."""

    def ignore_aliases(self, data: object) -> bool:
        return True


for _name, _pattern, _first in _RESOLVERS:
    for _class in (StrictLoader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), list(_first))


def require_size(n_bytes: int, name: str) -> None:
    """Raise `ConfigError` if a configuration has too many bytes; the message begins with `name`."""
    if n_bytes > MAX_BYTES:
        raise ConfigError(f"{name}: larger than the {MAX_BYTES // 1024} KiB that a configuration may have")


def load_strict(text: str, name: str) -> object:
    """Turn one YAML document into dicts with text keys, lists, and scalars; null for an empty one.

    Raises
    ------
    ConfigError
        On one line that begins with `name` and gives the line number.
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
        says = f"the control character {chr(error.character)!a} is not allowed"
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
    """Return the dump of pydantic as plain data for YAML, with the texts of `written` at their key paths."""
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
    """Quote a text on one line, without the middle of a long one."""
    return repr(text if len(text) <= 60 else f"{text[:40]}…{text[-10:]}")


def has_control_characters(text: str, *, line_breaks: bool) -> bool:
    """Return whether a text has control characters, with or without `line_breaks` and tabs."""
    return bool(_CONTROL.search(text) or (line_breaks and re.search("[\t\n\r\u2028\u2029]", text)))


_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PRIVATE = (("source", "storage_options"), ("output", "storage_options"), ("cluster", "options"))


@dataclass(frozen=True)
class Document:
    """A configuration before validation."""

    name: str
    """Name in error messages: the path of the file."""
    tree: dict[str, object]
    """The plain data, with references to environment variables unresolved."""
    overridden: dict[KeyPath, str] = field(default_factory=dict)
    """Key of the override for each value that does not come from the file."""
    derived: set[KeyPath] = field(default_factory=set)
    """Key paths of defaults that follow from another key."""

    @classmethod
    def read(cls, path: Path | str, overrides: Sequence[str] = ()) -> Document:
        """Read a file as `parse` does.

        Raises
        ------
        ConfigError
            If the file does not exist, cannot be read, is too large or is not UTF-8.
        """
        name = str(path) if str(path).isprintable() and str(path) else shorten(str(path))
        try:
            with open_regular(path) as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else "not the path of a file"
            raise ConfigError(f"{name}: {reason}: give the path of a YAML file") from None
        require_size(len(data), name)
        try:
            return cls.parse(data.decode("utf-8"), name, overrides)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise ConfigError(f"{name}: line {line}: not UTF-8 text: save the file as UTF-8") from None

    @classmethod
    def parse(cls, text: str, name: str, overrides: Sequence[str] = ()) -> Document:
        """Parse a text strictly, apply the overrides (``key.sub=value``) and fill in defaults that follow from other keys."""
        name = name if name.isprintable() else shorten(name)
        tree = load_strict(text, name)
        if tree is None:
            tree = {}
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{name}: found {describe(tree)} at the top, allowed: keys such as source, each with a value"
            )
        document = cls(name, tree)
        for override in overrides:
            document._override(override)
        document._fill_in()
        return document

    def value_at(self, path: KeyPath) -> object:
        """Return the value in the file at a key path, or None."""
        node: object = self.tree
        for part in path:
            if isinstance(node, dict):
                node = node.get(str(part))
            elif isinstance(node, list) and isinstance(part, int) and part < len(node):
                node = node[part]
            else:
                return None
        return node

    def describe_at(self, path: KeyPath) -> str:
        """Return a one-line description of the value at a key path; for private options only its kind."""
        value = self.value_at(path)
        if any(path[:2] == private for private in _PRIVATE) and not isinstance(value, dict | list | None):
            return f"{'text' if isinstance(value, str) else 'a value'} that is not shown"
        return describe(value)

    def resolve(self) -> tuple[object, dict[KeyPath, str]]:
        """Fill in environment variables; also return the texts that hold references, by key path."""
        problems: dict[KeyPath, str] = {}
        written: dict[KeyPath, str] = {}
        resolved = self._resolve(self.tree, (), written, problems)
        if problems:
            raise self.refusal(problems)
        return resolved, written

    def refusal(self, problems: Mapping[KeyPath, str]) -> ConfigError:
        """Return the error for the first of `problems` in the order of the file, with the number of others.

        A problem is the text after its key path, on one line and without values that must not be shown.
        """
        problems = {path: says for path, says in problems.items() if path not in self.derived} or problems
        first = next((path for path in _paths(self.tree, ()) if path in problems), next(iter(problems)))
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        return ConfigError(f"{self.name}: {self._subject(first)}{problems[first]}{more}")

    def _subject(self, path: KeyPath) -> str:
        for length in range(len(path), 0, -1):
            if key := self.overridden.get(path[:length]):
                return f"--set {key}" if key == spell_key(path) else f"--set {key}: {spell_key(path)}"
        return spell_key(path)

    def _override(self, override: str) -> None:
        key, equals, text = override.partition("=")
        parts = tuple(part.strip() for part in key.split("."))
        spelled = spell_key(parts) if all(parts) else shorten(key)
        if not equals or not all(parts) or len(parts) > MAX_DEPTH:
            raise ConfigError(f"{self.name}: --set {spelled}: write --set key.sub=value")
        value = load_strict(text, f"{self.name}: --set {spelled}")
        node = self.tree
        made: KeyPath = parts
        for position, part in enumerate(parts[:-1], start=1):
            if part not in node:
                made = min(made, parts[:position], key=len)
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                inside, what = spell_key(parts[:position]), self.describe_at(parts[:position])
                raise ConfigError(f"{self.name}: --set {spelled}: {inside} is {what}, which has no keys")
            node = child
        node[parts[-1]] = value
        self.overridden[made] = self.overridden[parts] = spelled

    def _fill_in(self) -> None:
        """Fill in the defaults that follow from other keys, before references are resolved, so that they remain references."""
        source = self.tree.setdefault("source", {})
        for key, kind in (("model", "pca"), ("cluster", "threads")):
            section = self.tree.setdefault(key, {})
            if isinstance(section, dict):
                section.setdefault("kind", kind)
        if self.tree.get("name") is None:
            self.tree["name"] = _name_of(source.get("path") if isinstance(source, dict) else None)
            self.derived.add(("name",))
        output = self.tree.setdefault("output", {})
        if isinstance(output, dict) and output.get("directory") is None:
            output["directory"] = f"runs/{self.tree['name']}"
            self.derived.add(("output", "directory"))
        model = self.tree.get("model")
        if isinstance(output, dict) and isinstance(model, dict) and model.get("group_by") is not None:
            output.setdefault("scores", False)

    def _resolve(
        self, node: object, path: KeyPath, written: dict[KeyPath, str], problems: dict[KeyPath, str]
    ) -> object:
        if isinstance(node, dict):
            return {key: self._resolve(value, (*path, key), written, problems) for key, value in node.items()}
        if isinstance(node, list):
            return [self._resolve(value, (*path, index), written, problems) for index, value in enumerate(node)]
        if isinstance(node, float) and not math.isfinite(node):
            problems[path] = f": found {self.describe_at(path)}, allowed: a finite number"
        if not isinstance(node, str):
            return node
        if is_hidden(node, in_options="storage_options" in path):
            problems[path] = ": was left out of this file, as it may be secret: give it, preferably as ${NAME}"
        names = _REFERENCE.findall(node)
        unset = [name for name in names if name not in os.environ]
        if "${" in _REFERENCE.sub("", node):
            problems[path] = ": a ${ that opens no reference: write ${NAME}, in letters, digits and _"
        elif unset:
            problems[path] = f": the environment variable {unset[0][:60]} is not set"
        elif names:
            written[path] = node
            return _REFERENCE.sub(lambda match: os.environ[match[1]], node)
        return node


def describe(value: object) -> str:
    """Return a one-line description of a value in the spelling of YAML."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text {shorten(value)}"
    if isinstance(value, dict | list):
        return ("an empty " if not value else "a ") + ("mapping" if isinstance(value, dict) else "list")
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    return repr(value)


def _paths(node: object, path: KeyPath) -> Iterator[KeyPath]:
    """Yield the key path of every value in the order of the file."""
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(node, dict | list):
        items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in items:
        yield (*path, key)
        yield from _paths(value, (*path, key))


def _name_of(path: object) -> str:
    """Return the stem of a path or URL as a name; a reference gives its variable's name, never its value."""
    if not isinstance(path, str):
        return "run"
    plain = _REFERENCE.sub(lambda match: match.group(1).lower(), path)
    plain = re.split(r"[?#]", plain, maxsplit=1)[0] if "://" in plain else re.sub("^(builtin|icechunk):", "", plain)
    stem = PurePosixPath(plain.replace("\\", "/")).stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.")[:60] or "run"


_MOVED = {
    "random_state": "seed",
    "n_jobs": "resources.threads",
    "n_threads": "resources.threads",
    "threshold": "model.n_components.threshold",
    "frobenius": "model.n_components.frobenius",
}
"""Keys of the file for estimator parameters with other names, and for forms of values."""


def problems_of(error: ValidationError, document: Document, root: type[BaseModel]) -> dict[KeyPath, str]:
    """Return a sentence for each key path that `root` refuses; values come from the document, never from pydantic."""
    problems: dict[KeyPath, str] = {}
    for refusal in error.errors(include_url=False, include_context=False, include_input=False):
        path, says = _problem(refusal["type"], refusal["loc"], refusal["msg"], document, root)
        problems.setdefault(path, says)
    return problems


def _problem(kind: str, place: KeyPath, message: str, document: Document, root: type[BaseModel]) -> tuple[KeyPath, str]:
    """Return the key path and the sentence of an error of pydantic.

    The location in pydantic also contains the kind of a section, the index of an item given without a list and, below a
    value, the branches of its type; the key path does not.
    """
    path: KeyPath = ()
    field: FieldInfo | None = None
    section: type[BaseModel] | None = root
    holder, siblings, sections = root, [root], [root]
    for part in place:
        if isinstance(part, int):
            path = (*path, part) if isinstance(document.value_at(path), list) else path
        elif section is None:
            section = next(each for each in sections if part in _kinds(each))
        elif not isinstance(document.value_at(path), dict):  # a kernel that is written as its name
            break
        else:
            path, field = (*path, part), section.model_fields.get(part)
            holder, siblings, sections = section, sections, sections_in(field)
            if not sections:
                break
            section = sections[0] if len(sections) == 1 else None
    if kind == "rule":
        return path, f": {message}" if path else message
    if field is None:
        return path, _unknown(path, holder, siblings, root)
    if kind == "missing":
        return path, f" is missing, allowed: {_allowed(field)}"
    if kind.startswith("union_tag"):
        path = (*path, "kind")
        return path, f": found {document.describe_at(path)}, allowed: {', '.join(_all_kinds(sections))}"
    return path, f": found {document.describe_at(path)}, allowed: {_allowed(field)}"


def _unknown(path: KeyPath, section: type[BaseModel], siblings: list[type[BaseModel]], root: type[BaseModel]) -> str:
    """Return the message for an unknown key, with the nearest key and all known keys."""
    key, keys = str(path[-1]), list(section.model_fields)
    says = f" is not a key {f'of {spell_key(path[:-1])}' if len(path) > 1 else 'of the file'}"
    elsewhere = {spell_key((*place, key)) for place, other in all_sections(root) if key in other.model_fields}
    if kinds := _all_kinds(other for other in siblings if key in other.model_fields):
        says += f" of kind {_kinds(section)[0]}: it belongs to kind {', '.join(kinds)}"
    elif key in _MOVED:
        says += f": did you mean {_MOVED[key]}?"
    elif len(elsewhere) == 1:
        says += f": did you mean {elsewhere.pop()}?"
    elif close := nearest(key, keys):
        says += f": did you mean {close[0]}?"
    return f"{says} (keys: {', '.join(keys)})"


def _allowed(field: FieldInfo) -> str:
    """Return the allowed values of a key, from its description or its annotation."""
    if field.description:
        return field.description
    if get_origin(field.annotation) is Literal:
        return ", ".join(map(str, get_args(field.annotation)))
    sections = sections_in(field)
    if len(sections) > 1:
        return f"a mapping with kind ({', '.join(_all_kinds(sections))}) and its keys"
    return f"a mapping with keys {', '.join(key for section in sections for key in section.model_fields)}"


def all_sections(root: type[BaseModel], path: KeyPath = ()) -> Iterator[tuple[KeyPath, type[BaseModel]]]:
    """Yield the key path and the class of each mapping, from the top."""
    yield path, root
    for key, held in root.model_fields.items():
        for section in sections_in(held):
            yield from all_sections(section, (*path, key))


def sections_in(annotation: object) -> list[type[BaseModel]]:
    """Return the classes of mappings that a field or an annotation allows."""
    if isinstance(annotation, FieldInfo):
        annotation = annotation.annotation
    if inner := get_args(annotation):
        return [section for part in inner for section in sections_in(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _all_kinds(sections: Iterable[type[BaseModel]]) -> list[str]:
    return [kind for section in sections for kind in _kinds(section)]


def _kinds(section: type[BaseModel]) -> tuple[str, ...]:
    field = section.model_fields.get("kind")
    return get_args(field.annotation) if field else ()
