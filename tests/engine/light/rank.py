"""One rank of the light harness: the engine's own queue classes, polls, gate, commit and Gloo groups in a process.

Run in the engine's environment; reads orders on stdin, one a line, and forks a rank or a program for each, so that the
engine is imported once for all of them.

What stands in: the scheduler (attributes only, with the engine's own methods for prefill's in-flight queue), the
requests, and the transfer, whose polls and whose metadata writes the script dictates. What is the engine's:
``PrefillBootstrapQueue``,
``DecodePreallocQueue``, ``DecodeTransferQueue``, every poll function, ``MetadataBuffers``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import MagicMock

import torch
import torch.distributed as dist


class Transfer:
    """A request's sender or receiver: its poll is what the script says for this turn and rank."""

    require_staging = False
    conclude_state = None

    def __init__(self, room: int, polls: list[list[int]], rank: int, manager: Any) -> None:
        self.bootstrap_room = room
        self.kv_mgr = manager
        self._polls = polls[min(rank, len(polls) - 1)]
        self._turn = 0

    def poll(self) -> int:
        value = self._polls[min(self._turn, len(self._polls) - 1)]
        self.kv_mgr.request_status[self.bootstrap_room] = value
        return value

    def next_turn(self) -> None:
        self._turn += 1

    def init(self, *_: Any) -> None: ...

    def clear(self) -> None:
        self.kv_mgr.request_status.pop(self.bootstrap_room, None)

    def abort(self) -> None: ...

    def pop_decode_prefix_len(self) -> int:
        return 0

    def get_transfer_metric(self) -> None: ...

    def failure_exception(self) -> None:
        raise RuntimeError("the script says so")


class Request:
    """What the queues use of a Req."""

    def __init__(self, room: int) -> None:
        self.rid = f"r{room}"
        self.bootstrap_room = room
        self.bootstrap_host = "127.0.0.1"
        self.bootstrap_port = 0
        self.disagg_kv_sender: Any = None
        self.metadata_buffer_index = -1
        self.origin_input_ids = [1, 2, 3]
        self.output_ids: list[int] = []
        self.finished_reason: Any = None
        self.to_finish: Any = None
        self.expected_kv_checksum = 0
        self.return_logprob = self.is_retracted = self.return_routed_experts = False
        self.pending_bootstrap = True
        self.prefill_attempt_count = 0
        self.req_pool_idx = self.mamba_pool_idx = None
        self.kv = None if kv_follows_pool() else MagicMock(holds_kv=False, is_kv_released=True, holds_mamba=False)
        self.time_stats = MagicMock(
            prefill_retry_count=0,
            prefill_bootstrap_queue_entry_time=time.perf_counter(),
            decode_prealloc_queue_entry_time=time.perf_counter(),
            decode_transfer_queue_entry_time=time.perf_counter(),
            prefill_transfer_queue_entry_time=time.perf_counter(),
        )
        self.time_stats.compute_and_observe_kv_transfer_metrics.return_value = None
        self.return_sampling_mask = False
        self.cache_request_handle = self.lock = None
        self.pd_rebootstrap_forced_output_id = None

    def finished(self) -> bool:
        return self.finished_reason is not None


def kv_follows_pool() -> bool:
    """Return whether a request has a ``kv`` only while it has a row of its own (0.5.18)."""
    from sglang.srt.mem_cache.common import release_kv_cache

    return {"kv", "req_pool_idx"} <= set(release_kv_cache.__code__.co_names)


