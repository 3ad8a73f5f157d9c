from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.introspect import selftest
from pdctl.introspect.interpreter import ForeignError, environments, layout_of
from pdctl.introspect.layouts import LAYOUTS
from pdctl.introspect.memory import PAGE, BadAddressError, Bulk, Memory
from pdctl.introspect.objects import Objects
from pdctl.introspect.proxy import Proxy, World, modules
from tests.support.outside_targets import READABLE, pythons

ROOT = Path(__file__).parents[3]


class Holder:
    kind = "of the class"

    def __init__(self) -> None:
        self.value = 7


def proxy_of(value: object) -> Proxy:
    world = World(Objects(Memory(os.getpid()), LAYOUTS[sys.version_info[:2]]))
    found = world.at(id(value))
    assert isinstance(found, Proxy)
    return found


@pytest.mark.skipif(sys.version_info[:2] not in LAYOUTS, reason="no layout of this version")
def test_own_objects_are_read_as_they_are() -> None:
    assert selftest.own() == ""


@pytest.mark.parametrize("version", READABLE)
def test_other_pythons_read_their_own_objects(version: tuple[int, int]) -> None:
    name = ".".join(map(str, version))
    python = pythons().get(name)
    if python is None:
        pytest.skip(f"no Python {name} here")
    program = "from pdctl.introspect.layouts import LAYOUTS; from pdctl.introspect.selftest import check; import sys\n"
    program += "print(repr(check(LAYOUTS[sys.version_info[:2]])))"
    done = subprocess.run([python, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "''\n"


def test_a_layout_of_another_version_is_noticed() -> None:
    from dataclasses import replace

    here = sys.version_info[:2]
    shifted = LAYOUTS[here].compact[0] + 8
    wrong = replace(LAYOUTS[here], compact=(shifted, shifted))
    assert selftest.check(wrong) != ""
    other = next(layout for version, layout in LAYOUTS.items() if version != here)
    assert "not" in selftest.check(other)


def test_what_is_not_there_is_an_attribute_error_and_nothing_can_be_called() -> None:
    held = Holder()
    seen = proxy_of(held)
    assert (seen.value, seen.kind, seen.__class__.__name__) == (7, "of the class", "Holder")
    assert getattr(seen, "other", None) is None
    with pytest.raises(AttributeError):
        _ = seen.__class__.other
    with pytest.raises(TypeError):
        seen.__init__.__code__()


def test_modules_are_found_from_an_object() -> None:
    held = Holder()
    seen = proxy_of(held)
    found = modules(seen.pdctl_world, seen, ("sys", "json", "no.such.module"))
    assert found["sys"] == id(sys)
    assert "no.such.module" not in found


def test_addresses_that_are_no_memory_are_refused() -> None:
    memory = Memory(os.getpid())
    for address in (0, 8, 1 << 63, 0x10000):
        with pytest.raises(BadAddressError):
            memory.read(address, 16)


def test_bulk_says_how_far_it_got() -> None:
    import mmap

    mapped = mmap.mmap(-1, 2 * PAGE)
    mapped.write(b"x" * 2 * PAGE)
    import ctypes

    start = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    bulk = Bulk([start, start + PAGE, 0x10000])
    assert bulk.read(os.getpid()) == 2
    assert bulk.pages() == {start: b"x" * PAGE, start + PAGE: b"x" * PAGE}


@pytest.mark.parametrize(
    ("paths", "version"),
    [
        (["/usr/bin/python3.11"], (3, 11)),
        (["/opt/engine", "/usr/lib/x86_64-linux-gnu/libpython3.12.so.1.0"], (3, 12)),
        (["/opt/python", "/v/lib/python3.10/lib-dynload/_json.cpython-310-x86_64-linux-gnu.so"], (3, 10)),
        (["/usr/bin/python3.11", "/v/lib-dynload/_json.cpython-313-aarch64-linux-gnu.so"], (3, 13)),
    ],
)
def test_the_version_is_told_by_the_files_in_use(paths: list[str], version: tuple[int, int]) -> None:
    assert layout_of(paths).version == version


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (["/usr/bin/sleep"], "no Python process, it runs /usr/bin/sleep"),
        (["/usr/bin/pypy3.10"], "not CPython"),
        (["/usr/bin/python3.9"], "Python 3.9: objects of CPython 3.10 to 3.13"),
        (["/usr/bin/python3.14"], "Python 3.14"),
        (["/usr/bin/python3.13t"], "free-threaded"),
        (["/v/python3.13", "/v/_json.cpython-313t-x86_64-linux-gnu.so"], "free-threaded"),
        (["/usr/bin/python3.11d"], "debug build"),
    ],
)
def test_what_can_not_be_read_is_refused_in_words(paths: list[str], words: str) -> None:
    with pytest.raises(ForeignError, match=words):
        layout_of(paths)


def test_environments_are_those_of_the_packages_in_use() -> None:
    paths = ["/usr/bin/python3.11", "/srv/venv/lib/python3.11/site-packages/torch/_C.so"]
    assert environments(paths) == [Path("/srv/venv"), Path("/usr")]
