"""Looks for the places that pdctl hooks and reads, in the source of an SGLang that is installed. Nothing of it is run.

A place is *found* where pdctl looks for it, *moved* if it is elsewhere in the package, *gone* if it is nowhere. What reduces
over a group is found as a rank finds it: by what it calls.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from pdctl.engines.sglang import seams

FOUND, MOVED, GONE = "found", "moved", "gone"
MAX_SOURCE = 4 << 20
_SRT = "sglang.srt."
_PIPELINE = "sglang.srt.managers.scheduler_pp_mixin"


class Place(msgspec.Struct, frozen=True):
    """A seam in the source. file: from the package's folder on, with the line; function: class and function, or attribute.

    state: found, moved, gone. since: what is known of the versions that lack it, "" where all that were read have it.
    """

    seam: str
    state: str
    file: str = ""
    line: int = 0
    function: str = ""
    since: str = ""


@dataclass(frozen=True)
class _Wanted:
    """names: ``Class.method``, ``function`` or ``Class.attribute``, the first that is there counts."""

    seam: str
    modules: tuple[str, ...]
    names: tuple[str, ...]
    since: str = ""


_GROUP_NAMES = tuple(f"Scheduler.{path[0]}" for _, path in seams.GROUPS)
_SCHEDULER = (seams.SCHEDULER, seams.PREFILL, seams.DECODE, _PIPELINE)
_OWNERS = {
    "disagg_prefill_bootstrap_queue": (seams.PREFILL, "PrefillBootstrapQueue"),
    "disagg_decode_prealloc_queue": (seams.DECODE, "DecodePreallocQueue"),
    "disagg_decode_transfer_queue": (seams.DECODE, "DecodeTransferQueue"),
}
"""Module and class of a queue by the scheduler's attribute; what is not here is a list on the scheduler itself."""


def _wanted() -> Iterator[_Wanted]:
    yield _Wanted("tick", _SCHEDULER, ("Scheduler.process_input_requests",))
    yield _Wanted("groups", _SCHEDULER, _GROUP_NAMES)
    for path in seams.QUEUE_PATHS:
        module, name = _OWNERS.get(path.path[0], (seams.SCHEDULER, "Scheduler"))
        yield _Wanted(f"queue.{path.name}", (module,), (f"{name}.{path.path[-1]}",))
    yield _Wanted("queue.running", _SCHEDULER, tuple(f"Scheduler.{name}" for name in seams.BATCHES))
    for spec in seams.POLL_METHODS:
        if not spec.picks and spec.method != "get_transferred_rids":
            owner_name = "SchedulerDisaggregationPrefillMixin" if spec.owner == "Scheduler" else spec.owner
            yield _Wanted(f"rounds.{spec.queue}", (seams.PREFILL, seams.DECODE), (f"{owner_name}.{spec.method}",))
    yield _Wanted("poll", (seams.UTILS,), ("poll_and_all_reduce",))
    yield _Wanted("reduces", (seams.UTILS,), seams.REDUCERS)
    yield _Wanted("gate", (seams.UTILS,), (seams.GATE,), "0.5.13")
    yield _Wanted("slots", (seams.UTILS,), ("MetadataBuffers.bootstrap_room",))
    yield _Wanted("events.slots", (seams.UTILS,), ("ReqToMetadataIdxAllocator.alloc",))
    yield _Wanted("commit", (seams.DECODE,), ("DecodeTransferQueue._commit_transfer_to_req",))
    for queue, owner_name in (
        ("decode.prealloc", "DecodePreallocQueue"),
        ("prefill.bootstrap", "PrefillBootstrapQueue"),
    ):
        yield _Wanted(f"events.{queue}", (seams.PREFILL, seams.DECODE), (f"{owner_name}.add",))
    yield _Wanted("events.decode.transfer", (seams.DECODE,), ("DecodeTransferQueue.extend",))
    yield _Wanted("state", (seams.COMMON, seams.MOONCAKE), ("CommonKVManager.request_status",))
    for event, method in (
        ("state", "update_status"),
        ("failure", "record_failure"),
        ("lookup", "try_ensure_parallel_info"),
    ):
        yield _Wanted(f"events.{event}", (seams.COMMON,), (f"CommonKVManager.{method}",))
    yield _Wanted("events.register", (seams.COMMON,), ("CommonKVSender._register_prefill_dp_rank",))
    yield _Wanted("events.query", (seams.COMMON,), ("CommonKVReceiver.query_prefill_dp_ranks",))
    yield _Wanted("events.abort", _SCHEDULER, ("Scheduler.abort_request",))
    yield _Wanted("events.ending", (seams.SCHEDULER,), (seams.ENDING,))
    yield _Wanted("events.metadata over Mooncake", (seams.MOONCAKE,), ("MooncakeKVManager.send_aux",))
    yield _Wanted("events.metadata over NIXL", (seams.NIXL,), ("NixlKVManager.send_aux",))
    yield _Wanted("role switch", (seams.SCHEDULER,), ("Scheduler.init_disaggregation",))


