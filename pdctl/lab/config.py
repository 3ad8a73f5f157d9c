"""What a lab is made of, and the fixes that can be left out of it. Standard library and msgspec only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError

FIXES: dict[str, str] = {
    "gate": "the metadata gate. A poll that says Success becomes Transferring while the slot still reads 0, before the polls "
    "are reduced (S1, SGLang PR 26394, since 0.5.13)",
    "metadata-sync": "prefill reports Success after its metadata write has ended. Without it nobody waits for the queued "
    "write, as over intra-node NVLink (S2, PR 23252)",
    "receiver": "every rank makes and enqueues the receiver in add(). Without it each decode rank asks the bootstrap server "
    "itself, and enqueues after the answer (S3, PR 21299)",
    "dp-registration": "a room routed against follow_bootstrap_room fails at once, or is registered with --force-query. "
    "Without it both sides wait in silence (S4, PR 22901, since 0.5.11)",
    "orphan-drain": "a later PP stage removes its failed bootstrap requests, even if the first stage has forgotten them "
    "(S5, issue 26912, since 0.5.13)",
    "transfer-drain": "a decode PP stage tells the next one of transfers that failed, too. Without it the later stage keeps "
    "them for ever (by the source, in all versions up to 0.5.23)",
    "zero-on-free": "freeing a metadata slot zeroes it. Its next owner does not see the old room (since 0.5.13)",
    "register-every-room": "with --force-query, prefill registers every room. Without it prefill registers only the rooms "
    "that conflict, and a decode server that asks for every room waits for ever (hole in 0.5.11 to 0.5.18)",
    "aborts": "prefill takes the message of a decode rank that gives a request up. Without it that message ends prefill's "
    "bootstrap thread (over NIXL in 0.5.13 to 0.5.15)",
}
"""Fixes of the engine by the name that ``--without`` takes, and what each does. All are present by default."""

SETTINGS = (
    "attention_backend", "aux_item_lens", "chunked_prefill_size", "context_length", "custom_mem_pool_type",
    "disaggregation_transfer_backend", "dtype", "enable_hierarchical_cache", "kv_cache_dtype", "kv_item_lens",
    "num_hidden_layers", "page_size", "quantization", "served_model_name", "speculative_algorithm",
    "speculative_num_draft_tokens",
)  # fmt: skip
"""Arguments of SGLang that one side of a lab can have for itself. Its engine acts on page_size and kv_cache_dtype."""
_VARIABLE = re.compile("(SGLANG|MC|MOONCAKE|GLOO)_[A-Z0-9_]{1,80}")
_OPTIONS = {
    "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": "--bootstrap-timeout",
    "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": "--waiting-timeout",
    "SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL": "--entry-cleanup",
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": "--heartbeat",
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": "--heartbeat-failures",
    "SGLANG_DISAGGREGATION_FORCE_QUERY_PREFILL_DP_RANK": "--force-query",
}

LOAD_BALANCE = ("round_robin", "follow_bootstrap_room", "total_requests")
SIDES = ("prefill", "decode")
MAX_PREFILLS = 8
PAGE_SIZE = 1
KV_CACHE_DTYPE = "int32"
DEVICES = ("cpu", "cuda")
TRANSPORTS = ("auto", "mooncake", "socket")
MAX_RANKS = 64
MAX_ROOM = (1 << 63) - 1
"""A room is an int64 in the engine's requests, and uint64 in the metadata row."""
STEP_S = 0.002
LONGEST_STEP_S = 3600.0


class Shape(msgspec.Struct, frozen=True):
    """Parallel sizes of one server."""

    tp: int = 1
    dp: int = 1
    pp: int = 1

    @property
    def ranks(self) -> int:
        """Number of rank processes."""
        return self.tp * self.dp * self.pp

    def __str__(self) -> str:
        return f"tp={self.tp},dp={self.dp},pp={self.pp}"