def scheduler_class() -> type:
    from sglang.srt.disaggregation.decode import SchedulerDisaggregationDecodeMixin
    from sglang.srt.disaggregation.prefill import SchedulerDisaggregationPrefillMixin

    class Scheduler(SchedulerDisaggregationPrefillMixin, SchedulerDisaggregationDecodeMixin):
        def __getattr__(self, name: str) -> bool:
            if name.startswith("enable_"):
                return False
            raise AttributeError(name)

        def process_input_requests(self, recv_reqs: list[Any]) -> None: ...

        def abort_request(self, recv_req: Any) -> None: ...

        def maybe_sleep_on_idle(self) -> None:
            if self.idle_sleeper is not None:
                self.idle_sleeper.maybe_sleep()

        def handle_bootstrap_failure(self, req: Any) -> None:
            req.finished_reason = "failed"

        def checkpoint_disagg_prefill(self, req: Any) -> None: ...

        def optimistic_release_and_requeue(self, req: Any) -> None: ...

    return Scheduler


def make_sleeper() -> Any:
    """Make what the engine sleeps in with ``--sleep-on-idle``, with a socket on which nothing comes."""
    import zmq

    try:
        from sglang.srt.managers.scheduler_components.idle_sleeper import IdleSleeper  # since 0.5.13
    except ImportError:
        from sglang.srt.managers.scheduler import IdleSleeper
    return IdleSleeper([zmq.Context.instance().socket(zmq.PULL)])


def make_scheduler(role: str, rank: int, size: int, slots: int, kind: type | None = None) -> Any:
    """Make a scheduler of attributes. kind: its class, whose ``__init__`` is not run; one with few methods otherwise."""
    from sglang.srt.disaggregation.utils import DisaggregationMode, MetadataBuffers, ReqToMetadataIdxAllocator

    kind = kind or scheduler_class()
    scheduler = kind.__new__(kind)
    everyone = dist.new_group(list(range(size)), backend="gloo")
    alone = [dist.new_group([member], backend="gloo") for member in range(size)][rank]
    more = (8,) if "max_sampling_mask_tokens" in inspect.signature(MetadataBuffers.__init__).parameters else ()
    scheduler.__dict__.update(
        disaggregation_mode=DisaggregationMode(role),
        server_args=MagicMock(
            enable_dp_attention=False,
            dp_size=1,
            nnodes=1,
            port=7 if role == "prefill" else 8,
            disaggregation_transfer_backend="mooncake",
            optimistic_prefill_retries=0,
            optimistic_prefill_attempts=0,
        ),
        attn_tp_cpu_group=everyone,
        attn_cp_cpu_group=alone,
        tp_cpu_group=everyone,
        attn_tp_rank=rank,
        dp_rank=None,
        waiting_queue=[],
        running_batch=MagicMock(reqs=[]),
        disagg_metadata_buffers=MetadataBuffers(slots, 16, torch.float32, *more),
        req_to_metadata_buffer_idx_allocator=ReqToMetadataIdxAllocator(slots),
        kv_checksum_computer=None,
        metrics_reporter=MagicMock(enable_metrics=False),
        output_streamer=MagicMock(),
        stream_output=MagicMock(),
        metrics_collector=MagicMock(),
        batch_result_processor=MagicMock(),
        tree_cache=MagicMock(),
        spec_algorithm=MagicMock(is_none=lambda: True),
        token_to_kv_pool_allocator=SimpleNamespace(
            page_size=1, available_size=lambda: 1024, prealloc_fits_assumes_reclaim=lambda: False
        ),
        sliding_window_size=None,
        processed_tokens_counter=0,
        scheduler_stage_metrics=MagicMock(),
        last_batch=None,
        idle_sleeper=None,
    )
    return scheduler


