"""The rank's side of its gateway: start the process that listens for other hosts, read its messages, restart it.

The engine's process holds only two pipes to the gateway: no libzmq, no connection, no buffer. The gateway gets no descriptor of
the engine, and almost none of its environment. It ends with the rank, however the rank ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pdctl
from pdctl.protocol.listen import parse_listen

START_S = 30.0
"""How long a gateway may take until it listens. It takes 0.2 s where the machine has time."""
_PAUSES_S = (0.2, 60.0)
"""The pause before another one is started, at first and at most; it doubles while they end soon."""
_LASTED_S = 60.0
_MAX_LINE = 4096
_MAX_NOTES = 64
_LAST_WORDS = 200
_PROGRAM = Path(pdctl.__file__).parent / "gateway" / "process.py"
_NEEDS, _USES = ("zmq", "msgspec"), ("numpy",)
_PASSED_ON = ("HOME", "XDG_CONFIG_HOME", "PDCTL_KEYS", "PDCTL_LISTEN_OPEN")
_OF_PYTHON = ("LD_LIBRARY_PATH", "PYTHONHOME")
_GIVES_BACK = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""So that the C library gives memory back to the system as soon as it is free."""


class Gateway:
    """A running gateway. endpoint: ``tcp://HOST:PORT``. server_key: its public key for clients, "" if it is open.

    After construction only the agent's thread uses it. It calls ``ready`` once a turn, and wakes up for ``fileno``.
    """

    def __init__(
        self,
        env: Mapping[str, str],
        socket_path: Path,
        note: Callable[[str], None],
        rotated: Callable[[str], None] = lambda _: None,
        recording: tuple[str, int] = ("", 0),
    ) -> None:
        """Start the gateway and wait until it listens. Raises ValueError or OSError with the reason; nothing is left then.

        env: variables with the listen address and the key directory. socket_path: the rank's own socket, which gets the
        requests. note: callback for notes. rotated: callback for a new public key of the gateway. recording: the path of the
        rank's recording, "" without one, and the start time of its process.
        """
        listen = env.get("PDCTL_LISTEN", "")
        parse_listen(listen)
        self._note = note
        self._rotated = rotated
        self._setup = {
            "pid": os.getpid(),
            "socket": str(socket_path),
            "listen": listen,
            "env": {name: env[name] for name in _PASSED_ON if env.get(name)},
            "path": _paths(),
            "thread": 0,
            "recording": str(Path(recording[0]).absolute()) if recording[0] else "",
            "proc_start": recording[1],
        }
        self.endpoint = ""
        self.server_key = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._said = bytearray()
        self._last_words = ""
        self._failed = ""
        self._listens = False
        self._noted: set[str] = set()
        self._pause_s = _PAUSES_S[0]
        self._began = self._again_at = time.monotonic()
        try:
            self._start()
            self._wait()
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when ``ready`` has work, -1 if ``ready`` only waits for time."""
        return self._process.stdout.fileno() if self._process is not None and self._process.stdout is not None else -1

    def ready(self) -> None:
        """Read the gateway's messages, without waiting. Restart a gateway that has ended, when its delay is over."""
        now = time.monotonic()
        if not self._setup["thread"]:
            self._setup["thread"] = threading.get_native_id()
            self._tell({"thread": self._setup["thread"]})
        if self._process is None:
            if now >= self._again_at:
                self._start_again()
        elif not self._hear():
            self._again("its gateway", self._end())
        elif not self._listens and now - self._began > START_S:
            self._end()
            self._again("its gateway", f"did not listen within {START_S:g} s")

    def close(self) -> None:
        """End it."""
        self._end()

    def forked(self) -> None:
        """Release the gateway in a forked child: it belongs to the parent."""
        self._close_pipes()

    def _close_pipes(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()

    # ---- start and end ----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if not sys.executable:
            raise OSError("there is no Python to start its gateway with")
        self._said.clear()
        self._last_words, self._failed, self._listens = "", "", False
        self._began = time.monotonic()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM), str(os.getpid())],
                env={**{name: os.environ[name] for name in _OF_PYTHON if name in os.environ}, **_GIVES_BACK},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0, close_fds=True,
                cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise OSError(f"can't start its gateway: {error.strerror or error}") from None
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        os.set_blocking(self.fileno(), False)
        self._tell(self._setup)

    def _wait(self) -> None:
        """Wait until it listens. Raises OSError with the reason where it does not."""
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while not self._listens:
            left = START_S - (time.monotonic() - self._began)
            if left <= 0:
                raise OSError(f"its gateway did not listen within {START_S:g} s")
            poll.poll(left * 1000)
            if not self._hear() or self._failed:
                ended = self._end()
                raise OSError(self._failed or f"its gateway {ended}")
        self._setup["listen"] = self.endpoint  # the same port, whenever it is started again

    def _start_again(self) -> None:
        try:
            self._start()
        except Exception as error:  # no process to be had: later, perhaps
            self._end()
            self._again("another gateway", f"{error}")

    def _again(self, who: str, why: str) -> None:
        """Schedule a restart. The delay grows if gateways end soon after their start."""
        now = time.monotonic()
        lasted = now - self._began > _LASTED_S and self._listens
        self._pause_s = _PAUSES_S[0] if lasted else min(2 * self._pause_s, _PAUSES_S[1])
        self._again_at = now + self._pause_s
        self._once(f"TCP socket: {who} {why}; another one is started")

    def _end(self) -> str:
        """End the process, if there is one. Return how it ended."""
        process = self._process
        if process is None:
            return "has ended"
        with contextlib.suppress(OSError):
            process.kill()  # whoever holds its pipes: a child of the engine may
        self._close_pipes()
        self._process = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2.0)
        words = f": {self._last_words}" if self._last_words else ""
        return f"{_how(process.returncode)}{words}"

    # ---- what is said -----------------------------------------------------------------------------------------------

    def _tell(self, what: dict[str, Any]) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), json.dumps(what).encode() + b"\n")

    def _hear(self) -> bool:
        """Read its messages. Return whether more can come."""
        try:
            data = os.read(self.fileno(), 1 << 16)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._said += data
        while b"\n" in self._said:
            line, _, rest = bytes(self._said).partition(b"\n")
            self._said = bytearray(rest)
            self._take(line)
        del self._said[:-_MAX_LINE]
        return True

    def _take(self, line: bytes) -> None:
        try:
            said = json.loads(line)
            [(what, text), *more] = ((str(name), str(value)) for name, value in said.items())
        except (ValueError, AttributeError, RecursionError):
            self._last_words = line.decode(errors="replace")[:_LAST_WORDS]
            return
        if what == "endpoint":
            key = dict(more).get("server_key", "")
            self.endpoint, self._listens = text, True
            if self._setup["thread"] and key != self.server_key:  # it was changed while there was no gateway
                self._rotated(key)
            self.server_key = key
        elif what == "rotated":
            self.server_key = text
            self._rotated(text)
        elif what == "failed":
            self._failed = self._last_words = text
        elif what == "note":
            self._once(text)

    def _once(self, text: str) -> None:
        """Note a text once, even if several gateways send it."""
        if text not in self._noted and len(self._noted) < _MAX_NOTES:
            self._noted.add(text)
            self._note(text)


def _how(code: int | None) -> str:
    if code is None:
        return "can't be ended"
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


def _paths() -> list[str]:
    """Return the import path of the gateway: only the directories that it needs."""
    found = [str(Path(pdctl.__file__).parent.parent)]
    for name in (*_NEEDS, *_USES):
        spec = importlib.util.find_spec(name)  # without loading it
        if spec is None or not spec.submodule_search_locations:
            if name in _USES:
                continue
            raise OSError(f"there is no {name} here, which its gateway needs")
        found += [str(Path(place).parent) for place in spec.submodule_search_locations]
    return list(dict.fromkeys(found))
