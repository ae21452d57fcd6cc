"""Help texts, nearest names of mistyped ones, and completions."""

from __future__ import annotations

import re

import pytest
from facade import cli
from stores import Command


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_help_of_a_command_is_whole(name: str, call: Command) -> None:
    text = call(name, "--help").out
    assert text.startswith(f"Usage: streampca {name} ")
    sections = re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)
    assert sections[-2:] in (["Example", "Exit status"], ["Examples", "Exit status"])
    assert f"\n  streampca {name} " in text[text.index("\nExample") :]
    for status in ("0", "1", "2", "130"):
        assert re.search(rf"^  {status} +\w", text, re.MULTILINE)
    options = re.findall(r"^  (-.*?)(?=\n  -|\n\n)", text, re.MULTILINE | re.DOTALL)
    assert len(options) >= 5
    for described in options:
        assert described.endswith((".", "]")), described
    for argument in re.findall(r"[A-Z]{3,}", text.splitlines()[0].replace("[OPTIONS]", "")):
        assert argument in text.partition("\n")[2], "arguments are described"
    summary = re.search(rf"^  {name} +(.*)$", call("--help").out, re.MULTILINE)
    assert summary is not None
    assert " ".join(summary.group(1).split()) in " ".join(text.split())
    assert "..." not in text.replace("MODEL...", "")


def test_help_of_the_program_has_every_command_in_a_section(call: Command) -> None:
    text = call("--help").out
    listed = re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE)
    assert sorted(listed) == sorted(cli.commands)
    assert re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE) == [*("Options", "Runs", "Stores", "Models", "Exit status")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rnu"], "No such command 'rnu': did you mean run?; see streampca --help"),
        (["zzz"], "No such command 'zzz'; see streampca --help"),
        (["run", "--fresj", "a"], "did you mean --fresh"),
        (["plan", "--sett", "c.yaml"], "did you mean --quiet or --set?"),
        (["inspect", "x", "--decode", "atuo"], "'atuo' is not one of 'auto', 'raw'"),
    ],
)
def test_mistyped_names(arguments: list[str], words: str, call: Command) -> None:
    call(*arguments).refused(2, words)


def completions(
    words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, ...]]:
    """Return what bash is given for a line, as kinds and values."""
    parts = words.split(" ")
    monkeypatch.setenv("_STREAMPCA_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(parts) - 1))
    with pytest.raises(SystemExit):
        cli.main(prog_name="streampca", standalone_mode=False)
    return [tuple(line.split(",")) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("streampca tr", [("plain", "transform")]),
        ("streampca run --fr", [("plain", "--fresh")]),
        ("streampca run --set model.solv", [("plain", "model.solver=")]),
        ("streampca run --set resources.th", [("plain", "resources.threads=")]),
        ("streampca inspect builtin:ir", [("plain", "builtin:iris")]),
        ("streampca inspect data", [("file", "data")]),
        ("streampca run conf", [("file", "conf")]),
    ],
)
def test_completions(
    words: str,
    expected: list[tuple[str, ...]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert completions(words, capsys, monkeypatch) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_STREAMPCA_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit):
        cli.main(prog_name="streampca", standalone_mode=False)
    assert "_STREAMPCA_COMPLETE" in capsys.readouterr().out