def make_queue(cls: type, scheduler: Any, rank: int) -> Any:
    """Make one of the engine's queues without its ``__init__``, which wants pools, an engine and a bootstrap server."""
    queue = cls.__new__(cls)
    queue.__dict__.update(
        queue=[],
        pending_reqs=[],
        retracted_queue=[],
        gloo_group=scheduler.attn_tp_cpu_group,
        req_to_metadata_buffer_idx_allocator=scheduler.req_to_metadata_buffer_idx_allocator,
        metadata_buffers=scheduler.disagg_metadata_buffers,
        scheduler=scheduler,
        tree_cache=scheduler.tree_cache,
        tp_rank=rank,
        tp_size=2,
        pp_rank=0,
        pp_size=1,
        spec_algorithm=scheduler.spec_algorithm,
        enable_staging=False,
        staging_handler=None,
        enable_host_receive=False,
        enable_deferred_kv_release=False,
        _deferred_releases=[],
        token_to_kv_pool=SimpleNamespace(page_size=1),
        token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
        req_to_token_pool=MagicMock(available_size=lambda: 64),
        num_reserved_decode_tokens=0,
        transfer_queue=getattr(scheduler, "disagg_decode_transfer_queue", None),
        _num_published_destinations=0,
        _prefill_dp_rank_queries={},
        scheduler_stage_metrics=MagicMock(),
        kv_manager=MagicMock(request_status={}, get_session_id=lambda: f"light:{rank}"),
    )
    return queue


def publish_settings(*modules: Any) -> None:
    """0.5.23 reads settings that a server publishes at its start; here nothing does."""
    settings = MagicMock(
        disaggregation_decode_enable_radix_cache=False,
        disaggregation_transfer_backend="mooncake",
        disaggregation_decode_allocation_policy="",
        optimistic_prefill_attempts=0,
    )
    for module in modules:
        if hasattr(module, "get_disagg"):
            module.get_disagg = lambda: settings


def run_decode(script: dict[str, Any], scheduler: Any, rank: int) -> None:
    """Every request is in its queue from the turn it ``arrives`` in (0), its slot written when the script says.

    Those in the prealloc queue stay there or fail: allocation would need the KV pools.
    """
    from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeRequest, DecodeTransferQueue

    transfer = make_queue(DecodeTransferQueue, scheduler, rank)
    scheduler.disagg_decode_transfer_queue = transfer
    prealloc = scheduler.disagg_decode_prealloc_queue = make_queue(DecodePreallocQueue, scheduler, rank)
    start_agent(scheduler)
    rooms = scheduler.disagg_metadata_buffers.bootstrap_room
    requests = []
    if script.get("sleeps"):
        scheduler.idle_sleeper = make_sleeper()

    def arrive(entry: dict[str, Any]) -> None:
        receiver = Transfer(entry["room"], entry["polls"], rank, prealloc.kv_manager)
        made = DecodeRequest(req=Request(entry["room"]), kv_receiver=receiver)
        if entry.get("queue") == "prealloc":
            prealloc.queue.append(made)
        else:
            made.metadata_buffer_index = scheduler.req_to_metadata_buffer_idx_allocator.alloc()
            transfer.extend([made])
        requests.append((entry, receiver, made.metadata_buffer_index))

    for turn in range(script["turns"]):
        scheduler.process_input_requests([])
        for entry in script["requests"]:
            if entry.get("arrives", 0) == turn:
                arrive(entry)
        for entry, _, slot in requests:
            late = entry.get("lands", [0, 0])[rank]
            if slot >= 0 and turn == max(late, entry.get("arrives", 0)):
                rooms[slot, 0] = entry.get("found", entry["room"])
        drop = script.get("drop")
        if drop and drop["rank"] == rank and drop["turn"] == turn:
            transfer.queue = [made for made in transfer.queue if made.req.bootstrap_room != drop["room"]]
        prealloc.pop_preallocated()
        for req in transfer.pop_transferred():
            say("transferred", turn, req.bootstrap_room)
        for _, receiver, _ in requests:
            receiver.next_turn()
        if not turn:
            say("turns")
        scheduler.maybe_sleep_on_idle()
        time.sleep(script.get("pause_s", 0.002))
    say("left", script["turns"], *[made.req.bootstrap_room for made in transfer.queue])


