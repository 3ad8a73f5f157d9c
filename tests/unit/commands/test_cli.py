"""What a command raises becomes one line on stderr, what to do next, and an exit code; never a traceback."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from pdctl.cli import Commands
from pdctl.commands.options import seconds
from pdctl.protocol.errors import Exit, PdctlError


def run(error: BaseException | int | None) -> tuple[int, str]:
    """Run a command that raises or returns ``error``; returns the exit code and what it wrote."""
    app = typer.Typer(
        cls=type("One", (Commands,), {"get_command": lambda self, ctx, name: command, "list_commands": list})
    )

    @app.callback()
    def callback() -> None: ...

    inner = typer.Typer()

    @inner.command()
    def one() -> int | None:
        if isinstance(error, BaseException):
            raise error
        return error

    command = typer.main.get_command(inner)
    result = CliRunner().invoke(app, ["one"])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (None, 0, ""),
        (3, 3, ""),
        (typer.Exit(5), 5, ""),
        (
            PdctlError("no ranks found", "start some", Exit.UNREACHABLE),
            4,
            "pdctl: no ranks found\n  Next: Start some\n",
        ),
        (PdctlError("not armed", code=Exit.REFUSED), 5, "pdctl: not armed\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_exit_codes(error: BaseException | int | None, code: int, text: str) -> None:
    assert run(error) == (code, text)


def test_an_error_of_its_own_is_inconclusive_and_says_how_to_see_more() -> None:
    code, text = run(ZeroDivisionError("division by zero"))
    assert code == Exit.PARTIAL
    assert "ZeroDivisionError: division by zero" in text
    assert "PDCTL_DEBUG=1" in text
    assert "Traceback" not in text


def test_debugging_shows_where_it_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_DEBUG", "1")
    assert run(ZeroDivisionError("division by zero"))[0] == 1


@pytest.mark.parametrize(
    ("text", "value"), [("10", 10.0), ("2.5", 2.5), ("500ms", 0.5), ("1m30s", 90.0), (" 3s ", 3.0)]
)
def test_times_are_seconds_or_have_a_unit(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "-1", "0", "1e9", "inf", "nan", "1 s", "99999999"])
def test_what_is_no_time_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        seconds(text)
