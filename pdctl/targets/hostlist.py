"""Lists of hosts: nodesets as Slurm writes them (``gpu[001-064,070]``), files of them, and endpoints with ranges. Pure but for
the file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import read_regular

MAX_HOSTS = 4096
MAX_FILE = 1 << 20
_HOST = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}@)?[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})", re.ASCII)
_RANGE = re.compile(r"(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?", re.ASCII)
_BRACKET = re.compile(r"\[([0-9,-]*)\]", re.ASCII)
_NUMBERED = re.compile(r"(?P<name>.*?)(?P<number>[0-9]{1,18})(?P<rest>[^0-9]*)", re.ASCII | re.DOTALL)


def words(text: str) -> list[str]:
    """Return the words of ``text``. Blanks and commas part them, commas in brackets do not."""
    found, word, inside = [], "", 0
    for char in text:
        inside += (char == "[") - (char == "]")
        if (char == "," and inside <= 0) or char.isspace():
            found.append(word)
            word = ""
        else:
            word += char
    return [one for one in (*found, word) if one]


def parse_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts that ``text`` names, each once: nodesets, and ``@FILE`` for those of a file.

    Raises PdctlError (USAGE) for what can't be the name of a host, a file that can't be read, or over MAX_HOSTS hosts.
    """
    found: dict[str, None] = {}
    for word in words(text):
        for name in _of_file(Path(word[1:])) if word.startswith("@") else [word]:
            for host in expand(name, "nodeset"):
                if not _HOST.fullmatch(host):
                    raise _usage(f"{host[:80]!r} is no name of a host", "write gpu001, gpu[001-064] or @FILE")
                found[host] = None
                if len(found) > MAX_HOSTS:
                    raise _usage(f"over {MAX_HOSTS} hosts", "ask parts of them, one after the other: docs/scale.md")
    return tuple(found)


def has_bracket(text: str) -> bool:
    """Return whether there is a range in brackets; an IPv6 address in brackets is none."""
    return _BRACKET.search(text) is not None


def expand(text: str, what: str, most: int = MAX_HOSTS) -> list[str]:
    """Return what ``text`` stands for, with a number for each bracket. what: the word for it in an error.

    Raises PdctlError (USAGE) for a bracket that can't be read, or over ``most`` results.
    """
    parts = _BRACKET.split(text)
    found = [parts[0]]
    if any(mark in part for part in parts[::2] for mark in "[]"):
        raise _usage(f"{text[:80]!r} is no {what}: a bracket holds numbers and ranges", "write gpu[001-064,070]")
    for numbers, literal in zip(parts[1::2], parts[2::2], strict=True):
        each = list(_numbers(numbers, text, what, most))
        if len(found) * len(each) > most:
            raise _usage(f"{text[:80]!r} is over {most}", "ask parts of them, one after the other: docs/scale.md")
        found = [f"{one}{number}{literal}" for one in found for number in each]
    return found


def expand_ports(text: str, most: int) -> list[str]:
    """Return ``tcp://HOST:7000``, ``…:7001`` for ``tcp://HOST:7000-7001``, and what has no range as it is."""
    head, colon, ports = text.rpartition(":")
    match = _RANGE.fullmatch(ports)
    if not colon or match is None or match["last"] is None:
        return [text]
    return [f"{head}:{port}" for port in _numbers(ports, text, "range of ports", most)]


def fold(hosts: Iterable[str]) -> str:
    """Return hosts as a nodeset: ``gpu[001-064],login``."""
    groups: dict[tuple[str, int, str], list[int]] = {}
    alone: list[str] = []
    for host in dict.fromkeys(hosts):
        match = _NUMBERED.fullmatch(host)
        if match is None:
            alone.append(host)
        else:
            number = match["number"]
            width = len(number) if number.startswith("0") and number != "0" else 0
            groups.setdefault((match["name"], width, match["rest"]), []).append(int(number))
    # gpu[098-100]: 100 has no zero in front of it, and is as wide
    for name, width, rest in [key for key in groups if key[1]]:
        wide = groups.get((name, 0, rest), [])
        groups[name, width, rest] += [number for number in wide if len(str(number)) == width]
        groups[name, 0, rest] = [number for number in wide if len(str(number)) != width]
    folded = [
        f"{name}[{_runs(numbers, width)}]{rest}" if len(numbers) > 1 else f"{name}{numbers[0]:0{width}d}{rest}"
        for (name, width, rest), numbers in groups.items()
        if numbers
    ]
    return ",".join([*folded, *alone])


def _runs(numbers: Iterable[int], width: int) -> str:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs)


def _numbers(text: str, whole: str, what: str, most: int) -> Iterable[str]:
    """Yield the numbers of ``001-064,070``, as wide as they are written."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _usage(f"{whole[:80]!r} is no {what}: {part[:20]!r} is no number or range", "write gpu[001-064,070]")
        first, last = match["first"], match["last"] or match["first"]
        if int(last) < int(first):
            raise _usage(f"{whole[:80]!r} is no {what}: {part} runs backwards", "write the smaller number first")
        if int(last) - int(first) >= most:
            raise _usage(f"{whole[:80]!r} is over {most}", "ask parts of them, one after the other: docs/scale.md")
        width = len(first) if first.startswith("0") else 0
        yield from (f"{number:0{width}d}" for number in range(int(first), int(last) + 1))


def _of_file(path: Path) -> list[str]:
    """Return the nodesets of a file: one or more a line, ``#`` begins a comment, MPI's ``slots=8`` is passed over."""
    try:
        text = read_regular(path, MAX_FILE, follow=True).decode()
    except UnicodeDecodeError as error:
        raise _usage(f"{path} is no list of hosts: {error.reason}", "one host or nodeset a line") from None
    except OSError as error:
        raise _usage(f"{path} can't be read: {error.strerror}", "it should hold one host or nodeset a line") from None
    names = [word for line in text.splitlines() for word in words(line.partition("#")[0]) if "=" not in word]
    if not names:
        raise _usage(f"{path} names no host", "one host or nodeset a line")
    return names


def _usage(what: str, next_step: str) -> PdctlError:
    return PdctlError(what, next_step, Exit.USAGE)
