"""Drill files: what is wrong is named with file, line and key; what comes with pdctl is right."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import msgspec
import pytest
import yaml

from pdctl.commands.schema import load_schema
from pdctl.inject.drill import files
from pdctl.inject.drill.own_lab import config, merged
from pdctl.lab.config import LabConfig
from pdctl.protocol.errors import Exit, PdctlError

GOOD = """\
name: mine
about: what it shows
fault:
  kind: delay-metadata
  rank: [decode:tp1]
  delay: 2s
load: none
for: 10s
"""


def refused(text: str) -> str:
    with pytest.raises(PdctlError) as caught:
        files.parse(text, "mine.yaml")
    assert caught.value.code == Exit.USAGE
    return caught.value.message


def test_a_good_file() -> None:
    drill = files.parse(GOOD, "mine.yaml")
    assert (drill.name, drill.for_, drill.load) == ("mine", "10s", "none")
    assert drill.fault is not None
    assert drill.fault.rank == ("decode:tp1",)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("  delay: 2s", "  dely: 2s", "mine.yaml, line 6: fault.dely: Object contains unknown field"),
        ("kind: delay-metadata", "kind: delay-meta", "mine.yaml, line 4: fault.kind: there is no fault 'delay-meta'"),
        ("delay: 2s", "delay: 2", "mine.yaml, line 6: fault.delay: Expected `str`, got `int`"),
        ("delay: 2s", "delay: -2s", "mine.yaml, line 6: fault.delay: time '-2s' is negative"),
        ("delay: 2s", "delay: 11s", "mine.yaml, line 6: fault.delay: time '11s' is over the limit of 10s"),
        ("  delay: 2s\n", "", "fault.delay: delay-metadata needs delay"),
        ("  delay: 2s", "  delay: 2s\n  dp: 1", "mine.yaml, line 7: fault.dp: delay-metadata takes no dp"),
        ("[decode:tp1]", "[decode:tp1, x9]", "mine.yaml, line 5: fault.rank[1]: rank pattern 'x9'"),
        ("[decode:tp1]", "[]", "mine.yaml, line 5: fault.rank: name at least one rank"),
        ("[decode:tp1]", "['prefill:tp0']", "mine.yaml, line 5: fault.rank[0]: prefill:tp0 means prefill ranks"),
        ("delay: 2s", f"delay: {'9' * 5000}", "can't be read as int"),
        ("delay: 2s", "delay: 2026-13-13", "mine.yaml, line 6: '2026-13-13' can't be read"),
        ("load: none", "load: all", "mine.yaml, line 7: load: 'all' is none of"),
        ("load: none", "load: {}", "mine.yaml, line 7: load: one of lab and command"),
        ("load: none", "load: {lab: {requests: 0}}", "mine.yaml, line 7: load.lab.requests: a number from 1"),
        ("load: none", "load: {lab: {to: moon}}", "mine.yaml, line 7: load.lab.to: Invalid enum value 'moon'"),
        ("for: 10s", "for: 16m", "mine.yaml, line 8: for: time '16m' is over the limit of 15m"),
        ("for: 10s", "for: 10s\nexpect: {broken: [PD999]}", "line 9: expect.broken[0]: there is no finding 'PD999'"),
        ("for: 10s", "for: 10s\nlab: {without: [gat]}", "mine.yaml, line 9: lab.without: 'gat' is none of gate"),
        ("for: 10s", "for: 10s\nlab: {decode: tp=99}", "mine.yaml, line 9: lab.decode: 'tp=99' is no size"),
        ("for: 10s", "for: 10s\nseed: -1", "mine.yaml, line 9: seed: Expected `int` >= 0"),
        ("for: 10s", "for: 10s\nseed: 99999999999999999999", "mine.yaml, line 9: seed: "),
        ("for: 10s", "for: 10s\nfor: 11s", "mine.yaml, line 9: for is there twice"),
        ("for: 10s", "for: [10s", "mine.yaml, line 9: expected ',' or ']'"),
        ("name: mine", "name: Mine", "mine.yaml, line 1: name: 'Mine'"),
        ("name: mine\n", "", "Object missing required field `name`"),
        ("for: 10s", "for: !!python/object:os.system x", "mine.yaml, line 8: could not determine a constructor"),
        ("for: 10s", "for: !!bool x", "mine.yaml, line 8: 'x' can't be read as bool"),
        ("for: 10s", "for: !!timestamp x", "mine.yaml, line 8: 'x' can't be read as timestamp"),
        ("for: 10s", "for: 10s\n? [a]\n: b", "mine.yaml, line 9: found unhashable key"),
        ("for: 10s", "for: 10s\n<<: {seed: 1}", "mine.yaml, line 9: could not determine a constructor"),
    ],
)
def test_errors_name_file_line_and_key(old: str, new: str, says: str) -> None:
    assert old in GOOD
    assert says in refused(GOOD.replace(old, new))


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 40))
MERGED = "a0: &a0 {x: y}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 40))
"""Files of a few KiB whose values, written out, have no end."""


@pytest.mark.parametrize("text", ["", "- a\n", "just words\n", "[" * 5000, "a\0: b", BOMB])
def test_what_is_no_drill_at_all(text: str) -> None:
    assert refused(text).startswith("mine.yaml, line 1: ")


def test_mappings_are_not_merged() -> None:
    assert refused(MERGED).startswith("mine.yaml, line 2: could not determine a constructor")


def test_without_a_fault_the_load_must_break_something() -> None:
    text = "name: x\nabout: y\nload: {lab: {requests: 1}}\n"
    assert "line 3: load.lab: a drill without a fault needs" in refused(text)
    assert files.parse(text.replace("requests: 1", "prefill_dp: 0, room: 7"), "f").fault is None


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for name, says in (("absent.yaml", "can't be read"), ("binary.yaml", "is not UTF-8")):
        with pytest.raises(PdctlError, match=says) as caught:
            files.load(tmp_path / name)
        assert caught.value.code == Exit.USAGE
    with pytest.raises(PdctlError, match="there is no drill 'nope'") as caught:
        files.find("nope")
    assert "metadata-gate" in caught.value.next_step


@pytest.mark.parametrize("name", files.built_in())
def test_built_in_drills(name: str, tmp_path: Path) -> None:
    path = files.find(name)
    drill = files.load(path)
    assert drill.name == name
    jsonschema.Draft202012Validator(load_schema("pdctl.drill.file")).validate(yaml.safe_load(path.read_text()))
    assert drill.lab is not None, "each says which lab it needs"
    if drill.name == "slow-rank":
        assert drill.lab.control is None, "being slow is no bug, and there is no fix to leave out"
        return
    assert drill.lab.control is not None, "and what its control leaves out"
    with_fix, without = (config(drill, tmp_path, control=control) for control in (False, True))
    assert with_fix.without == ()
    assert msgspec.structs.replace(with_fix, name="") != msgspec.structs.replace(without, name="")


def test_the_controls_options_go_over_the_labs() -> None:
    text = GOOD + "lab: {prefill: tp=2, slots: 4, control: {without: [gate], slots: 1, waiting_timeout: 3s}}\n"
    drill = files.parse(text, "f")
    assert drill.lab is not None
    options = merged(drill.lab, drill.lab.control)
    assert (options.prefill, options.slots, options.without) == ("tp=2", 1, ("gate",))
    made = config(drill, Path("/x"), control=True)
    assert (made.prefill.tp, made.slots, made.waiting_timeout_s) == (2, 1, 3.0)
    assert made.group_timeout_s == LabConfig(name="x").group_timeout_s
    with pytest.raises(PdctlError, match="says nothing of a lab"):
        config(files.parse(GOOD, "f"), Path("/x"), control=False)
