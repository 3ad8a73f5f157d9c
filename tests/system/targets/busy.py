"""A program to start threads in: its main thread allocates all the time, others wait in every way there is.

    busy.py FOLDER [gil]

Each waiting thread counts its turns into FOLDER/NAME; with ``gil`` the main thread first holds the GIL until
standard input ends.
"""

from __future__ import annotations

import ctypes
import select
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = Path(sys.argv[1])
WAKE_S = 0.05


def counted(name: str, wait: Callable[[], object]) -> None:
    turns = 0
    while True:
        wait()
        turns += 1
        (FOLDER / name).write_text(str(turns))


def polls() -> None:
    poller = select.poll()
    counted("poll", lambda: poller.poll(WAKE_S * 1000))


def epolls() -> None:
    poller = select.epoll()
    counted("epoll", lambda: poller.poll(WAKE_S))


def main() -> None:
    never = threading.Event()
    waits = (
        lambda: counted("sleep", lambda: time.sleep(WAKE_S)),
        lambda: counted("futex", lambda: threading.Event().wait(WAKE_S)),
        lambda: counted("select", lambda: select.select([], [], [], WAKE_S)),
        polls,
        epolls,
        never.wait,
        never.wait,
    )
    for wait in waits:
        threading.Thread(target=wait, daemon=True).start()
    (FOLDER / "up").write_text("")
    if "gil" in sys.argv:
        ctypes.PyDLL(None).read(0, ctypes.create_string_buffer(1), 1)
    junk: list[object] = []
    turns = 0
    while True:
        junk.append(bytearray(turns % 5000))
        turns += 1
        if len(junk) > 500:
            junk = [str(n) * 3 for n in range(50)]
        if turns % 2000 == 0:
            (FOLDER / "main").write_text(str(turns))


if __name__ == "__main__":
    main()
