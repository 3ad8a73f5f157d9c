"""Escape untrusted text for its destination: a terminal, JSON, a cell of a spreadsheet, a shell, a program's source.

A client of the engine chooses a request id, a colleague sends a trace, an agent may lie. Their text is never copied as it is:
this module has one encoder for each destination. Pure; standard library and msgspec only.
"""

from __future__ import annotations

import codecs
import dataclasses
import html
import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

MOST_SHOWN = 2_000
"""Characters of one text that are shown to people; JSON, YAML and CSV have all of it."""
MOST_IN_SOURCE = 120
ASCII = "pdctl.ascii"
"""How a stream with a small character set writes what it lacks: see :func:`_stand_in`."""

_BLANK = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U0001d159\U000e0100-\U000e01ef]"
)
"""Takes no ink, though Python calls it printable: what Unicode calls default ignorable, and blanks of other scripts."""
_SIGNS = r"=+\-@＝＋－＠"
"""What begins a formula."""
_FORMULA = re.compile(rf'^(?=[{_SIGNS}].)|(?<=;)(?="*[{_SIGNS}])')
_PARTED = re.compile(rf"(?<=;)[{_SIGNS}]")
_WORDS = {
    "…": "...", "·": "-", "×": "x", "–": "-", "—": "-", "→": "->", "←": "<-", "⋯": "...", "≥": ">=", "≤": "<=",
    "─": "-", "│": "|", "├": "|", "└": "`", "┃": "|", "━": "-", "┣": "|", "┗": "`", "\u00a0": " ",
}  # fmt: skip

T = TypeVar("T")


def escape(text: str, *, most: int = MOST_SHOWN) -> str:
    """Return ``text`` as one line without effect on a terminal: invisible characters become escapes.

    These are control characters, line ends, characters that change the writing direction, and characters without a width
    or without ink: also what only chooses the form of the letter before it.
    Letters of all scripts stay. The result has at most ``most`` characters; a … replaces the rest.
    """
    if len(text) > most:
        text = f"{text[: most - 1]}…"
    if text.isprintable() and (text.isascii() or not _BLANK.search(text)):
        return text
    return "".join(char if _visible(char) else _escape(char) for char in text)


def escape_lines(text: str) -> str:
    """Return ``text`` as :func:`escape`, with its line ends, and of any length. For multi-line text: a file, a help."""
    return "\n".join(escape(line, most=max(1, len(line))) for line in text.split("\n"))


def escape_copy(value: T) -> T:
    """Return a document, or a part of one, with every text as :func:`escape`; ``value`` itself if nothing changes."""
    encoded = _json(value)
    if _all_visible(encoded) and max(map(len, encoded.split('"'))) <= MOST_SHOWN:
        return value  # the usual case: a large document is not walked through
    changed: T = _changed(value, escape)
    return changed


def json_text(text: str, *, ascii_only: bool = False) -> str:
    """Return JSON ``text`` of equal value with invisible characters escaped. ascii_only: escape all non-ASCII."""
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub(r"[^\x00-\x7e]", lambda found: _json_char(found[0], ascii_only=ascii_only), text)


def json_encoded(value: Any, *, ascii_only: bool = False) -> str:
    """Return ``value`` as JSON on one line, as :func:`json_text`; lone surrogates are escaped as in :func:`escape`."""
    return json_text(_json(value), ascii_only=ascii_only)


def cell(text: str) -> str:
    """Return ``text`` for a cell of a spreadsheet: one line, and never a formula, also where ``;`` parts cells.

    Quotes around the cell would not prevent that: they mean nothing in a line that is parted elsewhere.
    """
    return _FORMULA.sub("'", escape(text, most=max(1, len(text))))


def json_cell(value: Any) -> str:
    """Return ``value`` as :func:`json_encoded` for such a cell. It is read back as it was: a sign behind ``;`` is an escape."""
    return _PARTED.sub(lambda found: f"\\u{ord(found[0]):04x}", json_encoded(value))


def argument(text: object) -> str:
    """Return ``text`` as one quoted word, for a shell command that pdctl suggests."""
    return shlex.quote(escape(str(text)))


def markup(text: object, *, most: int = MOST_SHOWN) -> str:
    """Return ``text`` as :func:`escape`, for an element or a quoted attribute of HTML or SVG: no markup, no entity."""
    return html.escape(escape(str(text), most=most), quote=True)


def fenced(lines: Iterable[str]) -> str:
    """Return lines as a block of code in Markdown, that nothing in them ends, each as :func:`escape`."""
    text = "\n".join(escape(line) for line in lines)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    return f"{fence}text\n{text}\n{fence}\n"


def in_source(text: str) -> str:
    """Return ``text`` for a comment or docstring of source code: one line, no quotes, no backslashes, of bounded length."""
    text = f"{text[: MOST_IN_SOURCE - 1]}…" if len(text) > MOST_IN_SOURCE else text
    return "".join(char if _visible(char) and char not in "\"'`\\" else "?" for char in text)


def all_visible(value: Any) -> bool:
    """Return whether :func:`escape` would change no text in ``value``, apart from its length."""
    return _all_visible(_json(value))


def _all_visible(encoded: str) -> bool:
    return encoded.isprintable() and not _BLANK.search(encoded) and not re.search(r"\\[bfnrtu]", encoded)


def _visible(char: str) -> bool:
    return not _BLANK.match(char) if char.isprintable() else unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json_char(char: str, *, ascii_only: bool) -> str:
    if not ascii_only and _visible(char):
        return char
    units = char.encode("utf-16-be")
    return "".join(f"\\u{units[n]:02x}{units[n + 1]:02x}" for n in range(0, len(units), 2))


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # half a character: a name of a file that is not UTF-8
        return msgspec.json.encode(_changed(value, _whole)).decode()


def _whole(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Apply ``change`` to every text in ``value``, also to keys of dicts. Return ``value`` itself if nothing changes."""
    if type(value) is str:
        return change(value)
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
        replace: Callable[..., Any] = msgspec.structs.replace
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = tuple(field.name for field in dataclasses.fields(value) if field.init)
        replace = dataclasses.replace
    elif isinstance(value, dict):
        return {_changed(key, change): _changed(item, change) for key, item in value.items()}
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_changed(item, change) for item in value))
    elif type(value) in (list, tuple, set, frozenset):
        return type(value)(_changed(item, change) for item in value)
    else:
        return value
    old = {name: getattr(value, name) for name in names}
    new = {name: _changed(item, change) for name, item in old.items()}
    return replace(value, **{name: item for name, item in new.items() if item is not old[name]})


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that a character set lacks: pdctl's own signs by similar ASCII signs, all others by escapes."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_WORDS.get(char) or _escape(char) for char in text), error.end


codecs.register_error(ASCII, _stand_in)
