"""Reads drill files: YAML, so that every error names the line, on every Python that pdctl runs on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from pdctl.faults.kinds import KINDS, STATES, Parameter
from pdctl.faults.limits import MAX_TTL_S
from pdctl.inject.drill.schema import Drill, FaultSpec, LabOptions, LoadSpec
from pdctl.protocol import durations, structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import read_regular
from pdctl.report.findings import catalogue
from pdctl.targets import selectors

BUILT_IN = Path(__file__).resolve().parents[2] / "drills"
SUFFIXES = (".yaml", ".yml")
MOST_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_STEP = re.compile(r"\.(\w+)|\[(\d+|\.\.\.)\]")


def built_in() -> dict[str, Path]:
    """Return the names of the drills that come with pdctl, and where they are."""
    return {path.stem: path for path in sorted(BUILT_IN.glob("*.yaml"))}


def find(name: str) -> Path:
    """Return the file that ``name`` means: a built-in drill, or a path. Raises PdctlError (USAGE) with what there is."""
    known = built_in()
    if name in known:
        return known[name]
    if name.endswith(SUFFIXES) or "/" in name:
        return Path(name)
    raise PdctlError(f"there is no drill {name!r}", f"known: {', '.join(known)}; or give a drill file", Exit.USAGE)


def load(path: Path) -> Drill:
    """Return the drill in ``path``. Raises PdctlError (USAGE) that names file, line and key."""
    return parse(read(path), str(path))


def read(path: Path) -> str:
    """Return the text of the drill file ``path``. Raises PdctlError (USAGE) where it can't be read, or is too long."""
    try:
        return read_regular(path, MOST_BYTES, follow=True).decode()
    except OSError as error:
        raise PdctlError(f"{path} can't be read: {error.strerror}", code=Exit.USAGE) from None
    except UnicodeDecodeError as error:
        raise PdctlError(f"{path} is not UTF-8 text: {error.reason}", code=Exit.USAGE) from None


def parse(text: str, name: str) -> Drill:
    """Return the drill written as ``text``. Raises PdctlError (USAGE) that names ``name``, line and key."""
    source = _compose(text, name)
    try:
        drill = structs.convert(source.value, Drill)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `")
        raise source.error(_steps(path.rstrip("`"), said), said) from None
    for steps, problem in _problems(drill):
        raise source.error(steps, problem)
    return drill


# ---- YAML with line numbers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """A file's value and its nodes. A step of a path is a key or an index."""

    name: str
    node: yaml.Node | None
    value: Any

    def error(self, steps: tuple[str | int, ...], problem: str) -> PdctlError:
        """Return the error at ``steps``; the line is that of the nearest thing that is there."""
        node, line = self.node, 1
        for step in steps:
            found = _child(node, step)
            if found is None:
                break
            node, line = found
        key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")
        place = f"{key}: " if key else ""
        return PdctlError(
            f"{self.name}, line {line}: {place}{problem}", "docs/drills.md shows what a drill file says", Exit.USAGE
        )


def _child(node: yaml.Node | None, step: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(step):
                return value, key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step], node.value[step].start_mark.line + 1
    return None


class _Loader(yaml.SafeLoader):
    """Names the line of a value that is not what its tag says. It merges no mappings: merged ones may grow without end."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, ArithmeticError, LookupError, AttributeError):
            said = f"{str(node.value)[:80]!r} can't be read as {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, said, node.start_mark) from None

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Merge nothing."""


def _compose(text: str, name: str) -> _Source:
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        for twice in _twice(node, set()):
            raise PdctlError(f"{name}, line {twice[1]}: {twice[0]} is there twice", code=Exit.USAGE)
        value = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        said = getattr(error, "problem", "") or str(error)
        raise PdctlError(f"{name}, line {line}: {said}", "a drill file is YAML", Exit.USAGE) from None
    except RecursionError:
        raise PdctlError(f"{name}, line 1: nested too deep", "a drill file is YAML", Exit.USAGE) from None
    if not isinstance(value, dict):
        raise PdctlError(f"{name}, line 1: a drill file is a mapping of keys", code=Exit.USAGE)
    return _Source(name, node, value)


def _twice(node: yaml.Node | None, known: set[int]) -> Iterator[tuple[str, int]]:
    """Yield keys that a mapping has twice: the first would be lost in silence. known: nodes that aliases lead to again."""
    if id(node) in known:
        return
    known.add(id(node))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):  # no other is allowed, which is said later
                if key.value in seen:
                    yield key.value, key.start_mark.line + 1
                seen.add(key.value)
            yield from _twice(value, known)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _twice(value, known)


def _steps(path: str, said: str) -> tuple[str | int, ...]:
    """Return msgspec's ``$.fault.rank[0]`` as steps, with the unknown key where that is what it says."""
    steps: list[str | int] = []
    for key, index in _STEP.findall(path):
        if key:
            steps.append(key)
        elif index.isdecimal():
            steps.append(int(index))
    unknown = re.search(r"contains unknown field `([^`]*)`", said)
    return (*steps, unknown[1]) if unknown else tuple(steps)


# ---- what types do not say -------------------------------------------------------------------------------------------

_Problem = tuple[tuple["str | int", ...], str]


