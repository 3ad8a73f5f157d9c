"""Asks bootstrap servers what they know, as a decode rank does, and comes back by its deadline whatever they do.

Each server is asked on a thread of its own. Where the address belongs to another network namespace, that thread enters
it first (as ``nsenter -n`` does), so that 127.0.0.1 is the rank's and not ours.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from pdctl.introspect.network import enter
from pdctl.probes.routing.model import Fault, Place, ServerView
from pdctl.protocol.numbers import PORT, whole
from pdctl.protocol.requests import PREFILL_FACTS

BATCH = 1000
"""Rooms in one question."""
MAX_ANSWER = 4 << 20
_EVERYTHING = -1
_NO_HOST = re.compile(r"[\x00-\x20\x7f]")
"""What no name of a host has. Clients of the engine send such names."""


@dataclass(frozen=True)
class Question:
    """What to ask one server. enter: pid whose network namespace to ask from, 0 for this process's own."""

    address: str
    network: str = ""
    enter: int = 0
    rooms: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()


@dataclass
class _Asking:
    """A question under way. view grows while answers come in; sock is shut to end the thread early."""

    question: Question
    view: ServerView
    sock: socket.socket | None = None
    over: threading.Event = field(default_factory=threading.Event)


class _NoAnswer(Exception):  # noqa: N818  # it is an answer of its own
    """Why a server did not answer, as a sentence, and of what kind that is."""

    def __init__(self, why: str, fault: Fault = Fault.OTHER, *, timed_out: bool = False) -> None:
        super().__init__(why)
        self.fault = fault
        self.timed_out = timed_out


def ask(questions: Sequence[Question], deadline_s: float, enough_s: float = 0.0) -> list[ServerView]:
    """Return one view a question, in order, at the latest ``deadline_s`` seconds from now.

    What had not been answered by then is said in the view; the rest of it stands. enough_s: one that gives no answer in less is
    not said to give none.
    """
    end = time.monotonic() + deadline_s
    hurried = deadline_s < enough_s
    askings = []
    for question in questions:
        slow = f"no answer within {deadline_s:.3g} s" + ", all that was left of the time for it" * hurried
        fault = Fault.OTHER if hurried else Fault.SILENT
        start = ServerView(question.address, question.network, silence=slow, fault=fault, hurried=hurried)
        asking = _Asking(question, start)
        threading.Thread(target=_run, args=(asking, end), name="bootstrap-question", daemon=True).start()
        askings.append(asking)
    late = [asking for asking in askings if not asking.over.wait(max(0.0, end - time.monotonic()))]
    views = [_cut(asking, deadline_s) for asking in askings]
    for asking in late:
        if asking.sock is not None:
            try:
                asking.sock.shutdown(socket.SHUT_RDWR)  # its thread ends instead of reading on
            except OSError:
                pass
    return views


def _cut(asking: _Asking, deadline_s: float) -> ServerView:
    view = asking.view
    left = set(asking.question.rooms) - view.asked
    if not view.silence and left and not view.asked_off:
        return replace(view, asked_off=f"no answer within {deadline_s:g} s for {len(left)} of the rooms")
    return view


def _run(asking: _Asking, end: float) -> None:
    question = asking.question
    try:
        if question.enter:
            _enter(question.enter)
            asking.view = replace(asking.view, way=f"from the network namespace of pid {question.enter}")
        _converse(asking, end)
    except _NoAnswer as error:
        if asking.view.silence and not (asking.view.hurried and error.timed_out):
            asking.view = replace(asking.view, silence=str(error), fault=error.fault, hurried=False)
        elif not asking.view.silence:
            asking.view = replace(asking.view, asked_off=str(error))
    finally:
        asking.over.set()


def _enter(pid: int) -> None:
    try:
        enter(pid)
    except PermissionError as error:
        raise _NoAnswer(
            f"it is in the network namespace of pid {pid}, which this user may not enter ({error.strerror}): run pdctl as "
            f"root, or inside it: nsenter -t {pid} -n pdctl verify-routing"
        ) from None
    except OSError as error:
        raise _NoAnswer(
            f"it is in the network namespace of pid {pid}, which can't be opened: {error.strerror}"
        ) from None


