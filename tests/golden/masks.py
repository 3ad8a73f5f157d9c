"""Takes out of what a command printed whatever differs from run to run, and leaves a name in its place, as ``<pid>``.

JSON, CSV and YAML are masked by key: :data:`KEYS`. All text, also that within them, is masked by :data:`TEXT`. What stored
traces give is masked by :data:`STORED` and :data:`STORED_TEXT` alone.

Blanks: where live ranks are looked at, runs of blanks within a line become two, and more than nine before it become nine:
the width of a column depends on the numbers that were in it. What is read from files keeps its layout, byte for byte.
"""

from __future__ import annotations

import csv
import io
import json
import os
import pwd
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.golden.running import ROOT, Printed

STORED: Mapping[str, str] = {
    "seconds": "<s>",
    "public": "<key>",
    "clock.boot": "<boot>",
    "clock.wall_ns": "<ns>",
    "clock.mono_ns": "<ns>",
    "trace.started_wall_ns": "<ns>",
    "pdctl.record.size": "<bytes>",
    "tick_age_s": "<s>",  # of a trace of version 1 it is counted to now
}
"""Keys of what is read from files, with their parents where those matter → what stands in their place."""

KEYS: Mapping[str, str] = {
    **STORED,
    "age_s": "<s>",
    "agent_cpu_s": "<s>",
    "agent_cpu_share": "<share>",
    "clock_s": "<s>",
    "held_s": "<s>",
    "landed_s": "<s>",
    "late_s": "<s>",
    "left_s": "<s>",
    "peer_ended_s": "<s>",
    "peer_without_s": "<s>",
    "sent_s": "<s>",
    "since_s": "<s>",
    "span_s": "<s>",
    "stood_s": "<s>",
    "stopped_ms": "<ms>",
    "unseen_s": "<s>",
    "boot": "<boot>",
    "mono_ns": "<ns>",
    "proc_start": "<start>",
    "started_mono_ns": "<ns>",
    "started_wall_ns": "<ns>",
    "taken_mono_ns": "<ns>",
    "taken_wall_ns": "<ns>",
    "wall_ns": "<ns>",
    "salt": "<salt>",
    "host": "<host>",
    "pid": "<pid>",
    "python": "<python>",
    "disaggregation_bootstrap_port": "<port>",
    "rank_port": "<port>",
    "looks": "<n>",
    "round": "<round>",
    "rounds": "<rounds>",
    "seq": "<seq>",
    "ticks": "<n>",
    "compared": "<rounds>",
    "fault": "<fault>",
    "call": "<call>",
    "last_round": "<round>",
}
"""The same of live ranks."""

MOVING: Mapping[str, str] = {**KEYS, "where": "<where>", "doing": "<where>"}
"""The same of ranks that go round their loop: where one is at a look is a matter of luck."""

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
STORED_TEXT: Sequence[tuple[str, str]] = (
    (r"\b[0-9a-f]{40,64}\b", "<key>"),
    (r"\b[0-9a-f]{40,}…", "<key>…"),
    (r"\([0-9a-f]{8}…\)", "(<key>…)"),
    (r"(recorded  )\d+ [hd]  +", r"\1<age>  "),
)
TEXT: Sequence[tuple[str, str]] = (
    *STORED_TEXT,
    (r"\bf-[0-9a-f]{6}\b", "<fault>"),
    (r"/[0-9a-f]{8}\.\d+\.\d+", "/<boot>.<pid>.<start>"),
    (r"^((?:supervisor|bootstrap|(?:prefill|decode) dp\d+ pp\d+ tp\d+) +)\d+(?= )", r"\1<pid>"),
    (r"\b[\d.]+(?:ms|s|m|h) left\b", "<time> left"),
    (r"(\([\w/.<> -]+):\d+(?:,\d+)*\)", r"\1:<line>)"),
    (r"/\d+-\d+\.", "/<pid>-<start>."),
    (r"\b([a-z]+-dp\d+-pp\d+-tp\d+)-\d+\.pdrec", r"\1-<pid>.pdrec"),
    (r"@lab:lab/\d+\.\d+", "@lab:lab/<pid>.<start>"),
    (r"127\.0\.0\.1:\d+", "127.0.0.1:<port>"),
    (r"(<user>@<host>):\d+", r"\1:<pid>"),
    (r"\bpids? \d+", "pid <pid>"),
    (r"\bkill -CONT( \d+)+", "kill -CONT <pid>"),
    (r"\bprocess \d+\b", "process <pid>"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "<clock>"),
    (r"\d\d:\d\d:\d\d\.\d+ UTC, \d{4}-\d\d-\d\d", "<clock>"),
    (rf"\b{_NUMBER} (?:ns|µs|ms|s|min|m|h|d)(?![\w/])", "<time>"),
    (rf"\b{_NUMBER}%", "<share>"),
    (rf"\b{_NUMBER} [KM]iB, names", "<size>, names"),
    (r"(recorded what there was|--for was over)(?: after <time>)?", r"\1 <after time, if long>"),
    (r"#\d+", "#<seq>"),
    (r"\bround \d+", "round <n>"),
    (r"\b\d[\d,]* rounds", "<n> rounds"),
    (r"\b(\d+) looks", "<n> looks"),
    (r"\blast round: \d+ of", "last round: <n> of"),
    (r"(?<=[ \"])(bootstrap|inflight|prealloc|transfer) \d+(?= |$)", r"\1 <n>"),
    # The columns rank, pid and state of a table.
    (r"((?:^|  )(?:[a-z]+ )?dp\d+ pp\d+ tp\d+ +)\d+(?=  +[a-z-])", r"\1<pid>"),
    (r"^(\?  +)\d+(?=  )", r"\1<pid>"),
    (r"(?<![\w.])(?:3[2-9]|[45]\d|60)\d{3}(?![\w.])", "<port>"),  # what the kernel gives away, of what is no pid
)
MOVING_TEXT: Sequence[tuple[str, str]] = (
    *TEXT,
    (r"^(  dp\d+ pp\d+ tp\d+ +<pid> +live +\S+ +[a-z]+ <n>  +).*", r"\1<where>"),
    (r"^(  dp\d+ pp\d+ tp\d+ +<pid> +live +\S+ +-  +).*", r"\1<where>"),
)