class Source:
    """The source of the package in folder ``root``, which holds ``sglang``. Raises FileNotFoundError where it does not."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._trees: dict[str, ast.Module | None] = {}
        if not (root / "sglang" / "srt").is_dir():
            raise FileNotFoundError(f"no sglang/srt in {root}")

    @property
    def version(self) -> str:
        """The version that the package gives itself, "" where it does not."""
        found = sorted(self.root.glob("sglang-*.dist-info"))
        return found[-1].name.removeprefix("sglang-").removesuffix(".dist-info") if found else ""

    def file(self, module: str) -> Path | None:
        """Return the file of a module, None without one."""
        base = self.root.joinpath(*module.split("."))
        return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)

    def tree(self, module: str) -> ast.Module | None:
        """Return the parsed module, None where it is missing or no Python that this one reads."""
        if module not in self._trees:
            path, tree = self.file(module), None
            try:
                if path is not None and path.stat().st_size <= MAX_SOURCE:
                    tree = ast.parse(path.read_bytes())
            except (OSError, SyntaxError, ValueError, RecursionError):
                tree = None
            self._trees[module] = tree
        return self._trees[module]

    @cached_property
    def modules(self) -> list[str]:
        """The modules in which a seam may have moved."""
        folder = self.root / "sglang" / "srt"
        paths = [path for part in ("disaggregation", "managers") for path in sorted((folder / part).rglob("*.py"))]
        return [".".join(path.relative_to(self.root).with_suffix("").parts) for path in paths]


def survey(source: Source) -> list[Place]:
    """Return every place that pdctl looks for, and the functions that reduce beside those it knows by name."""
    places = [_look(source, wanted) for wanted in _wanted()]
    return [*places, *_reductions(source)]


def _look(source: Source, wanted: _Wanted) -> Place:
    for state, modules in ((FOUND, wanted.modules), (MOVED, source.modules)):
        for name in wanted.names:
            for module in modules:
                tree = source.tree(module)
                line = 0 if tree is None else _line(tree, name, anywhere=state == MOVED)
                if line:
                    return Place(wanted.seam, state, _short(module), line, name, wanted.since)
    return Place(wanted.seam, GONE, _short(wanted.modules[0]), 0, " or ".join(wanted.names[:3]), wanted.since)


def _short(module: str) -> str:
    return module.removeprefix(_SRT).replace(".", "/") + ".py"


def _line(tree: ast.Module, name: str, *, anywhere: bool) -> int:
    """Return the line where a function, class attribute or name is, 0 where it is not.

    The scheduler's methods are in mixins of any name. anywhere: the class may have another name.
    """
    owner, _, member = name.rpartition(".")
    if not owner:
        return next((node.lineno for node in tree.body if getattr(node, "name", "") == member), 0) or _imported(
            tree, member
        )
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and (
            anywhere or node.name == owner or (owner == "Scheduler" and "Scheduler" in node.name)
        ):
            for inner in ast.walk(node):
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and inner.name == member:
                    return inner.lineno
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and inner.attr == member:
                    return inner.lineno
    return 0


def _imported(tree: ast.Module, name: str) -> int:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return node.lineno
    return 0


# ---- what reduces ----------------------------------------------------------------------------------------------------


def _uses(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
    }


def _reductions(source: Source) -> Iterator[Place]:
    """Yield the functions that reduce, as :mod:`pdctl.engines.sglang.reductions` finds them in loaded code."""
    utils = source.tree(seams.UTILS)
    if utils is None:
        return
    named = {node.name: _uses(node) for node in utils.body if isinstance(node, ast.FunctionDef)}
    known: set[str] = set()
    while more := {name for name, uses in named.items() if name not in known and uses & {"all_reduce", *known}}:
        known |= more
    plain, polling = known - set(seams.POLL_FUNCTIONS), {spec.method for spec in seams.POLL_METHODS}
    helpers = {use for name in (seams.DECODE, seams.PREFILL) for use in _of_polling(source.tree(name), polling)}
    for module in source.modules:
        tree = source.tree(module)
        if tree is None or module == seams.UTILS or not module.startswith(("sglang.srt.disaggregation", _PIPELINE)):
            continue
        for owner in tree.body:
            for node in owner.body if isinstance(owner, ast.ClassDef) else [owner]:
                if not isinstance(node, ast.FunctionDef):
                    continue
                uses = _uses(node)
                besides = uses & plain or {"distributed", "all_reduce"} <= uses
                if besides or (uses & known and node.name not in polling | helpers):
                    title = f"{owner.name}.{node.name}" if isinstance(owner, ast.ClassDef) else node.name
                    yield Place("reduction", FOUND, _short(module), node.lineno, title)


def _of_polling(tree: ast.Module | None, polling: set[str]) -> set[str]:
    """Return the names that the methods which poll a queue use: their helpers are among them."""
    if tree is None:
        return set()
    methods = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in polling]
    return {use for method in methods for use in _uses(method)}
