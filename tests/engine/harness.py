"""Prefill/decode pairs of real SGLang servers in a network namespace of their own, with run directories of their own.

::

    with loopback_namespace() as ns, Pair.start(env, ns, tmp_path, decode_tp=2) as pair:
        pair.generate(3)                     # three requests at once, each to both servers
        pair.ranks()                         # what `pdctl.targets.find` finds
        pair.recordings()                    # label → recording, read from the files

Nothing is waited for without a limit, and every process is ended by its pid at the end, whatever happened.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pdctl.faults.fault import AimedRank
from pdctl.faults.messages import HealBody, InjectArgs, InjectBody
from pdctl.introspect.find import candidates
from pdctl.protocol.model import Snapshot
from pdctl.recording.reader import Recording, read
from pdctl.targets.client import Client
from pdctl.targets.find import FoundRank, discover
from pdctl.targets.places import parse_places
from tests.engine.env import ROOT, EngineEnv, Namespace
from tests.support.patience import patience, until

PREFILL_PORT, DECODE_PORT, BOOTSTRAP_PORT = 30100, 30200, 30300
READY_S = 150.0
ANSWER_S = 60.0
TIMEOUT_S, RANK_TIMEOUT_S = 20.0, 5.0
"""Of a command and of one rank; twice and more what the commands' own defaults are."""
ASKING = ("diff-queues", "faults", "heal", "inject", "preflight", "ranks", "stacks", "story", "stuck", "verify-routing")
ASKING_DUMPS = ("leaks", "metadata", "queues")
"""Commands, and parts of ``dump``, that ask ranks and have time-outs."""


def client_of_tests() -> Client:
    """A client that waits for ranks as long as this machine needs."""
    return Client(timeout_s=patience(TIMEOUT_S), rank_timeout_s=patience(RANK_TIMEOUT_S))


def patiently(*arguments: str) -> list[str]:
    """Return a pdctl command line whose time-outs, where it names none, are those of this machine."""
    command, *rest = arguments
    if command not in ASKING and not (command == "dump" and rest[0] in ASKING_DUMPS):
        return list(arguments)
    limits = (("--timeout", TIMEOUT_S), ("--rank-timeout", RANK_TIMEOUT_S))
    more = [word for name, limit in limits if name not in arguments for word in (name, f"{patience(limit):g}")]
    return [*arguments, *more]