class LabConfig(msgspec.Struct, frozen=True):
    """Everything a lab's processes need to know; written once, before the first of them starts.

    Directories are absolute. Timeouts are seconds and mean what SGLang's variables of similar name mean
    (``SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT``, ``…_WAITING_TIMEOUT``, ``…_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL``,
    ``…_HEARTBEAT_INTERVAL``, which the engine keeps at 2 s at least). heartbeat_failures: ``…_HEARTBEAT_MAX_FAILURE``.
    kv_tokens: token places in each rank's KV pool. slots: metadata slots of each rank. max_running: places in decode's running
    batch. prefill_step_s, decode_step_s: duration of a forward.
    prefills: number of prefill servers, all of the same sizes; each has a bootstrap server, or all use the first one's
    (shared_bootstrap). slow_bootstrap_s: how long a bootstrap server thinks before it answers anything but a registration.
    dp_attention: the dp ranks of a server are one torch world and meet in a collective each turn; tp is the attention-TP size.
    prefill_set, decode_set: settings of a side by SGLang's names of them, arguments and environment variables.
    owner: process that the lab does not outlive, 0 for none. listen: PDCTL_LISTEN of its ranks, "" for none.
    """

    name: str
    prefill: Shape = Shape()
    decode: Shape = Shape(tp=2)
    prefills: int = 1
    shared_bootstrap: bool = False
    slow_bootstrap_s: float = 0.0
    dp_attention: bool = False
    prefill_set: dict[str, str] = {}
    decode_set: dict[str, str] = {}
    without: tuple[str, ...] = ()
    metadata_device: str = "cpu"
    transport: str = "auto"
    load_balance: str = "follow_bootstrap_room"
    force_query: tuple[str, ...] = ()
    armed: bool = True
    netns: bool = True
    slots: int = 64
    kv_tokens: int = 4096
    max_running: int = 32
    layers: int = 4
    prefill_step_s: float = STEP_S
    decode_step_s: float = STEP_S
    metadata_lag_s: float = 0.05
    group_timeout_s: float = 1800.0
    bootstrap_timeout_s: float = 300.0
    waiting_timeout_s: float = 300.0
    entry_cleanup_s: float = 120.0
    heartbeat_s: float = 5.0
    heartbeat_failures: int = 2
    run_dir: str = ""
    record_dir: str = ""
    owner: int = 0
    listen: str = ""

    def has(self, fix: str) -> bool:
        """Whether the engine of this lab has ``fix``. Raises KeyError for a name not in FIXES."""
        if fix not in FIXES:
            raise KeyError(fix)
        return fix not in self.without

    @property
    def servers(self) -> tuple[str, ...]:
        """Names of the servers: ``prefill``, ``prefill1`` and so on, ``decode``."""
        return (*(f"prefill{number or ''}" for number in range(self.prefills)), "decode")

    @property
    def bootstraps(self) -> dict[str, str]:
        """Prefill server → the bootstrap server that it registers with: ``bootstrap``, ``bootstrap1`` and so on."""
        prefills = self.servers[: self.prefills]
        return {
            name: "bootstrap" if self.shared_bootstrap else name.replace("prefill", "bootstrap") for name in prefills
        }

    def settings(self, role: str) -> dict[str, str]:
        """Return what was set on the side of ``role``: name → value."""
        return self.prefill_set if role == "prefill" else self.decode_set

    def step_s(self, role: str) -> float:
        """Return how long a forward of the server of ``role`` takes, in seconds."""
        return self.prefill_step_s if role == "prefill" else self.decode_step_s

    def shape(self, server: str) -> Shape:
        """Return the sizes of a server, or of the servers of a role."""
        return self.decode if server == "decode" else self.prefill

    @property
    def state_dir(self) -> Path:
        """Directory of the lab's own files: configuration, process ids, request sockets, logs."""
        return Path(self.run_dir) / f"lab-{self.name}"


def parse_shape(text: str) -> Shape:
    """Return the sizes in ``tp=2,dp=1,pp=1``; any part may be left out. Raises PdctlError (USAGE)."""
    sizes: dict[str, int] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        key, _, value = part.partition("=")
        if key not in ("tp", "dp", "pp") or not value.isdecimal() or not 1 <= int(value) <= 16:
            raise PdctlError(
                f"{part!r} is no size of a server", "write sizes as tp=2,dp=1,pp=1, each from 1 to 16", Exit.USAGE
            )
        sizes[key] = int(value)
    return Shape(**sizes)


