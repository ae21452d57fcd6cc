"""A configuration before validation: the parsed file, the overrides put on it, and the one line that refuses it."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from streampca.errors import ConfigError
from streampca.redaction import is_hidden
from streampca.runs.config.yaml import MAX_BYTES, MAX_DEPTH, KeyPath, load_strict, require_size, shorten, spell_key
from streampca.storage.regular_files import open_regular

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_PRIVATE = (("source", "storage_options"), ("output", "storage_options"), ("cluster", "options"))


@dataclass(frozen=True)
class Document:
    """A configuration as it was written."""

    name: str
    """What errors call it: the path of the file."""
    tree: dict[str, object]
    """The plain data, references to environment variables unresolved."""
    overridden: dict[KeyPath, str] = field(default_factory=dict)
    """The key of the override that made each value which is not from the file."""
    derived: set[KeyPath] = field(default_factory=set)
    """Where a default was filled in that follows from another key."""

    @classmethod
    def read(cls, path: Path | str, overrides: Sequence[str] = ()) -> Document:
        """Read a file as `parse` does.

        Raises
        ------
        ConfigError
            If there is no such file, or it cannot be read, is too large or is not UTF-8.
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
        """Read a text strictly, put the overrides (``key.sub=value``) on it, fill in what other keys decide."""
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
        """Return what was written at a key path, or None."""
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
        """Return a description of the value at a key path on one line; of private options only the kind."""
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
        """Return the error that tells the first of `problems` in the order of the file, and the number of others.

        A problem is the rest of the sentence that opens with its key path, on one line and without values that must not be shown.
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
        """Fill in the defaults that other keys decide; before references are resolved, so that these are kept."""
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
            problems[path] = ": was left out of this file, as it may be secret: give it, best as ${NAME}"
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
    """Return a description of a value on one line, as YAML spells it."""
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
    plain = re.split(r"[?#]", plain, maxsplit=1)[0] if "://" in plain else plain.removeprefix("builtin:")
    stem = PurePosixPath(plain.replace("\\", "/")).stem
    return re.sub(r"[^\w.-]+", "-", stem).strip("-.")[:60] or "run"