def run_prefill(script: dict[str, Any], scheduler: Any, rank: int) -> None:
    """The bootstrap queue, then the in-flight queue: polls past WaitingForInput are those of the second."""
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue

    queue = make_queue(PrefillBootstrapQueue, scheduler, rank)
    scheduler.disagg_prefill_bootstrap_queue, scheduler.disagg_prefill_inflight_queue = queue, []
    start_agent(scheduler)
    senders, chunked = [], []
    lists = {"waiting": scheduler.waiting_queue, "chunk": chunked}
    for entry in script["requests"]:
        req = Request(entry["room"])
        req.disagg_kv_sender = Transfer(entry["room"], entry["polls"], rank, queue.kv_manager)
        senders.append(req.disagg_kv_sender)
        lists.get(entry.get("queue", ""), queue.queue).append(req)
    for turn in range(script["turns"]):
        scheduler.process_input_requests([])
        abort = script.get("abort")
        if abort and (abort["rank"], abort["turn"]) == (rank, turn):
            abort_locally(next(req for req in scheduler.waiting_queue if req.bootstrap_room == abort["room"]))
        if scheduler.waiting_queue:
            scheduler.resolve_waiting_queue_bootstrap()
        chunked = [req for req in chunked if not scheduler.check_bootstrap(req)]
        for req in queue.pop_bootstrapped():
            scheduler.disagg_metadata_buffers.bootstrap_room[req.metadata_buffer_index, 0] = req.bootstrap_room
            scheduler.disagg_prefill_inflight_queue.append(req)
            say("bootstrapped", turn, req.bootstrap_room)
        for req in scheduler.process_disagg_prefill_inflight_queue():
            say("sent", turn, req.bootstrap_room)
        for sender in senders:
            sender.next_turn()
        time.sleep(script.get("pause_s", 0.002))
    say("left", script["turns"], len(queue.queue), len(scheduler.disagg_prefill_inflight_queue))