def _problems(drill: Drill) -> Iterator[_Problem]:
    if not _NAME.fullmatch(drill.name):
        yield ("name",), f"{drill.name!r}: use lower-case letters, digits and dashes"
    yield from _duration(("for",), drill.for_, MAX_TTL_S)
    if drill.keep:
        yield from _duration(("keep",), drill.keep, MAX_TTL_S)
    yield from _duration(("settle",), drill.settle, MAX_TTL_S)
    yield from _duration(("stop", "stalled"), drill.stop.stalled, MAX_TTL_S)
    if drill.stop.failed < 0:
        yield ("stop", "failed"), "a number of requests, 0 or more"
    for index, code in enumerate(drill.expect.broken):
        if code not in catalogue():
            yield ("expect", "broken", index), f"there is no finding {code!r}: pdctl explain lists them"
    yield from _load_problems(drill)
    if drill.fault is not None:
        yield from _fault_problems(drill.fault, drill.for_)
    if drill.lab is not None:
        yield from _lab_problems(("lab",), drill.lab)
        if drill.lab.control is not None:
            yield from _lab_problems(("lab", "control"), drill.lab.control)


def _duration(steps: tuple[str | int, ...], text: str, most_s: float) -> Iterator[_Problem]:
    try:
        durations.parse(text, most_s=most_s, what="time")
    except ValueError as error:
        yield steps, str(error)


def _load_problems(drill: Drill) -> Iterator[_Problem]:
    load = drill.load
    if isinstance(load, str):
        if load not in ("none", "lab"):
            yield ("load",), f"{load!r} is none of: none, lab, {{lab: …}}, {{command: […]}}"
        if drill.fault is None:
            yield ("load",), "a drill without a fault needs a load that breaks something: {lab: {prefill_dp: …}}"
        return
    if (load.lab is None) == (load.command is None):
        yield ("load",), "one of lab and command"
    elif load.command is not None and not any(load.command):
        yield ("load", "command"), "a command and its arguments"
    elif load.lab is not None:
        yield from _lab_load_problems(load)
        if drill.fault is None and load.lab.prefill_dp < 0 and not load.lab.abort_after:
            yield ("load", "lab"), "a drill without a fault needs a load that breaks something: prefill_dp, abort_after"


def _lab_load_problems(load: LoadSpec) -> Iterator[_Problem]:
    lab = load.lab
    assert lab is not None
    for name in ("requests", "concurrency", "prompt_tokens", "new_tokens"):
        if not 1 <= getattr(lab, name) <= 1_000_000:
            yield ("load", "lab", name), "a number from 1 to 1000000"
    if not 0 <= lab.rate <= 1e6:
        yield ("load", "lab", "rate"), "requests a second, 0 for no limit"
    if not 0 <= lab.room < 1 << 63:
        yield ("load", "lab", "room"), "a room is 1 to 2^63"
    if lab.abort_after:
        yield from _duration(("load", "lab", "abort_after"), lab.abort_after, MAX_TTL_S)


def _fault_problems(fault: FaultSpec, lives: str) -> Iterator[_Problem]:
    kind = KINDS.get(fault.kind)
    if kind is None:
        yield ("fault", "kind"), f"there is no fault {fault.kind!r}; known: {', '.join(KINDS)}"
        return
    given = {
        Parameter.DURATION: ("delay", fault.delay != ""),
        Parameter.STATE: ("state", fault.state != ""),
        Parameter.DP: ("dp", fault.dp >= 0),
        Parameter.ROOM: ("other_room", fault.other_room > 0),
    }
    for parameter, (name, is_given) in given.items():
        if is_given and parameter is not kind.parameter:
            yield ("fault", name), f"{kind.name} takes no {name}"
        if not is_given and parameter is kind.parameter:
            yield ("fault", name), f"{kind.name} needs {name}"
    if fault.delay:
        most = min(kind.most_s, durations.parse(lives, most_s=MAX_TTL_S))
        yield from _duration(("fault", "delay"), fault.delay, most)
    if fault.state and fault.state not in STATES:
        yield ("fault", "state"), f"{fault.state!r} is none of {', '.join(STATES)}"
    if not fault.rank:
        yield ("fault", "rank"), "name at least one rank"
    for index, pattern in enumerate(fault.rank):
        try:
            role = selectors.parse(pattern).role
        except ValueError as error:
            yield ("fault", "rank", index), str(error)
        else:
            if role in selectors.ROLES and kind.role not in ("any", role):
                yield ("fault", "rank", index), f"{pattern} means {role} ranks, and {kind.name} {kind.role} ranks"
    if not 0 < fault.share <= 1:
        yield ("fault", "share"), "a part of the rooms: over 0, at most 1"
    if not 0 <= fault.room < 1 << 64:
        yield ("fault", "room"), "a room is 1 to 2^64 - 1, 0 for any"
    if not 0 <= fault.hits <= 1_000_000:
        yield ("fault", "hits"), "a number from 1 to 1000000, 0 for no limit"
    for name in ("allow_ranks", "allow_rooms"):
        if not 1 <= getattr(fault, name) <= 1024:
            yield ("fault", name), "a number from 1 to 1024"


def _lab_problems(steps: tuple[str | int, ...], options: LabOptions) -> Iterator[_Problem]:
    from pdctl.lab.config import DEVICES, FIXES, LOAD_BALANCE, SIDES, parse_shape

    for name in ("prefill", "decode"):
        try:
            parse_shape(getattr(options, name))
        except PdctlError as error:
            yield (*steps, name), error.message
    for name, known, values in (
        ("without", tuple(FIXES), options.without),
        ("force_query", SIDES, options.force_query),
        ("load_balance", LOAD_BALANCE, (options.load_balance,)),
        ("metadata_device", ("auto", *DEVICES), (options.metadata_device,)),
    ):
        for value in values:
            if value and value not in known:
                yield (*steps, name), f"{value!r} is none of {', '.join(known)}"
    for name in ("bootstrap_timeout", "waiting_timeout", "group_timeout"):
        if text := getattr(options, name):
            yield from _duration((*steps, name), text, 86_400)
    for name in ("slots", "kv_tokens"):
        if getattr(options, name) < 0:
            yield (*steps, name), "a number, 0 for the lab's own"