def parse_steps(text: str) -> dict[str, float]:
    """Return side → seconds of a forward in ``12s`` (prefill's) or ``prefill=12s,decode=50ms``. Raises PdctlError (USAGE)."""
    found: dict[str, float] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        side, equals, value = part.rpartition("=")
        side = side if equals else "prefill"
        try:
            if side not in SIDES or side in found:
                raise ValueError(part)
            found[side] = durations.parse(value, most_s=LONGEST_STEP_S)
        except ValueError:
            raise PdctlError(
                f"{part!r} is no duration of a forward", "write 12s, or prefill=12s,decode=50ms; 1h at most", Exit.USAGE
            ) from None
    return found


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """Return name → value of settings as ``page_size=16``. Raises PdctlError (USAGE) for one that a lab does not have."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if name not in SETTINGS and not _VARIABLE.fullmatch(name):
            known = ", ".join(SETTINGS)
            raise PdctlError(
                f"{name[:80]!r} can't be set on one side", f"known: {known}, and variables as SGLANG_…", Exit.USAGE
            )
        if name in _OPTIONS:
            raise PdctlError(f"{name} has an option of its own", f"pdctl lab up {_OPTIONS[name]}", Exit.USAGE)
        if not equals or len(value) > 200 or (name == "page_size" and not re.fullmatch("[1-9][0-9]{0,8}", value)):
            raise PdctlError(f"{text[:80]!r} sets nothing", "write NAME=VALUE, as page_size=16", Exit.USAGE)
        found[name] = value
    return found


def parse_names(texts: list[str], known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Return the names in comma separated ``texts``, each once. Raises PdctlError (USAGE) that lists the known ones."""
    names: list[str] = []
    for name in (n for text in texts for n in filter(None, text.replace(" ", "").split(","))):
        if name not in known:
            raise PdctlError(f"there is no {what} {name!r}", f"known: {', '.join(known)}", Exit.USAGE)
        if name not in names:
            names.append(name)
    return tuple(names)


def check_name(name: str) -> str:
    """Return ``name`` when it can name a lab. Raises PdctlError (USAGE)."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,23}", name):
        raise PdctlError(
            f"{name!r} can't name a lab", "use up to 24 lower-case letters, digits and dashes, letter first", Exit.USAGE
        )
    return name


def check(config: LabConfig) -> LabConfig:
    """Return ``config`` when its parts go together. Raises PdctlError (USAGE) with the part that does not."""
    if config.decode.pp not in (1, config.prefill.pp):
        raise PdctlError(
            f"decode pp={config.decode.pp} does not go with prefill pp={config.prefill.pp}",
            "the engine wants decode pp to be 1 or the same as prefill pp",
            Exit.USAGE,
        )
    big, small = max(config.prefill.tp, config.decode.tp), min(config.prefill.tp, config.decode.tp)
    if big % small:
        raise PdctlError(
            f"prefill tp={config.prefill.tp} and decode tp={config.decode.tp}: one must be a multiple of the other",
            "choose other tp sizes",
            Exit.USAGE,
        )
    if config.layers % config.prefill.pp:
        raise PdctlError(f"{config.layers} layers can't be split over pp={config.prefill.pp}", code=Exit.USAGE)
    if config.dp_attention and (config.prefill.dp == config.decode.dp == 1 or config.prefill.pp > 1):
        raise PdctlError(
            "a lab with dp attention has a server of several dp ranks, and no pipeline stages",
            "choose other sizes: --prefill tp=1,dp=2",
            Exit.USAGE,
        )
    if config.shared_bootstrap and config.prefills < 2:
        raise PdctlError("one prefill server shares its bootstrap server with nobody", "add --prefills 2", Exit.USAGE)
    if config.prefills * config.prefill.ranks + config.decode.ranks > MAX_RANKS:
        raise PdctlError(f"a lab has at most {MAX_RANKS} ranks", "make it smaller", Exit.USAGE)
    return config
