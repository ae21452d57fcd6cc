"""Directives whose text follows from the code: help of the commands, fields of dataclasses, exceptions with their exit status."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from importlib import import_module
from typing import Any, ClassVar

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from streampca import errors
from streampca.cli import cli


class _Generated(SphinxDirective):
    """A directive that stands for the Markdown that `markdown` returns."""

    def markdown(self) -> str:
        """Return what stands in place of the directive."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Parse the text."""
        node = nodes.section()
        node.document = self.state.document
        lines = StringList(self.markdown().splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, node, match_titles=True)
        return node.children


class Commands(_Generated):
    """The help of every command."""

    def markdown(self) -> str:
        """Return a section for each command."""
        context = click.Context(cli, info_name="streampca", **cli.context_settings)
        return "\n".join(_helps(cli, context))


def _helps(group: click.Group, above: click.Context) -> Iterator[str]:
    for name in sorted(group.list_commands(above)):
        command = group.get_command(above, name)
        if command is None or command.hidden:
            continue
        with click.Context(command, info_name=name, parent=above, max_content_width=100) as context:
            context.terminal_width = 100
            yield f"### {name}\n\n```text\n{command.get_help(context)}\n```\n"
            if isinstance(command, click.Group):
                yield from _helps(command, context)


class Fields(_Generated):
    """The fields of a dataclass, named as `module:class`, with the sentences below them."""

    required_arguments: ClassVar[int] = 1

    def markdown(self) -> str:
        """Return a table."""
        module, name = self.arguments[0].split(":")
        rows = _fields(getattr(import_module(module), name))
        return "\n".join(["| key | type | meaning |", "|---|---|---|", *rows])


def _fields(cls: type[Any]) -> Iterator[str]:
    body = ast.parse(inspect.getsource(cls)).body[0].body  # type: ignore[attr-defined]
    for at, node in enumerate(body):
        if isinstance(node, ast.AnnAssign):
            text = ast.literal_eval(body[at + 1].value)
            kind = ast.unparse(node.annotation).replace("Interval", "(lower, upper)")
            yield f"| `{ast.unparse(node.target)}` | {_cell(kind)} | {_cell(text)} |"


class Exceptions(_Generated):
    """Every exception with its exit status."""

    def markdown(self) -> str:
        """Return a table."""
        rows = [
            f"| {cls.exit_status} | {{py:exc}}`~streampca.errors.{name}` | {_cell(inspect.getdoc(cls).splitlines()[0])} |"
            for name in errors.__all__
            for cls in [getattr(errors, name)]
        ]
        return "\n".join(["| status | exception | raised when |", "|---|---|---|", *sorted(rows, key=_status)])


def _status(row: str) -> tuple[int, str]:
    return int(row.split("|")[1]), row


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("``", "`").split())


def setup(app: Any) -> dict[str, bool]:
    """Register the directives."""
    app.add_directive("commands", Commands)
    app.add_directive("fields", Fields)
    app.add_directive("exceptions", Exceptions)
    return {"parallel_read_safe": True}
