"""Options of ``pdctl inject`` follow from the rows of the kinds of faults, and so do the other places that name them."""

from __future__ import annotations

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from pdctl.cli import app
from pdctl.commands.inject_options import Given, parse_fault, with_faults
from pdctl.faults.capabilities import sites_of
from pdctl.faults.kinds import KINDS, STATES, Aim, Kind, Parameter, Way
from pdctl.inject.parameter import format_fault, parse
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError
from tools import gen_docs

WRITTEN = {
    Parameter.NONE: ("",),
    Parameter.DURATION: ("500ms", "5s", "30s"),
    Parameter.STATE: tuple(STATES),
    Parameter.DP: ("0", "3", str(1 << 20)),
    Parameter.ROOM: ("1", "any", str((1 << 64) - 1)),
}
WRONG = {
    Parameter.DURATION: ("5", "0s", "-1s", "soon", ""),
    Parameter.STATE: ("Succes", "4", "", "any"),
    Parameter.DP: ("-1", str((1 << 20) + 1), "one", "²", "9" * 400, ""),
    Parameter.ROOM: ("0", "-1", str(1 << 64), "all", "9" * 400, ""),
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_a_parameter_is_read_as_it_is_shown(kind: Kind) -> None:
    for text in WRITTEN[kind.parameter]:
        delay_s, value = parse(kind, text)
        assert format_fault(kind.name, delay_s, value) == f"{kind.name} {text}".rstrip()
        assert 0 <= delay_s <= kind.most_s
        assert 0 <= value <= kind.parameter.most, "a rank refuses it"
    for text in WRONG.get(kind.parameter, ()):
        with pytest.raises(ValueError, match=f"--{kind.name}"):
            parse(kind, text)
    if kind.parameter is Parameter.DURATION:
        with pytest.raises(durations.TooLong):
            parse(kind, f"{int(kind.most_s) + 1}s")


def test_a_state_is_found_in_any_case_and_a_wrong_one_names_all() -> None:
    kind = KINDS["flip-poll"]
    assert parse(kind, "success") == parse(kind, "Success")
    with pytest.raises(ValueError, match=", ".join(STATES)):
        parse(kind, "Succes")


def test_a_kind_of_a_newer_rank_is_shown() -> None:
    assert format_fault("of-tomorrow", 5.0, 0) == "of-tomorrow 5s"
    assert format_fault("of-tomorrow", 0.0, 7) == "of-tomorrow"


def test_one_fault_and_no_more() -> None:
    assert parse_fault({"misroute": "3", "abort": False}) == (KINDS["misroute"], 0.0, 3)
    for given, says in (({}, "name one fault"), ({"abort": True, "misroute": "1"}, "--misroute and --abort")):
        with pytest.raises(typer.BadParameter, match=says):
            parse_fault(given)
    with pytest.raises(PdctlError, match="over the limit of 30s") as caught:
        parse_fault({"skew-poll": "31s"})
    assert caught.value.code is Exit.REFUSED


def test_help_has_every_kind() -> None:
    text = " ".join(CliRunner().invoke(app, ["inject", "--help"], env={"COLUMNS": "100"}).output.split())
    for kind in KINDS.values():
        assert f"--{kind.name} {kind.parameter.metavar}".rstrip() in text
        assert kind.what[1:] in text


def test_a_new_row_is_an_option_a_site_and_a_line_of_the_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Kind("lose-answer", "an answer to it is lost", "decode", Aim.ON, Way.ONCE, Parameter.ROOM)
    monkeypatch.setitem(KINDS, kind.name, kind)

    @with_faults
    def command(faults: Given, rank: Annotated[str, typer.Option("--rank", metavar="PATTERN")] = "tp0") -> int:
        found, _, value = parse_fault(faults)
        typer.echo(f"{found.name} {value} on {rank}")
        return 0

    made = typer.Typer(rich_markup_mode=None)
    made.command()(command)
    shown = CliRunner().invoke(made, ["--help"]).output
    assert "--lose-answer ROOM|any" in shown
    assert "An answer to it is lost (on --rank)." in shown
    assert CliRunner().invoke(made, ["--lose-answer", "9", "--rank", "tp1"]).output == "lose-answer 9 on tp1\n"
    assert kind in [site.kind for site in sites_of((), "decode")]
    assert (
        r"| `--lose-answer ROOM\|any` | an answer to it is lost | on | decode ranks | once |"
        in gen_docs.with_faults(gen_docs.SAFETY.read_text())
    )
