"""From what pydantic refuses to sentences: what was found, what is allowed, the nearest key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from streampca.runs.config.document import Document
from streampca.runs.config.yaml import KeyPath, spell_key

_MOVED = {
    "random_state": "seed",
    "n_jobs": "resources.threads",
    "n_threads": "resources.threads",
    "threshold": "model.n_components.threshold",
    "frobenius": "model.n_components.frobenius",
}
"""Names of estimator parameters that a file holds under another name, and of forms of values."""


def problems_of(error: ValidationError, document: Document, root: type[BaseModel]) -> dict[KeyPath, str]:
    """Return the sentence for each key path that `root` refuses; values come from the document as written, never from pydantic."""
    problems: dict[KeyPath, str] = {}
    for refusal in error.errors(include_url=False, include_context=False, include_input=False):
        path, says = _problem(refusal["type"], refusal["loc"], refusal["msg"], document, root)
        problems.setdefault(path, says)
    return problems


def _problem(kind: str, place: KeyPath, message: str, document: Document, root: type[BaseModel]) -> tuple[KeyPath, str]:
    """Return the key path and the sentence of an error at a place of pydantic.

    The place also holds the kind of a section, the index of an item that is written alone, and, below a value, the branches of its
    type; the key path has none of these.
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
    """Say that a key is unknown, which one is nearest, and which ones there are."""
    key, keys = str(path[-1]), list(section.model_fields)
    says = f" is not a key {f'of {spell_key(path[:-1])}' if len(path) > 1 else 'of the file'}"
    elsewhere = {spell_key((*place, key)) for place, other in all_sections(root) if key in other.model_fields}
    if kinds := _all_kinds(other for other in siblings if key in other.model_fields):
        says += f" of kind {_kinds(section)[0]}: it belongs to kind {', '.join(kinds)}"
    elif key in _MOVED:
        says += f": did you mean {_MOVED[key]}?"
    elif len(elsewhere) == 1:
        says += f": did you mean {elsewhere.pop()}?"
    elif close := get_close_matches(key.lower(), keys, n=1):
        says += f": did you mean {close[0]}?"
    return f"{says} (keys: {', '.join(keys)})"


def _allowed(field: FieldInfo) -> str:
    """Say what a key may hold, from its description or its annotation."""
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
    for key, field in root.model_fields.items():
        for section in sections_in(field):
            yield from all_sections(section, (*path, key))


def sections_in(annotation: object) -> list[type[BaseModel]]:
    """Return the classes of mappings that a field or an annotation admits."""
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