@dataclass
class Server:
    """One server process tree, how it was started, and its log."""

    role: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    argv: Sequence[str]
    tp: int

    def tail(self, lines: int = 40) -> str:
        """Return the end of the log without its longest lines."""
        text = self.log.read_text(errors="replace").splitlines()
        return "\n".join(line[:240] for line in text if "server_args=" not in line)[-8000:] if lines else ""

    def stop(self) -> None:
        """End the process and its children, by pid."""
        end_tree(self.process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


def end_tree(pid: int) -> None:
    """Kill a process and its descendants. SIGKILL: some of them are hung on purpose."""
    try:
        root = psutil.Process(pid)
        tree = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
            process.kill()
    psutil.wait_procs(tree, 10)


@dataclass
class Outcome:
    """What a request gave: token ids of the prefill's and the decode's answer, or why it did not end."""

    room: int
    prompt: str
    tokens: list[int] | None
    error: str = ""


@dataclass
class Pair:
    """A prefill and a decode server, the directories their agents use, and the environment for pdctl's commands."""

    env: EngineEnv
    ns: Namespace
    run_dir: Path
    record_dir: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    servers: list[Server] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(16))

    @classmethod
    @contextlib.contextmanager
    def start(
        cls,
        env: EngineEnv,
        ns: Namespace,
        folder: Path,
        *,
        decode_tp: int = 2,
        prefill_tp: int = 1,
        prefill_args: Sequence[str] = (),
        decode_args: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        wrap: Sequence[str] = (),
        ready_s: float = READY_S,
        backend: str = "mooncake",
    ) -> Iterator[Pair]:
        """Start both servers at once and wait until both are healthy. wrap: put before their command lines.

        backend: what moves KV, ``mooncake`` or ``nixl`` (its environment is `EngineEnv.over_nixl`).
        """
        pair = cls(env, ns, folder / "run", folder / "record", environ or {})
        for directory in (pair.run_dir, pair.record_dir):
            directory.mkdir(mode=0o700)
        try:
            for role, port, tp, extra in (
                ("prefill", PREFILL_PORT, prefill_tp, prefill_args),
                ("decode", DECODE_PORT, decode_tp, decode_args),
            ):
                argv = [
                    *wrap,
                    *env.server_argv(
                        role, port=port, tp=tp, bootstrap_port=BOOTSTRAP_PORT, backend=backend, extra=extra
                    ),
                ]
                pair.servers.append(pair._spawn(role, port, argv, folder / f"{role}.log", tp, pair.environ))
            for server in pair.servers:
                pair._healthy(server, ready_s)
            yield pair
        finally:
            pair.stop()

    @property
    def agent_environ(self) -> dict[str, str]:
        """What agents and commands need to find each other."""
        return {"PDCTL_RUN_DIR": str(self.run_dir), "PDCTL_RECORD_DIR": str(self.record_dir)}

    def restart(self, role: str, *, environ: Mapping[str, str] | None = None, keep: bool = False) -> None:
        """Start one server anew while the other goes on. keep: what the old one's agents have left stays."""
        [old] = [server for server in self.servers if server.role == role]
        old.stop()
        for rank in self.ranks():
            if rank.identity.role == role and not keep:
                for left in itertools.chain(
                    *(d.glob(f"{rank.identity.pid}-*") for d in (self.run_dir, self.record_dir))
                ):
                    left.unlink()
        log = old.log.with_name(f"{role}-again.log")
        new = self._spawn(role, old.port, old.argv, log, old.tp, {**self.environ, **(environ or {})})
        self.servers[self.servers.index(old)] = new
        self._healthy(new, READY_S)

    def _spawn(
        self, role: str, port: int, argv: Sequence[str], log: Path, tp: int, environ: Mapping[str, str]
    ) -> Server:
        extra = {**self.agent_environ, "PDCTL_ARM": "1", **environ}
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.ns.argv(argv),
                env=self.env.process_environ(extra, tp=tp),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Server(role, port, process, log, argv, tp)

    def _healthy(self, server: Server, limit_s: float) -> None:
        def look() -> bool:
            if server.process.poll() is not None:
                raise AssertionError(f"{server.role} ended with {server.process.returncode}:\n{server.tail()}")
            return self._get(server, "/health")

        try:
            until(f"{server.role} is healthy", look, limit_s, 0.3)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{server.tail()}") from None

    def _get(self, server: Server, path: str) -> bool:
        url = f"http://127.0.0.1:{server.port}{path}"
        try:
            with self.ns.entered(), urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """End everything."""
        for server in self.servers:
            server.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # ---- load --------------------------------------------------------------------------------------------------------

    def generate(
        self, count: int, *, tokens: int = 8, limit_s: float = ANSWER_S, first_room: int | None = None
    ) -> list[Outcome]:
        """Send ``count`` requests at once and return their outcomes, in order; prompts are the same every time."""
        return [future() for future in self.begin(count, tokens=tokens, limit_s=limit_s, first_room=first_room)]

    def one_by_one(self, count: int, *, first: int = 0) -> list[list[int] | None]:
        """Return the tokens of ``count`` prompts from number ``first`` on, each asked alone.

        Alone, since in bfloat16 the sums of a batch depend on its size, and with random weights so do the tokens.
        """
        outcomes = [self.begin(1, first_prompt=first + number)[0]() for number in range(count)]
        return [outcome.tokens for outcome in outcomes]

    def begin(
        self,
        count: int,
        *,
        tokens: int = 8,
        limit_s: float = ANSWER_S,
        first_room: int | None = None,
        first_prompt: int = 0,
        prefill_dp: int | None = None,
        to: Sequence[str] = ("prefill", "decode"),
        rid: str = "",
        text: str = "",
        bootstrap_port: int = BOOTSTRAP_PORT,
    ) -> list[Callable[[], Outcome]]:
        """Send ``count`` requests and return at once, one function a request that waits for its outcome.

        A request that is not answered within ``limit_s``, seconds of a quiet machine, is given up by closing its
        connections. prefill_dp: where a
        router would pin them. to: the servers that hear of them. rid: the name of a single one, the engine's otherwise.
        text: the prompt of all, instead of the usual ones. bootstrap_port: where prefill is said to be.
        """
        rooms = [first_room + i if first_room is not None else random.getrandbits(62) | 1 for i in range(count)]
        self.rooms += rooms
        asked: dict[str, dict[str, Any]] = {role: {"rid": rid} if rid else {} for role in to}
        for named in asked.values():
            named["bootstrap_port"] = bootstrap_port
        if prefill_dp is not None:
            asked["prefill"]["routed_dp_rank"] = prefill_dp
        futures = [
            self._pool.submit(self._one, room, text or prompt(first_prompt + i), tokens, limit_s, asked)
            for i, room in enumerate(rooms)
        ]
        return [future.result for future in futures]

    def _one(
        self, room: int, text: str, tokens: int, limit_s: float, asked: Mapping[str, Mapping[str, Any]]
    ) -> Outcome:
        limit_s = patience(limit_s)
        body = {
            "text": text,
            "sampling_params": {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True},
            "bootstrap_host": "127.0.0.1",
            "bootstrap_room": room,
        }
        answers: dict[str, Any] = {}

        def ask(server: Server) -> None:
            try:
                answers[server.role] = self._post(server, "/generate", {**body, **asked[server.role]}, limit_s)
            except (OSError, ValueError) as error:
                answers[server.role] = error

        threads = [
            threading.Thread(target=ask, args=(server,), daemon=True) for server in self.servers if server.role in asked
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(limit_s + 5)
        answer = answers.get("decode")
        if isinstance(answer, dict) and "output_ids" in answer:
            return Outcome(room, text, list(answer["output_ids"]))
        return Outcome(room, text, None, str(answers))

    def abort(self, *rids: str, to: Sequence[str] = ("prefill", "decode")) -> None:
        """Have these servers abort these requests."""
        for server in self.servers:
            for rid in rids if server.role in to else ():
                self._post(server, "/abort_request", {"rid": rid}, patience(ANSWER_S))

    def _post(self, server: Server, path: str, body: Mapping[str, Any], limit_s: float) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{server.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with self.ns.entered(), urllib.request.urlopen(request, timeout=limit_s) as answer:
            return json.loads(answer.read() or b"null")

    @property
    def urls(self) -> tuple[str, ...]:
        """The options that tell a drill where its requests go."""
        prefill, decode = (f"http://127.0.0.1:{server.port}" for server in self.servers)
        return ("--prefill-url", prefill, "--decode-url", decode)

    # ---- looking -----------------------------------------------------------------------------------------------------

    def ranks(self) -> list[FoundRank]:
        """Return the ranks that pdctl finds, those that have an agent or had one."""
        return [rank for rank in discover(parse_places(self.agent_environ)).ranks if rank.state != "no agent"]

    def schedulers(self) -> dict[int, str]:
        """Return pid → title of the scheduler processes, also of those without an agent."""
        family = {child.pid for s in self.servers for child in psutil.Process(s.process.pid).children(recursive=True)}
        return {one.pid: one.title for one in candidates() if one.pid in family}

    def queued(self, queue: str) -> dict[str, set[int]]:
        """Return label → rooms that each live rank has in a queue now."""
        with client_of_tests() as client:
            answers = client.ask([rank for rank in self.ranks() if rank.live], "queues", Snapshot)
        return {
            answer.rank.identity.label: {entry.room for entry in answer.body.queues.get(queue, ())}
            for answer in answers
            if answer.body is not None
        }

    def rank(self, label: str) -> FoundRank:
        """Return the rank of this label, ``decode dp0 pp0 tp1``."""
        return next(rank for rank in self.ranks() if rank.identity.label == label)

    def queues(self) -> dict[str, dict[str, list[int]]]:
        """Return label → queue → rooms, as the agents answer now."""
        with client_of_tests() as client:
            answers = client.ask([rank for rank in self.ranks() if rank.live], "queues", Snapshot)
        return {
            answer.rank.identity.label: {
                name: [entry.room for entry in entries] for name, entries in answer.body.queues.items()
            }
            for answer in answers
            if answer.body is not None
        }

    def recordings(self) -> dict[str, Recording]:
        """Return label → recording, from the files alone."""
        found = [read(path) for path in sorted(self.record_dir.glob("*.pdrec"))]
        return {recording.identity.label: recording for recording in found}

    def pdctl(self, *arguments: str, limit_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a pdctl command against this pair, where its servers can be reached."""
        return subprocess.run(
            self.ns.argv([sys.executable, "-m", "pdctl.cli", *patiently(*arguments)]),
            env={**os.environ, **self.agent_environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=patience(limit_s),
            check=False,
        )

    def inject(self, seconds: float, tp: int, *, room: int = 0, ttl_s: float = 60.0) -> None:
        """Place delay-metadata for decode rank ``tp`` on every prefill rank, through their sockets."""
        with client_of_tests() as client:
            prefill = [rank for rank in self.ranks() if rank.identity.role == "prefill" and rank.live]
            args = InjectArgs(
                id="test",
                kind="delay-metadata",
                delay_s=seconds,
                target=f"decode:tp{tp}",
                targets=(AimedRank(dp=-1, tp=tp),),
                ttl_s=ttl_s,
                lease_s=ttl_s,
                room=room,
            )
            plain = json.loads(_json(args))
            for answer in client.ask(prefill, "inject", InjectBody, plain):
                assert answer.body is not None, f"{answer.silence} {answer.reason}"

    def heal(self) -> None:
        """End all faults."""
        with client_of_tests() as client:
            client.ask([rank for rank in self.ranks() if rank.live], "heal", HealBody, {})


def _json(value: Any) -> bytes:
    import msgspec

    return msgspec.json.encode(value)


def prompt(number: int) -> str:
    """Return the prompt of the n-th request: different lengths, the same every time."""
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]
    chosen = random.Random(number)
    return " ".join(chosen.choice(words) for _ in range(4 + number % 5))