_FLOAT = "\0"


class Masks:
    """What is masked in one world. top: the directory it is in."""

    def __init__(self, top: str, *, live: bool, moving: bool) -> None:
        self._live = live
        self._keys = MOVING if moving else KEYS if live else STORED
        chosen = MOVING_TEXT if moving else TEXT if live else STORED_TEXT
        self._text = [(re.compile(pattern, re.MULTILINE), name) for pattern, name in chosen]
        host = re.compile(rf"(?<![\w-]){re.escape(socket.gethostname())}(?![\w-])")
        owner = f"{user()}@{socket.gethostname()}"
        self._literals = (
            (top, "<top>"), (str(ROOT), "<checkout>"), (sys.executable, "<executable>"), (owner, "<user>@<host>"),
        )  # fmt: skip
        self._host = host

    def of(self, printed: Printed, form: str) -> Printed:
        """Return what was printed in a format of ``-o`` with everything masked that may differ."""
        read: Mapping[str, Callable[[str], str]] = {
            "json": self._json,
            "jsonl": self._jsonl,
            "csv": self._csv,
            "yaml": self._yaml,
        }
        # A command that has no document in this format, or failed, has printed lines.
        out = read.get(form, self._drawn)(printed.out) if printed.out else ""
        return Printed(printed.code, out, self._drawn(printed.err))

    def _masked(self, text: str) -> str:
        for literal, name in self._literals:
            text = text.replace(literal, name)
        text = self._host.sub("<host>", text)
        for pattern, name in self._text:
            text = pattern.sub(name, text)
        return text

    def _drawn(self, text: str) -> str:
        text = self._masked(text)
        if not self._live:
            return text
        text = re.sub(r"^ {9,}", " " * 9, text, flags=re.MULTILINE)
        return re.sub(r"(?<=\S) {2,}", "  ", text)

    def _json(self, text: str) -> str:
        document = _read(text)
        assert _written(document, indent=2) == text.removesuffix("\n"), "it would not be kept byte for byte"
        return f"{_written(self._value(document, ''), indent=2)}\n"

    def _jsonl(self, text: str) -> str:
        return "".join(f"{_written(self._value(_read(line), ''))}\n" for line in text.splitlines())

    def _csv(self, text: str) -> str:
        header, *rows = csv.reader(io.StringIO(text))
        said = io.StringIO()
        writer = csv.writer(said, lineterminator="\n")
        writer.writerow(header)
        for row in rows:
            writer.writerow([self._cell(key, cell) for key, cell in zip(header, row, strict=True)])
        return said.getvalue()

    def _cell(self, key: str, cell: str) -> str:
        name = self._name(f".{key}")
        if name and cell:
            return name
        if cell[:1] in ("{", "["):
            return _written(self._value(_read(cell), f".{key}"))
        return self._masked(cell)

    def _yaml(self, text: str) -> str:
        """Mask values of one line, and those that are written on the deeper lines that follow."""
        lines: list[str] = []
        deeper = -1
        for line in text.splitlines():
            indent = len(line) - len(line.lstrip())
            if deeper >= 0 and (indent > deeper or (indent == deeper and line[indent : indent + 2] == "- ")):
                continue
            deeper = -1
            found = re.match(r"( *(?:- )*)(\w+):(.*)", line)
            name = self._name(f".{found[2]}") if found else ""
            if found and name and found[3].strip() not in ("''", "null"):
                lines.append(f"{found[1]}{found[2]}: {name}\n")
                deeper = -1 if found[3] else len(found[1])
            else:
                lines.append(f"{self._masked(line)}\n")
        return "".join(lines)

    def _value(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            path = f".{value['schema']}" if "schema" in value else path
            return {self._masked(key): self._entry(inner, f"{path}.{key}") for key, inner in value.items()}
        if isinstance(value, list):
            if len(value) == 3 and isinstance(value[1], str) and value[1].endswith(".py") and isinstance(value[2], int):
                return [*value[:2], "<line>"]  # a frame
            return [self._value(inner, path) for inner in value]
        if path.endswith(".frames") and isinstance(value, str) and re.fullmatch(r"\d+(,\d+)*", value):
            return "<line>"
        return self._masked(value) if isinstance(value, str) and not value.startswith(_FLOAT) else value

    def _entry(self, value: Any, path: str) -> Any:
        name = self._name(path)
        # Nothing is nothing each time.
        return name if name and value not in (None, "") else self._value(value, path)

    def _name(self, path: str) -> str:
        parts = path.lstrip(".").split(".")
        return next((self._keys[end] for n in range(len(parts)) if (end := ".".join(parts[n:])) in self._keys), "")


def user() -> str:
    """Return the name of who runs the tests, as faults have it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user without a name
        return str(os.getuid())


def _read(text: str) -> Any:
    """Return JSON's document, its floats as strings that begin with _FLOAT: they stay as they were written."""
    return json.loads(text, parse_float=lambda number: f"{_FLOAT}{number}")


def _written(value: Any, indent: int | None = None) -> str:
    separators = None if indent else (",", ":")
    text = json.dumps(value, indent=indent, separators=separators, ensure_ascii=False)
    return re.sub(r'"\\u0000([^"]*)"', r"\1", text)
