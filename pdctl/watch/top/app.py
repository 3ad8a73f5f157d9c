"""The screens of ``top``, with Textual. What they show is made in ``tables`` and ``details``; threads look, the screens wait.

Every text is given to Textual as :class:`rich.text.Text`, which is never read as markup.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import ScrollableContainer
from textual.events import Resize
from textual.message import Message
from textual.screen import Screen
from textual.theme import Theme
from textual.widgets import DataTable, Footer, Input, OptionList, Static
from textual.widgets.option_list import Option

from pdctl.report.escaping import escape, escape_copy
from pdctl.watch.model import WatchState
from pdctl.watch.top import tables
from pdctl.watch.top.details import Detail, Looker
from pdctl.watch.top.tables import TONES, WIDE, Rates, Table

BLUE, GREEN, ORANGE, VERMILION = "#56B4E9", "#009E73", "#E69F00", "#D55E00"
"""Of the palette of Okabe and Ito, which people with any colour vision can tell apart."""
_STYLES = {"well": GREEN, "bad": f"bold {VERMILION}", "look": ORANGE, "unknown": BLUE, "": ""}
_COLUMN = "line"
_END_S = 2.0


class Looked(Message):
    """A state has come."""

    def __init__(self, state: WatchState) -> None:
        super().__init__()
        self.state = state


class Failed(Message):
    """Looking has ended with an error."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self.why = why


class Shown(Message):
    """What is behind a line has come, drawn."""

    def __init__(self, detail: Detail, text: str) -> None:
        super().__init__()
        self.detail, self.text = detail, text


