"""Finds ranks by what their agents published in a job's TCPStore (``--store HOST:PORT``).

A child process reads each store; it is killed at the deadline. An entry is only a claim: its rank is asked for its
identity, over CURVE, before any other question. Anybody who can write into the store can invent entries. With
``--server-key`` only that key is accepted.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import pdctl
from pdctl.protocol import extras, keys, structs
from pdctl.protocol.errors import PdctlError
from pdctl.protocol.rank import FoundRank, Silence
from pdctl.protocol.store_schema import MAX_READ, STALE_S, Beat, Entry, RawEntry, Read
from pdctl.targets import registration
from pdctl.targets.places import Store, parse_endpoint
from pdctl.targets.resolve import unresolved

MAX_STORES = 64
"""Stores of one name that are read, with a process each."""
_LOOK_S = 0.02


def read(wanted: Sequence[Store], timeout_s: float) -> list[Read]:
    """Return the content of each store, or the reason without it, within ``timeout_s`` for all together.

    Raises PdctlError (USAGE) if torch is not installed.
    """
    if wanted:
        extras.require("store", "--store")
    end = time.monotonic() + timeout_s
    nowhere = unresolved((store.host for store in wanted), timeout_s / 2)
    answers = {store: Read(error=nowhere.get(store.host) or _nobody(store, min(1.0, timeout_s))) for store in wanted}
    with ExitStack() as stack:
        children = {
            store: stack.enter_context(_Child(store, timeout_s)) for store in wanted if not answers[store].error
        }
        while time.monotonic() < end and not all(child.done for child in children.values()):
            time.sleep(_LOOK_S)
        answers.update({store: child.answer(timeout_s) for store, child in children.items()})
    return [answers[store] for store in wanted]


def at_each_address(store: Store, addresses: Sequence[str], problems: list[str]) -> list[Store]:
    """Return the stores to read for one that was named: a name with many addresses is a store at each of them."""
    if len(addresses) < 2:
        return [store]
    if len(addresses) > MAX_STORES:
        problems.append(f"store {store} has {len(addresses)} addresses; {MAX_STORES} were read")
    return [Store(address, store.port) for address in addresses[:MAX_STORES]]


class _Child:
    """A process that reads one store, and is killed at the end of the ``with`` block."""

    def __init__(self, store: Store, timeout_s: float) -> None:
        arguments = (store.host, str(store.port), f"{timeout_s:g}")
        command = [sys.executable, "-m", "pdctl.targets.sources.store_child", *arguments]
        self._out = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._out, stderr=subprocess.DEVNULL, env=_env()
        )

    def __enter__(self) -> _Child:  # noqa: PYI034  # typing.Self is newer than Python 3.10
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def answer(self, timeout_s: float) -> Read:
        """Return the content, or the reason without it: the child has not ended, or has failed."""
        if not self.done:
            if not os.fstat(self._out.fileno()).st_size:
                return Read(
                    error=f"not asked: torch was not loaded within {round(timeout_s, 3):g} s here; give it more --timeout"
                )
            return Read(error=f"no answer within {round(timeout_s, 3):g} s: it is busy, stopped, or no TCPStore")
        self._out.seek(0)
        try:
            return structs.from_json(self._out.read(2 * MAX_READ), Read)
        except ValueError:
            status = self._process.returncode
            return Read(error=f"it can't be read: torch's client ended with status {status}; it may be no TCPStore")


def _env() -> dict[str, str]:
    """Return the environment of a child: it finds pdctl where this process did."""
    here = str(Path(pdctl.__file__).resolve().parents[1])
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{path}" if path else here, "OMP_NUM_THREADS": "1"}


def _nobody(store: Store, wait_s: float) -> str:
    """Return why nothing listens at a store's address, "" if something does. This avoids loading torch in vain."""
    try:
        socket.create_connection((store.host, store.port), timeout=wait_s).close()
    except TimeoutError:
        return "no connection"
    except OSError as error:
        return f"no connection: {error.strerror or error}"
    return ""


def entries(found: Sequence[RawEntry], problems: list[str]) -> list[tuple[Entry, Beat | None]]:
    """Return the entries of a store that this pdctl can decode. The others are added to ``problems``."""
    known = []
    for one in found:
        try:
            entry = structs.from_json(one.entry, Entry)
            beat = structs.from_json(one.beat, Beat) if one.beat else None
        except ValueError as error:
            problems.append(f"{one.name[:120]!r} in the store: not understood: {error}"[:300])
            continue
        known.append((entry, beat))
    return known


def rank_of_entry(entry: Entry, beat: Beat | None, pinned: str) -> FoundRank:
    """Return the rank that an entry names, before it is asked. pinned: the only server key to accept, "" for any.

    silent is set if the rank must not be asked.
    """
    r = entry.registration
    rank = registration.apply_registration(FoundRank(r.identity, "live", endpoint=entry.endpoint), r)
    if beat is not None and beat.ended:
        why = "its agent said in the store that it ended"
        return replace(rank, state="dead", silent=Silence.DEAD, silent_why=why)
    if not entry.endpoint:
        off = f"{r.tcp_off or 'its agent listens on no TCP address'}; its own socket is on {r.identity.host}"
        return replace(rank, endpoint_off=off, silent=Silence.NO_SOCKET, silent_why=off)
    try:
        parse_endpoint(entry.endpoint)
    except PdctlError:
        why = f"its endpoint in the store is none: {entry.endpoint[:80]!r}"
        return replace(rank, endpoint="", endpoint_off=why, silent=Silence.GARBAGE, silent_why=why)
    if pinned and r.server_key != pinned:
        why = "the key it has in the store is not the one that was given as its server key"
        return replace(rank, silent=Silence.NOT_AUTHORISED, silent_why=why)
    if r.server_key and not keys.is_public(r.server_key):
        return replace(rank, silent=Silence.GARBAGE, silent_why="what it has in the store as its key is none")
    if not r.server_key and not entry.endpoint.startswith(("tcp://127.", "tcp://[::1]")):
        return replace(rank, silent=Silence.NOT_AUTHORISED, silent_why="it has no key in the store")
    return rank


def age_of(beat: Beat | None, read_ns: int) -> float:
    """Return how old a heartbeat was when its store was read, seconds, inf where there is none."""
    return max(0.0, (read_ns - beat.wall_ns) / 1e9) if beat is not None else float("inf")


def silent_rank(rank: FoundRank, age_s: float, *, refused: bool) -> FoundRank:
    """Return a rank that did not answer, as live or dead by the age of its heartbeat when its store was read.

    refused: its endpoint refuses connections. Hosts' clocks are assumed to agree within seconds. ``dead`` is not
    certain here: a fault that the rank held may still be in place.
    """
    said = "no heartbeat is in the store"
    if age_s != float("inf"):
        said = f"its last heartbeat in the store was {age_s:.0f} s ago"
    if refused:
        why = f"nobody listens at its endpoint any more: its process has ended, or its agent; {said}"
        return replace(rank, state="dead", silent=Silence.REFUSED, silent_why=why)
    state = "dead" if age_s > STALE_S else rank.state
    return replace(rank, state=state, silent_why=f"{rank.silent_why}; {said}")