def abort_locally(req: Any) -> None:
    """Abort a request on this rank alone: no rank is told what another one has been told."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    req.to_finish = FINISH_ABORT("the script says so")


class Receiver(Transfer):
    """The receiver of a request that failed: its manager is told by the script when prefill has acknowledged."""

    abort_notified = True
    bootstrap_infos = (None,)

    def ensure_abort_notified(self, **_: Any) -> None: ...


def run_releases(script: dict[str, Any], scheduler: Any, rank: int) -> None:
    """Requests that fail in the transfer queue; each rank keeps their memory until the turn in which prefill ``acks`` to it."""
    from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeRequest, DecodeTransferQueue

    transfer = make_queue(DecodeTransferQueue, scheduler, rank)
    scheduler.disagg_decode_transfer_queue = transfer
    prealloc = scheduler.disagg_decode_prealloc_queue = make_queue(DecodePreallocQueue, scheduler, rank)
    manager = prealloc.kv_manager
    transfer.enable_deferred_kv_release = manager.enable_deferred_decode_kv_release = True
    transfer.deferred_kv_release_timeout = script.get("deadline_s", 600.0)
    manager._deferred_abort_ack_tracker = tracker = {}
    manager.is_abort_release_safe = lambda room, needed: len(tracker[room].prefill_ranks) >= needed
    start_agent(scheduler)
    receivers = []
    for entry in script["requests"]:
        receiver = Receiver(entry["room"], entry["polls"], rank, manager)
        made = DecodeRequest(req=Request(entry["room"]), kv_receiver=receiver)
        made.metadata_buffer_index = scheduler.req_to_metadata_buffer_idx_allocator.alloc()
        transfer.extend([made])
        tracker[entry["room"]] = SimpleNamespace(generation=1, prefill_ranks=set())
        receivers.append(receiver)
    for turn in range(script["turns"]):
        scheduler.process_input_requests([])
        drop = script.get("drop")
        if drop and (drop["rank"], drop["turn"]) == (rank, turn):
            transfer._deferred_releases.clear()
        for entry in script["requests"]:
            if turn == entry["acks"][rank]:
                tracker[entry["room"]].prefill_ranks.add(0)
        transfer.pop_transferred()
        transfer.resolve_deferred_releases()
        for receiver in receivers:
            receiver.next_turn()
        time.sleep(script.get("pause_s", 0.002))
    say("kept", len(transfer._deferred_releases))


def run_checksums(script: dict[str, Any], scheduler: Any, rank: int) -> None:
    """Batches whose requests are compared with the checksums that prefill sent; those that are ``wrong`` on a rank differ."""
    from sglang.srt.disaggregation import decode

    scheduler.disagg_decode_transfer_queue = make_queue(decode.DecodeTransferQueue, scheduler, rank)
    prealloc = make_queue(decode.DecodePreallocQueue, scheduler, rank)
    scheduler.disagg_decode_prealloc_queue = prealloc
    decode.page_indices_for_request = lambda _scheduler, req, *_, **__: req.bootstrap_room
    decode.state_indices_for_request = lambda *_, **__: None
    decode.release_kv_cache = lambda *_, **__: None
    wrong = {entry["room"] for entry in script["requests"] if rank in entry.get("wrong", ())}
    scheduler.kv_checksum_computer = SimpleNamespace(compute=lambda room, _: room + (room in wrong))
    start_agent(scheduler)
    requests = [Request(entry["room"]) for entry in script["requests"]]
    for req in requests:
        req.expected_kv_checksum, req.kv = req.bootstrap_room, SimpleNamespace(cache_protected_len=0)
    batch = SimpleNamespace(reqs=requests)
    batch.filter_batch = lambda keep_indices: setattr(batch, "reqs", [batch.reqs[n] for n in keep_indices])
    scheduler.process_input_requests([])
    scheduler._verify_kv_checksums(batch)
    say("kept", *[req.bootstrap_room for req in batch.reqs])


def start_agent(scheduler: Any) -> None:
    from pdctl.agent.plugin import after_scheduler

    after_scheduler(scheduler, "light")


def say(*words: object) -> None:
    print(json.dumps(words), flush=True)


def serve() -> None:
    """Import the engine once, then fork a rank or a program for every order on stdin; say when each has ended.

    The arguments of this program name more of the engine's modules.
    """
    for module in ("disaggregation.decode", "disaggregation.prefill", "managers.scheduler_pp_mixin", *sys.argv[1:]):
        importlib.import_module(f"sglang.srt.{module}")
    torch.set_num_threads(1)
    say("up")
    children: dict[int, str] = {}
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0.05)
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            order = json.loads(line)
            pid = os.fork()
            if pid == 0:
                (become_program if "program" in order else become_rank)(order)
            children[pid] = order["name"]
            say("started", order["name"], pid)
        for pid in list(children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                say("ended", children.pop(pid), os.waitstatus_to_exitcode(status))


def become_rank(order: dict[str, Any]) -> NoReturn:
    """Be one rank, in the child, and never return."""
    status = 1
    try:
        out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(order["env"])
        decode, prefill = (sys.modules[f"sglang.srt.disaggregation.{role}"] for role in ("decode", "prefill"))
        publish_settings(decode, prefill)
        script, rank = json.loads(Path(order["script"]).read_text()), order["rank"]
        if script.get("routing"):
            of_routing(order, script)
        store = f"file://{order['script']}.{order['role']}.store"
        dist.init_process_group("gloo", store, rank=rank, world_size=script["size"])
        scheduler = make_scheduler(order["role"], rank, script["size"], script.get("slots", 64))
        {"prefill": run_prefill, "decode": run_decode, "releases": run_releases, "checksums": run_checksums}[
            script.get("runs", order["role"])
        ](script, scheduler, rank)
        status = 0
    except Exception:  # noqa: BLE001 - whatever it was, the test shows it
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def become_program(order: dict[str, Any]) -> NoReturn:
    """Be a Python program that has the engine imported already, and so are the Python programs that it starts."""
    subprocess.Popen = Popen  # type: ignore[misc]
    given, out, err = (Path(order[stream]) for stream in ("in", "out", "err"))
    with given.open("rb") as stdin, out.open("wb") as stdout, err.open("wb") as stderr:
        be(order["program"], order["env"], (stdin.fileno(), stdout.fileno(), stderr.fileno()))


def _pipe_to(stdin: Any) -> tuple[int, Any]:
    """Return what the child reads, and our end of it where there is one."""
    if stdin != subprocess.PIPE:
        return os.open(os.devnull, os.O_RDONLY), None
    theirs, ours = os.pipe()
    return theirs, os.fdopen(ours, "wb", buffering=0)


def _pipe_from(stdout: Any) -> tuple[Any, int]:
    """Return our end of what the child writes, where there is one, and its own."""
    if stdout != subprocess.PIPE:
        return None, stdout.fileno()
    ours, theirs = os.pipe()
    return os.fdopen(ours, "rb", buffering=0), theirs


class Popen(subprocess.Popen):  # type: ignore[type-arg]
    """The same, but that a Python program is forked. A class, since programs ask whether something is one."""

    def __new__(cls, args: Any, *more: Any, **how: Any) -> Any:
        return Forked(args, **how) if args[0] == sys.executable else super().__new__(cls)


class Forked:
    """What ``subprocess.Popen`` returns, of the methods that programs use here: a fork that becomes the program."""

    def __init__(
        self,
        argv: list[str],
        *,
        env: dict[str, str],
        stdout: Any,
        stderr: int,
        stdin: Any = None,
        bufsize: int = 0,
        start_new_session: bool = False,
    ) -> None:
        assert stderr in (subprocess.STDOUT, subprocess.DEVNULL)
        assert stdin in (None, subprocess.DEVNULL, subprocess.PIPE)
        assert bufsize == 0
        self.returncode: int | None = None
        asks, self.stdin = _pipe_to(stdin)
        self.stdout, says = _pipe_from(stdout)
        complains = says if stderr == subprocess.STDOUT else os.open(os.devnull, os.O_WRONLY)
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            for ours in (self.stdin, self.stdout):
                if ours is not None:
                    ours.close()
            be(argv[1:], env, (asks, says, complains))
        os.close(asks)
        if stdout == subprocess.PIPE:
            os.close(says)
        if complains != says:
            os.close(complains)

    def poll(self) -> int | None:
        if self.returncode is None:
            self._note(os.waitpid(self.pid, os.WNOHANG))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        del timeout
        if self.returncode is None:
            self._note(os.waitpid(self.pid, 0))
        assert self.returncode is not None
        return self.returncode

    def communicate(self) -> tuple[bytes | None, None]:
        if self.stdin is not None:
            self.stdin.close()
        said = None if self.stdout is None else self.stdout.read()
        self.wait()
        return said, None

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _note(self, ended: tuple[int, int]) -> None:
        if ended[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])


def be(argv: list[str], env: dict[str, str], files: tuple[int, int, int]) -> NoReturn:
    """Run what ``python ARGV…`` runs, with this environment and these standard streams, and never return."""
    status = 1
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        os.environ.clear()
        os.environ.update(env)
        if argv[0] == "-c":
            sys.argv = ["-c", *argv[2:]]
            exec(compile(argv[1], "<string>", "exec"), {"__name__": "__main__"})
        elif argv[0] == "-m":
            sys.argv = argv[1:]
            runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = argv
            runpy.run_path(argv[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - said on stderr, as the interpreter does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def of_routing(order: dict[str, Any], script: dict[str, Any]) -> None:
    """Be what ``routing.py`` makes of this order; a prefill dp rank is a world of its own."""
    spec = importlib.util.spec_from_file_location("light_routing", Path(__file__).with_name("routing.py"))
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    role, rank = order["role"], order["rank"]
    if role != "bootstrap":
        world = "decode" if role == "decode" else f"prefill.{rank}"
        inside, size = (rank, 2) if role == "decode" else (0, 1)
        dist.init_process_group("gloo", f"file://{order['script']}.{world}.store", rank=inside, world_size=size)
    program.run(role, rank, script, sys.modules[__name__])


if __name__ == "__main__":
    serve()
