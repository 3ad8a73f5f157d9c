"""What ``dump config`` takes and gives: settings of ranks in, servers side by side and what does not fit out."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pdctl.protocol.documents import Document
from pdctl.protocol.model import Identity
from pdctl.protocol.requests import Settings
from pdctl.report.findings import Finding


@dataclass(frozen=True)
class RankSettings:
    """One rank. silence: why it gave no answer. prefills: addresses of the bootstrap servers that it has dealt with."""

    identity: Identity
    state: str
    silence: str = ""
    body: Settings | None = None
    prefills: tuple[str, ...] = field(default=())


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One server, as its ranks say. Where they differ, a value has all of theirs, joined by `` | ``.

    peers: the servers of the other side that it deals with, and how that is known.
    """

    server: str
    role: str
    cluster: str
    engine: str
    version: str
    ranks: int
    silent: tuple[str, ...] = ()
    values: dict[str, str] = {}
    env: dict[str, str] = {}
    peers: tuple[str, ...] = ()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of all servers. servers: server → value, "" where not set or unknown there.

    verdict: ``same``, ``differs`` (which may be meant), ``mismatch`` (which can't work), ``ranks differ``,
    ``per rank`` (a setting that each rank has for itself).
    """

    name: str
    kind: str
    verdict: str
    servers: dict[str, str]
    text: str = ""


class ConfigDocument(Document, frozen=True, kw_only=True, tag="pdctl.config"):
    """Answer of ``pdctl dump config``."""

    servers: tuple[ServerConfig, ...]
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...] = ()
    partial: bool = False
    problems: tuple[str, ...] = ()
