"""From what pydantic refuses to sentences: what was found, what is allowed, the nearest key."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from streampca.runs.config.document import Document, Problem
from streampca.runs.config.yaml import KeyPath, spell_key

_MOVED = {"random_state": "seed", "n_jobs": "resources.threads", "n_threads": "resources.threads"}
"""Names of estimator parameters that a file holds under another name."""


def problems_of(error: ValidationError, document: Document, root: type[BaseModel]) -> list[Problem]:
    """Turn every refusal of `root` into a problem; values come from the document as written, never from pydantic."""
    refusals = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [_problem(refusal["type"], refusal["loc"], refusal["msg"], document, root) for refusal in refusals]
    return list({problem.path: problem for problem in reversed(problems)}.values())


def _problem(kind: str, place: KeyPath, message: str, document: Document, root: type[BaseModel]) -> Problem:
    path = _as_written(place[:-1] if kind == "missing" else place, document, root)
    if kind == "missing":
        path = (*path, place[-1])
        return Problem(path, f" is missing, allowed: {_allowed(path, document, root)}")
    if kind.startswith("union_tag"):
        path = (*path, "kind")
    if kind == "extra_forbidden":
        return Problem(path, _unknown(path, document, root))
    if kind == "rule":
        return Problem(path, f": {message}" if path else message)
    return Problem(path, f": found {document.describe_at(path)}, allowed: {_allowed(path, document, root)}")


def _as_written(place: KeyPath, document: Document, root: type[BaseModel]) -> KeyPath:
    """Turn pydantic's place into a key path: without the kind of a section, or the index of an item written alone."""
    if len(place) > 1 and len(sections_in(root.model_fields.get(str(place[0])))) > 1:
        place = (place[0], *place[2:])
    path: KeyPath = ()
    for part in place:
        node = document.value_at(path)
        if (isinstance(node, dict) and part in node) or (isinstance(node, list) and isinstance(part, int)):
            path = (*path, part)
    return path


def _unknown(path: KeyPath, document: Document, root: type[BaseModel]) -> str:
    """Say that a key is unknown, which one is nearest, and which ones there are."""
    section = _section_at(path[:-1], document, root) or root
    keys = list(section.model_fields)
    parent = f"of {spell_key(path[:-1])}" if len(path) > 1 else "of the file"
    says = f" is not a key {parent}"
    key = str(path[-1])
    close = get_close_matches(key.lower(), keys, n=1)
    kinds = _other_kinds(key, path, root)
    elsewhere = {spell_key((*place, key)) for place, other in _all_sections(root, ()) if key in other.model_fields}
    if kinds:
        says += f" of kind {document.value_at((*path[:-1], 'kind'))}: it belongs to kind {', '.join(kinds)}"
    elif key in _MOVED:
        says += f": did you mean {_MOVED[key]}?"
    elif len(elsewhere) == 1:
        says += f": did you mean {elsewhere.pop()}?"
    elif close:
        says += f": did you mean {close[0]}?"
    return f"{says} (keys: {', '.join(keys)})"


def _other_kinds(key: str, path: KeyPath, root: type[BaseModel]) -> list[str]:
    """Name the kinds of the same section that know the key."""
    if len(path) != 2:
        return []
    sections = sections_in(root.model_fields.get(str(path[0])))
    return [kind for section in sections if key in section.model_fields for kind in _kinds(section)]


def _allowed(path: KeyPath, document: Document, root: type[BaseModel]) -> str:
    """Say what a key may hold, from its description or its annotation."""
    while path and isinstance(path[-1], int):
        path = path[:-1]
    above = path[:-1]
    if path[-1:] == ("kind",) and len(path) == 2:
        sections = sections_in(root.model_fields.get(str(path[0])))
        return ", ".join(kind for section in sections for kind in _kinds(section))
    section = _section_at(above, document, root)
    field = section.model_fields.get(str(path[-1])) if section and path else None
    if field is None:
        return "another value"
    if field.description:
        return field.description
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(value) for value in get_args(field.annotation))
    sections = sections_in(field)
    if len(sections) > 1:
        return (
            f"a mapping with kind ({', '.join(kind for section in sections for kind in _kinds(section))}) and its keys"
        )
    return f"a mapping with keys {', '.join(key for section in sections for key in section.model_fields)}"


def _section_at(path: KeyPath, document: Document, root: type[BaseModel]) -> type[BaseModel] | None:
    """Return the class of the mapping at a key path, its kind read from the document."""
    section: type[BaseModel] = root
    for position, part in enumerate(path, start=1):
        if isinstance(part, int):
            continue
        choices = sections_in(section.model_fields.get(part))
        kind = document.value_at((*path[:position], "kind"))
        choices = [choice for choice in choices if len(choices) == 1 or kind in _kinds(choice)]
        if not choices:
            return None
        section = choices[0]
    return section


def _all_sections(root: type[BaseModel], path: KeyPath) -> Iterator[tuple[KeyPath, type[BaseModel]]]:
    yield path, root
    for key, field in root.model_fields.items():
        for section in sections_in(field):
            yield from _all_sections(section, (*path, key))


def sections_in(annotation: object) -> list[type[BaseModel]]:
    """Return the classes of mappings that a field or an annotation admits."""
    if isinstance(annotation, FieldInfo):
        annotation = annotation.annotation
    if inner := get_args(annotation):
        return [section for part in inner for section in sections_in(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _kinds(section: type[BaseModel]) -> tuple[str, ...]:
    field = section.model_fields.get("kind")
    return get_args(field.annotation) if field else ()
