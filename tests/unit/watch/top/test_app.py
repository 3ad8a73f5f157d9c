"""The screens of top, walked through with Textual's Pilot over built states: no rank is asked."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("textual", reason="pip install 'pdctl[top]'")

from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from pdctl.probes.run import Asked
from pdctl.targets.reach import Reach
from pdctl.watch.model import WatchState
from pdctl.watch.top.app import Behind, Lines, Overview, Top
from pdctl.watch.top.details import Detail, Looker
from tests.support.patience import patience
from tests.unit.watch.top.worlds import ROOM, diverged, healthy, rank

SIZES = ((80, 24), (200, 50))


class Walk:
    """An application over states that a test gives it, one after the other."""

    def __init__(self, pilot: Pilot[None], states: queue.Queue[WatchState]) -> None:
        self.pilot, self._states = pilot, states

    async def give(self, state: WatchState) -> None:
        """Let it look, and wait until it shows that."""
        self._states.put(state)
        overview = self.pilot.app._overview  # type: ignore[attr-defined]
        await self.until(
            "the state is shown", lambda: overview._state and overview._state.at_wall_ns == state.at_wall_ns
        )

    async def until(self, what: str, seen: Callable[[], Any]) -> None:
        end = asyncio.get_running_loop().time() + patience(20)
        while not seen():
            assert asyncio.get_running_loop().time() < end, what
            await self.pilot.pause(0.02)

    async def behind(self, *keys: str) -> str:
        """Press keys that look into something; return what stands there."""
        before = self.screen
        await self.pilot.press(*keys)
        await self.until(
            "a look has ended",
            lambda: isinstance(self.screen, Behind) and self.screen is not before and self.screen._detail,
        )
        return self.text("#body")

    @property
    def screen(self) -> Any:
        return self.pilot.app.screen

    def text(self, name: str) -> str:
        """Return what a part of the screen shows."""
        shown = self.screen.query_one(name, Static).content
        return shown.plain if isinstance(shown, Text) else str(shown)

    def rows(self, name: str) -> list[str]:
        table = self.screen.query_one(f"#{name}", Lines)
        return [" ".join(cell.plain.strip() for cell in table.get_row_at(n)) for n in range(table.row_count)]


def walk(tmp_path: Path, test: Callable[[Walk], Awaitable[None]], size: tuple[int, int] = SIZES[0]) -> None:
    states: queue.Queue[WatchState] = queue.Queue()
    looker = Looker(Asked(reach=Reach().at(tmp_path / "run", tmp_path / "rec"), timeout_s=2.0))

    async def go() -> None:
        app = Top(states.get, looker, 0.001)
        async with app.run_test(size=size) as pilot:
            await test(Walk(pilot, states))
            assert not app.failure

    asyncio.run(go())
    states.put(healthy())  # lets its thread end


@pytest.mark.parametrize("size", SIZES)
def test_it_shows_groups_ranks_and_findings(tmp_path: Path, size: tuple[int, int]) -> None:
    async def test(it: Walk) -> None:
        await it.give(healthy())
        await it.give(healthy(1))
        assert "✓ Nothing was found." in it.text("#headline")
        assert it.rows("groups")[0].startswith("✓ AGREE decode dp0 pp0")
        assert len(it.rows("ranks")) == 2
        await it.give(diverged(2))
        assert "✗ PD101" in it.text("#headline")
        assert "Next: Restart" in it.text("#headline")
        assert it.rows("groups")[0].startswith("✗ DIVERGED")
        assert "✗ silent" in it.rows("ranks")[0]
        assert [row.split()[1] for row in it.rows("findings")] == ["PD101", "PD114", "not"]
        wide = "prefill@host" in it.rows("ranks")[0]
        assert wide == (size[0] >= 120)
        for name in ("groups", "findings"):
            table = it.screen.query_one(f"#{name}")
            await it.until(f"{name} have room", lambda table=table: table.size.height > 1)  # type: ignore[misc]

    walk(tmp_path, test, size)


def test_the_selected_rank_stays_selected_while_others_come_and_go(tmp_path: Path) -> None:
    async def test(it: Walk) -> None:
        await it.give(healthy(size=4))
        table = it.screen.query_one("#ranks", Lines)
        await it.pilot.press("down", "down")
        await it.give(healthy(1, ranks=(rank(2), rank(3))))
        assert table.cursor_row == 0
        await it.give(healthy(2, size=6))
        assert table.cursor_row == 2
        await it.give(healthy(3, ranks=(), groups=()))
        assert "no ranks" in it.text("#headline")
        await it.give(healthy(4))
        assert len(it.rows("ranks")) == 2

    walk(tmp_path, test)


def test_a_finding_is_explained_and_its_room_told_and_back(tmp_path: Path) -> None:
    async def test(it: Walk) -> None:
        await it.give(diverged())
        text = await it.behind("tab", "enter")
        assert "metadata landed on one rank before the other" in text
        assert "rests on" in text
        rooms = it.screen.query_one("#rooms", OptionList)
        assert [option.id for option in rooms.options] == [str(ROOM)]
        told = await it.behind("tab", "enter")
        assert "no ranks found in" in told, "nobody is there to ask"
        assert f"room {ROOM}" in it.text("#status")
        await it.pilot.press("escape", "escape")
        assert isinstance(it.screen, Overview)

    walk(tmp_path, test)


@pytest.mark.parametrize("keys", [("shift+tab", "enter"), ("enter",), ("s", "7", "enter")])
def test_what_can_not_be_looked_at_is_said(tmp_path: Path, keys: tuple[str, ...]) -> None:
    async def test(it: Walk) -> None:
        await it.give(diverged())
        assert "no ranks found in" in await it.behind(*keys)
        await it.pilot.press("r")
        await it.until("it looked again", lambda: not it.screen._busy)
        await it.give(healthy(1))
        await it.pilot.press("escape")
        assert "Nothing was found" in it.text("#headline"), "it went on below"

    walk(tmp_path, test)


def test_what_could_not_be_seen_is_shown_whole(tmp_path: Path) -> None:
    async def test(it: Walk) -> None:
        await it.give(diverged())
        assert "no answer within 0.3 s" in await it.behind("tab", "down", "down", "enter")
        await it.pilot.press("ctrl+c")

    walk(tmp_path, test)


def test_markup_and_control_characters_of_ranks_are_text(tmp_path: Path) -> None:
    text = "[bold red]x[/] [link=http://x]y[/link] \x1b[2J\r\n[@click=app.quit]z[/]"

    async def test(it: Walk) -> None:
        state = diverged()
        hostile = rank(0, service=text, where=text, reason=text, queues={text: 3})
        found = replace(state.findings[0], summary=text, evidence=(text,), group=text)
        group = replace(state.groups[0], title=text)
        await it.give(replace(state, ranks=(hostile,), findings=(found,), groups=(group,), problems=(text,)))
        await it.pilot.pause()
        for name in ("groups", "ranks", "findings"):
            assert any("[bold red]x[/]" in row for row in it.rows(name)), name
            assert not any("\x1b" in row or "\r" in row for row in it.rows(name))
        assert "[@click=app.quit]z[/]" in it.text("#headline")
        assert "[@click=app.quit]z[/]" in await it.behind("tab", "enter")

    walk(tmp_path, test, SIZES[1])


def test_another_width_draws_what_is_shown_anew(tmp_path: Path) -> None:
    async def test(it: Walk) -> None:
        await it.give(diverged())
        narrow = await it.behind("tab", "enter")
        await it.pilot.resize_terminal(200, 50)
        await it.until("it is drawn anew", lambda: not it.screen._busy and it.text("#body") != narrow)
        assert len(it.text("#body").splitlines()) < len(narrow.splitlines())

    walk(tmp_path, test)


def test_without_colour_the_words_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def test(it: Walk) -> None:
        await it.give(diverged())
        assert it.rows("groups")[0].startswith("✗ DIVERGED")
        assert "PD101" in await it.behind("tab", "enter")

    walk(tmp_path, test)
    detail = Looker(Asked()).finding(diverged().findings[0])
    assert isinstance(detail, Detail)
    assert "\x1b" not in detail.text(80)


def test_looks_that_end_end_it(tmp_path: Path) -> None:
    def fails() -> WatchState:
        raise RuntimeError("no more")

    async def go() -> Top:
        app = Top(fails, Looker(Asked()), 0.001)
        async with app.run_test() as pilot:
            end = asyncio.get_running_loop().time() + patience(20)
            while not app.failure and asyncio.get_running_loop().time() < end:
                await pilot.pause(0.02)
        return app

    assert asyncio.run(go()).failure == "RuntimeError: no more"


def test_it_ends_by_itself_when_its_time_is_over() -> None:
    app = Top(healthy, Looker(Asked()), 0.001, for_s=0.05)
    asyncio.run(asyncio.wait_for(app.run_async(headless=True), patience(20)))
    assert app.ended()
