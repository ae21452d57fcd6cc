"""Commands and their group: common options, printing of results, complete help texts, suggestions for mistyped names."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import click

from streampca.cli.failures import STATUSES
from streampca.cli.session import Result, Session
from streampca.suggestions import nearest

_COMMON = (
    click.Option(["--json", "as_json"], is_flag=True, help="Print the result, or the error, as one JSON object."),
    click.Option(["-q", "--quiet"], is_flag=True, help="Show no progress and no log lines on stderr."),
    click.Option(
        ["-v", "--verbose"], count=True, help="Log the phases of the work to stderr; -vv also blocks and requests."
    ),
    click.Option(
        ["--log-file"],
        type=click.Path(dir_okay=False, path_type=Path),
        help="Append the log, with times, to this file; -vv also blocks and requests.",
    ),
)
"""Options of every command."""


class Command(click.Command):
    """A command that returns a `Result`, which is printed as text or, with ``--json``, as JSON.

    Parameters
    ----------
    section : str
        Heading of the command in the help of the program.
    examples : sequence of str
        Calls for the help of the command.
    statuses : sequence of int
        Exit statuses that it ends with, beside 0 to 2.
    """

    def __init__(
        self, *args: Any, section: str, examples: tuple[str, ...], statuses: tuple[int, ...] = (), **kwargs: Any
    ):
        super().__init__(*args, **kwargs)
        self.section, self.examples, self.statuses = section, examples, (0, 1, 2, *statuses, 130)
        self.params = [*self.params, *_COMMON]

    def invoke(self, ctx: click.Context) -> None:
        """Call the command and print what it returns."""
        session = ctx.ensure_object(Session)
        session.begin(ctx.command_path, **{str(option.name): ctx.params.pop(str(option.name)) for option in _COMMON})
        result = super().invoke(ctx)
        if isinstance(result, Result):
            session.print(result)

    def get_short_help_str(self, limit: int = 45) -> str:
        """Return the first paragraph of the help, whole."""
        return " ".join(inspect.cleandoc(self.help or "").partition("\n\n")[0].split()).rstrip(".")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the command, then those that all commands have."""
        records: dict[str, list[tuple[str, str]]] = {"Options": [], "Options of all commands": []}
        for each in self.get_params(ctx):
            if isinstance(each, click.Argument):  # described by the text
                continue
            common = each in _COMMON or "--help" in each.opts
            if (record := each.get_help_record(ctx)) is not None:
                records["Options of all commands" if common else "Options"].append(record)
        for heading, rows in records.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples and exit statuses."""
        with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
            for example in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")
        _write_statuses(formatter, self.statuses)


class Group(click.Group):
    """The program: its commands by sections, and its exit statuses."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is called; the error for an unknown one names the nearest."""
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and name not in self.commands:
            near = nearest(name, self.commands, 2)
            also = f": did you mean {' or '.join(near)}?" if near else ""
            if name in ("publish", "fetch"):
                also = (
                    ": it was removed; copy the directory like any other, with obstore or the command line of the store"
                )
            raise click.UsageError(f"No such command {name!r}{also}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by sections, in the order in which they were added."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            section = command.section if isinstance(command, Command) else "Others"
            sections.setdefault(section, []).append((name, command.get_short_help_str()))
        for section, rows in sections.items():
            with formatter.section(section):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit statuses."""
        _write_statuses(formatter, tuple(STATUSES))


def _write_statuses(formatter: click.HelpFormatter, statuses: tuple[int, ...]) -> None:
    with formatter.section("Exit status"):
        formatter.write_dl([(str(status), STATUSES[status]) for status in statuses])