def _converse(asking: _Asking, end: float) -> None:
    """Ask for the server's facts, for its ranks, then for the rooms, over one connection. Raises _NoAnswer."""
    try:
        host, port = split(asking.question.address)
    except ValueError as error:
        raise _NoAnswer(str(error)) from None
    connection = http.client.HTTPConnection(host, port, timeout=max(0.001, end - time.monotonic()))
    try:
        status, body = _call(connection, asking, end, "GET", _route((_EVERYTHING,) * 4))
        if status == 200:
            info = _mapping(body, "/route")
            facts = {name: str(info[name])[:200] for name in PREFILL_FACTS if info.get(name) is not None}
            asking.view = replace(asking.view, silence="", fault=Fault.NONE, hurried=False, info=facts)
        elif status == 503:  # not all of its ranks have registered
            off = f"{status}: {body.strip()[:200]}"
            asking.view = replace(asking.view, silence="", fault=Fault.NONE, hurried=False, info_off=off)
        elif status >= 500:
            raise _NoAnswer(f"GET /route is answered with status {status}: it, or what is behind it, fails")
        else:
            raise _NoAnswer(f"GET /route is answered with status {status}: it is no bootstrap server")
        _rooms(connection, asking, end)
        if status == 200:
            with contextlib.suppress(_NoAnswer):  # the rest of the answer stands without
                _places(connection, asking, end)
    finally:
        connection.close()


def _rooms(connection: http.client.HTTPConnection, asking: _Asking, end: float) -> None:
    for batch in _batches(asking.question.rooms, BATCH):
        status, body = _call(connection, asking, end, "POST", "/query_dp_ranks", {"bootstrap_rooms": batch})
        if status != 200:
            raise _NoAnswer(f"POST /query_dp_ranks is answered with status {status}")
        answer = _mapping(body, "/query_dp_ranks")
        found = {whole(str(room)): whole(str(dp)) for room, dp in answer.items()}
        if None in found or None in found.values():
            raise _NoAnswer("POST /query_dp_ranks is not answered with rooms and dp ranks")
        view = asking.view
        asked = frozenset(batch)
        wanted = {room: dp for room, dp in found.items() if room in asked and dp is not None}
        asking.view = replace(view, dp_ranks={**view.dp_ranks, **wanted}, asked=view.asked | asked)


def _places(connection: http.client.HTTPConnection, asking: _Asking, end: float) -> None:
    for place in asking.question.places:
        status, body = _call(connection, asking, end, "GET", _route(place))
        port = _mapping(body, "/route").get("rank_port") if status == 200 else -1
        number = -1 if port == -1 else whole(port if isinstance(port, str) else str(port), PORT)
        if number is not None:
            asking.view = replace(asking.view, routes={**asking.view.routes, place: number})


def _route(place: Place) -> str:
    dp, cp, tp, pp = place
    return f"/route?prefill_dp_rank={dp}&prefill_cp_rank={cp}&target_tp_rank={tp}&target_pp_rank={pp}"


def _batches(rooms: Collection[int], size: int) -> Iterator[list[int]]:
    left = iter(rooms)
    while batch := list(islice(left, size)):
        yield batch


def _call(
    connection: http.client.HTTPConnection, asking: _Asking, end: float, method: str, path: str, body: Any = None
) -> tuple[int, Any]:
    """Return (status, decoded body or text). Raises _NoAnswer."""
    left = end - time.monotonic()
    if left <= 0:
        raise _NoAnswer("the time for it was over", timed_out=True)
    try:
        connection.timeout = left
        if connection.sock is not None:
            connection.sock.settimeout(left)
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        asking.sock = connection.sock
        response = connection.getresponse()
        data = response.read(MAX_ANSWER + 1)
    except TimeoutError:
        if connection.sock is None:
            raise _NoAnswer("it can't be connected to in time", Fault.UNREACHABLE, timed_out=True) from None
        silent = f"it accepts a connection and does not answer {method} {path.partition('?')[0]}"
        raise _NoAnswer(silent, Fault.SILENT, timed_out=True) from None
    except OSError as error:
        raise _NoAnswer(f"{error.strerror or error}".lower(), _fault(error)) from None
    except (http.client.HTTPException, ValueError) as error:
        raise _NoAnswer(f"it does not speak HTTP: {type(error).__name__}") from None
    if len(data) > MAX_ANSWER:
        raise _NoAnswer(f"its answer is longer than {MAX_ANSWER >> 20} MiB")
    text = data.decode("utf-8", "replace")
    if response.status != 200:
        return response.status, text
    try:
        return response.status, json.loads(text)
    except (ValueError, RecursionError):
        raise _NoAnswer(
            f"{method} {path.partition('?')[0]} is not answered with JSON: it is no bootstrap server"
        ) from None


def _fault(error: OSError) -> Fault:
    if isinstance(error, ConnectionRefusedError):
        return Fault.REFUSES
    if isinstance(error, socket.gaierror):
        return Fault.UNRESOLVED
    return Fault.UNREACHABLE if error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH) else Fault.OTHER


def _mapping(body: Any, path: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise _NoAnswer(f"{path} is not answered with an object: it is no bootstrap server")
    return body


def split(address: str) -> tuple[str, int]:
    """Return (host, port) of ``host:port``; IPv6 in brackets. Raises ValueError for anything else."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    number = whole(port, PORT)
    if not colon or not host or not number or _NO_HOST.search(host):
        raise ValueError(f"{address!r} is no HOST:PORT")
    return host, number