class Lines(DataTable[Text]):
    """Shows a :class:`pdctl.watch.top.tables.Table`: what is selected stays selected.

    It has one column: drawing a cell takes Textual as long as drawing a line.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "select_cursor", "look into")]

    def __init__(self, name: str) -> None:
        super().__init__(id=name, cursor_type="row", cell_padding=0, cursor_foreground_priority="renderable")
        self._heading = ""
        self._lines: dict[str, list[tuple[str, str]]] = {}

    def follow(self, table: Table) -> None:
        """Show ``table``. Only lines that differ from what is shown are touched."""
        heading, parts = tables.laid_out(table)
        lines = dict(zip((line.key for line in table.lines), parts, strict=True))
        if self._heading != heading or [*self._lines] != [*lines]:
            self._fill(heading, lines)
        else:
            for key, line in lines.items():
                if line != self._lines[key]:
                    self.update_cell(key, _COLUMN, _text(line), update_width=True)
        self._heading, self._lines = heading, lines

    def _fill(self, heading: str, lines: dict[str, list[tuple[str, str]]]) -> None:
        if self.id != "ranks":  # they take what the others leave
            self.styles.height = len(lines) and len(lines) + 1
        there = [*self._lines]
        selected = there[self.cursor_row] if self.cursor_row < len(there) else ""
        self.clear(columns=True)
        self.add_column(Text(heading), key=_COLUMN)
        for key, line in lines.items():
            self.add_row(_text(line), key=key)
        if selected in lines:
            self.move_cursor(row=[*lines].index(selected), animate=False)


def _text(line: list[tuple[str, str]]) -> Text:
    return Text.assemble(*((part, _STYLES[tone]) for part, tone in line), no_wrap=True, end="")


class Overview(Screen[None]):
    """Groups, ranks, and what was found."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab", "app.focus_next", "next table"),
        Binding("s", "app.story", "story of a room"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._rates = Rates()
        self._state: WatchState | None = None

    def compose(self) -> ComposeResult:
        """Yield the parts."""
        yield Static(Text("pdctl top: looking for ranks"), id="status")
        yield Static(id="headline")
        yield Lines("groups")
        yield Lines("ranks")
        yield Lines("findings")
        yield Footer()

    def on_mount(self) -> None:
        """Begin at the ranks."""
        self.query_one("#ranks", Lines).focus()

    def show(self, state: WatchState) -> None:
        """Show a state."""
        self._state = state
        self._rates.add(state)
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """Give ranks as many columns as there is place for."""
        self._draw(event.size.width)

    def _draw(self, width: int = 0) -> None:
        state = self._state
        if state is None or not self.query("#status"):
            return  # nothing has come yet, or it is about to end
        at = datetime.fromtimestamp(state.at_wall_ns / 1e9).astimezone()
        self.query_one("#status", Static).update(
            Text(f"pdctl top  {at:%H:%M:%S}  {tables.status(state)}", no_wrap=True)
        )
        head = Text("\n").join(
            Text(f"{TONES[cell.tone]} {cell.text}" if cell.tone else cell.text, style=_STYLES[cell.tone])
            for cell in tables.headline(state)
        )
        self.query_one("#headline", Static).update(head)
        self.query_one("#groups", Lines).follow(tables.groups(state, self._rates))
        wide = (width or self.size.width) >= WIDE
        self.query_one("#ranks", Lines).follow(tables.ranks(state, self._rates, wide=wide))
        self.query_one("#findings", Lines).follow(tables.findings(state))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Look at what is behind the line."""
        state, app = self._state, self.app
        assert isinstance(app, Top)
        if state is None:
            return
        table, number = event.data_table.id, event.cursor_row
        if table == "groups" and number < len(state.groups):
            group = state.groups[number]
            app.look_into(f"group {group.title}", lambda: app.looker.group(group))
        elif table == "ranks" and number < len(state.ranks):
            rank = state.ranks[number]
            app.look_into(f"rank {rank.rank}", lambda: app.looker.rank(rank))
        elif table == "findings" and number < len(state.findings):
            found = state.findings[number]
            app.look_into(f"finding {found.code}", lambda: app.looker.finding(found))
        elif table == "findings" and (number := number - len(state.findings)) < len(state.problems):
            problem = state.problems[number]
            app.look_into("not seen", lambda: app.looker.problem(problem))


class Behind(Screen[None]):
    """What is behind a line: one look, and the rooms in it. look: in a thread, as drawing is."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "back"),
        Binding("r", "again", "look again"),
        Binding("tab", "app.focus_next", "rooms"),
        Binding("s", "app.story", "story of a room"),
        Binding("q", "app.quit", "quit"),
    ]

    def __init__(self, title: str, look: Callable[[], Detail]) -> None:
        super().__init__()
        self._title, self._look = escape(title, most=200), look
        self._detail: Detail | None = None
        self._busy = False
        self._width = 0

    def compose(self) -> ComposeResult:
        """Yield the parts."""
        yield Static(id="status")
        with ScrollableContainer(id="scroll"):
            yield Static(id="body")
        yield OptionList(id="rooms")
        yield Footer()

    def on_mount(self) -> None:
        """Look."""
        self.query_one("#rooms").display = False
        self.query_one("#scroll").focus()
        self.action_again()

    def action_again(self) -> None:
        """Look, unless that is under way."""
        if not self._busy:
            self._start("looking …", self._look)

    def on_resize(self) -> None:
        """Draw it anew."""
        detail = self._detail
        if detail is not None and not self._busy and self._width != self.app.size.width:
            self._start("drawing …", lambda: detail)

    def _start(self, doing: str, look: Callable[[], Detail]) -> None:
        self._busy, self._width = True, self.app.size.width
        self._head(doing)
        width = self._width - 2

        def run() -> None:
            detail = look()
            self.post_message(Shown(detail, detail.text(width)))

        threading.Thread(target=run, name="pdctl top look", daemon=True).start()

    def on_shown(self, event: Shown) -> None:
        """Show it."""
        self._busy, self._detail = False, event.detail
        self._head(f"at {datetime.fromtimestamp(event.detail.at_wall).astimezone():%H:%M:%S}")
        self.query_one("#body", Static).update(Text.from_ansi(event.text, no_wrap=True))
        rooms = self.query_one("#rooms", OptionList)
        rooms.clear_options()
        rooms.add_options([Option(Text(f"room {room}: its story"), id=str(room)) for room in event.detail.rooms])
        rooms.display = bool(event.detail.rooms)
        rooms.highlighted = 0 if event.detail.rooms else None

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Tell the story of a room."""
        app, room = self.app, str(event.option.id)
        assert isinstance(app, Top)
        app.look_into(f"room {room}", lambda: app.looker.room(room))

    def _head(self, text: str) -> None:
        self.query_one("#status", Static).update(Text(f"pdctl top  {self._title}  {text}", no_wrap=True))


class Ask(Screen[str]):
    """Asks for a room, or for the id of a request."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "app.pop_screen", "back")]

    def compose(self) -> ComposeResult:
        """Yield the parts."""
        yield Static(Text("The story of which room, or of which request's id? Enter tells it, Escape goes back."))
        yield Input(id="room", max_length=512)
        yield Footer()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Tell it."""
        app, asked = self.app, event.value.strip()
        assert isinstance(app, Top)
        app.pop_screen()
        if asked:
            app.look_into(f"room {asked}", lambda: app.looker.room(asked))


class Top(App[None]):
    """The application. next_state: waits for the next look and returns what it gave; called in one thread of its own,

    at most every ``every_s`` seconds. for_s: after how many it ends by itself.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", "quit", show=False, priority=True)]
    CSS = """
    #status { height: 1; color: $text-muted; }
    #headline { height: auto; max-height: 5; text-style: bold; }
    Lines { background: $background; scrollbar-size-horizontal: 0; }
    Lines > .datatable--cursor { background: transparent; }
    Lines:focus > .datatable--cursor { background: $primary 40%; text-style: bold; }
    #groups { max-height: 30%; }
    #ranks { height: 1fr; min-height: 4; }
    #findings { max-height: 30%; }
    #scroll { height: 1fr; }
    #body { width: auto; }
    #rooms { height: auto; max-height: 25%; border: none; border-top: solid $primary; }
    """

    def __init__(
        self, next_state: Callable[[], WatchState], looker: Looker, every_s: float, for_s: float | None = None
    ) -> None:
        super().__init__()
        self.looker = looker
        self.failure = ""
        self._next_state, self._every_s, self._for_s = next_state, every_s, for_s
        self._overview = Overview()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="pdctl top", daemon=True)

    def on_mount(self) -> None:
        """Begin to look."""
        self.register_theme(
            Theme(
                "pdctl", primary=BLUE, success=GREEN, warning=ORANGE, error=VERMILION, background="#000000", dark=True
            )
        )
        self.theme = "pdctl"
        self.push_screen(self._overview)
        self._thread.start()
        if self._for_s is not None:
            self.set_timer(self._for_s, self.exit)
        for number in (signal.SIGTERM, signal.SIGHUP):  # so that the terminal is given back as it was
            asyncio.get_running_loop().add_signal_handler(number, self.exit)

    def ended(self) -> bool:
        """Return whether it looks no more, after a moment: else what it looks with is still in use."""
        self._thread.join(_END_S)
        return not self._thread.is_alive()

    def on_unmount(self) -> None:
        """Look no more."""
        self._over.set()

    def look_into(self, title: str, look: Callable[[], Detail]) -> None:
        """Show what is behind a line."""
        self.push_screen(Behind(title, look))

    def action_story(self) -> None:
        """Ask for a room."""
        self.push_screen(Ask())

    def on_looked(self, event: Looked) -> None:
        """Show a state, also where another screen is above it."""
        self._overview.show(event.state)

    def on_failed(self, event: Failed) -> None:
        """End: without looks there is nothing to show."""
        self.failure = event.why
        self.exit()

    def _follow(self) -> None:
        try:
            while not self._over.is_set():
                began = time.monotonic()
                self.post_message(Looked(escape_copy(self._next_state())))
                self._over.wait(began + self._every_s - time.monotonic())  # a check has news more often than that
        except Exception as error:  # noqa: BLE001  # said when the terminal is back
            self.post_message(Failed(f"{type(error).__name__}: {error}"))
