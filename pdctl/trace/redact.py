"""Remove names from recordings: host names, request ids, addresses and free text become salted hashes.

The same name gives the same hash everywhere in one trace, so related records can still be matched. Rooms, slots, polls, times
and all other values stay as they are. docs/trace-format.md lists the replacements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.model import EventKind, Identity
from pdctl.protocol.notes import ABORTED, EVERY_REQUEST, LOST, SCHEDULER_ENDED, THREAD_ENDED, WRONG_ELSEWHERE, WRONG_KV
from pdctl.recording import format as f
from pdctl.recording.header import parse_header
from pdctl.recording.source import Source
from pdctl.trace.hostforms import HASHED, canonical, host_of, is_address, is_local
from pdctl.trace.hostnames import HostNames

CONFLICT = "follow_bootstrap_room conflict"
"""How the reason of a FAILURE begins that verify-routing looks for (SGLang from 0.5.11 on)."""
_REASONS = (CONFLICT, ABORTED, WRONG_ELSEWHERE, WRONG_KV, *LOST)
"""How reasons of the engine begin that pdctl goes by."""
_PLAIN = frozenset(
    {EventKind.FAULT_ARMED, EventKind.FAULT_FIRED, EventKind.FAULT_ENDED, EventKind.STATE, EventKind.DEQUEUE}
)
"""Kinds whose text is one of pdctl's own words."""
_HEAD = re.compile(r"[a-z][a-z ()-]{0,40}: ")
_RAISED = r"[A-Za-z_][\w.]{0,80}(?:(?: in [\w<>]{1,80})?, [\w.-]{1,80}:\d{1,7})?"
_ENDED = re.compile(rf"{SCHEDULER_ENDED}: {_RAISED}|{THREAD_ENDED}: \w{{1,80}}(?:: {_RAISED})?")
_SERVER = re.compile(
    r"@(\[[^@\]/|]*\]|(?:[0-9A-Fa-f]{0,4}:){2,7}(?:[0-9.]{7,15}|[0-9A-Fa-f]{1,4})|[^@:/|]+)(?=[:/|]|$)"
)
_FOLDERS = re.compile(r"(?:\bfile:(?=//)|(?<=://)|(?<![\w./])(?!(?<=:)//))/+(?:[^/\s:,;]+/+)+")


class Names:
    """Replaces names by hashes made with ``salt`` (hexadecimal). hosts: names that free text may hold.

    A host that looks like a hash is one where it is among ``hosts``, or of an identity; else it is taken for a hash, and stays.
    """

    def __init__(self, salt: str, hosts: Iterable[str] = ()) -> None:
        self._key = bytes.fromhex(salt)
        hosts = set(hosts)
        self._real: set[str] = set()
        self._note(hosts)
        self.hosts = HostNames(hosts)

    def _note(self, hosts: Iterable[str]) -> None:
        """Take note of hosts that look like hashes, with a domain or without."""
        names = {part for host in map(canonical, hosts) for part in (host, host.partition(".")[0])}
        self._real.update(filter(HASHED.fullmatch, names))

    def is_hash(self, text: str) -> bool:
        """Return whether a text is a hash, and not the name of a host that looks like one."""
        return HASHED.fullmatch(text) is not None and canonical(text) not in self._real

    def host(self, name: str) -> str:
        """Return ``host-`` and 8 hexadecimal digits, and 8 more for its domain; "" and names of every host itself stay.

        Capitals, brackets and zones make no other name, nor does IPv4 that is mapped into IPv6.
        """
        if not name or is_local(name) or self.is_hash(name):
            return name
        plain = canonical(name)
        label, dot, domain = (plain, "", "") if is_address(plain) else plain.partition(".")
        own = self._hash("host", label or plain, 4)
        return f"{own}.{self._hash('host', domain, 4).removeprefix('host-')}" if dot and domain and label else own

    def rid(self, rid: str) -> str:
        """Return ``rid-`` and 16 hexadecimal digits, of the part of a request id that recordings keep."""
        cut = f.kept_text(rid)
        return self._hash("rid", cut, 8) if cut else cut

    def address(self, address: str) -> str:
        """Return ``host:port`` with the host replaced."""
        host = host_of(address)
        head, _, tail = address.rpartition(host) if host else (address, "", "")
        return f"{head}{self.host(host)}{tail}"

    def server(self, name: str) -> str:
        """Return a name like ``decode@HOST:PORT/…`` with its host replaced."""
        return _SERVER.sub(lambda found: f"@{self.host(found[1])}", name)

    def words(self, text: str) -> str:
        """Return a sentence with host names replaced, and files without the directories they are in."""
        return self.hosts.replace(_FOLDERS.sub("", text), self.host)

    def identity(self, raw: bytes) -> bytes:
        """Return the JSON of an identity with its hosts replaced. Raises ValueError where it is none."""
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("an identity is a JSON object")
        try:
            return msgspec.json.encode(self._identity(found))
        except OverflowError as error:  # a field of a later version
            raise ValueError(f"its identity has a number that is too large: {error}") from None

    def who(self, identity: Identity) -> Identity:
        """Return ``identity`` with its hosts replaced."""
        return structs.from_json(self.identity(msgspec.json.encode(identity)), Identity)

    def event(self, kind: int, text: str) -> str:
        """Return the text of an event of this kind, with the names in it replaced."""
        if not text or kind in _PLAIN:
            return text
        if kind == EventKind.ABORT and text == EVERY_REQUEST:
            return text
        if kind in (EventKind.ENQUEUE, EventKind.ABORT):
            return self.rid(text)
        if kind in (EventKind.DP_QUERY, EventKind.LOOKUP):
            return self.address(text)
        kept = ""
        if kind == EventKind.FAILURE and text == f"{ABORTED}.":
            return text
        if kind == EventKind.FAILURE:
            kept = next((f"{head} " for head in _REASONS if text.startswith(head)), "")
        elif kind == EventKind.NOTE and _ENDED.fullmatch(text):
            return text  # names of the engine's code
        elif kind == EventKind.NOTE and (head := _HEAD.match(text)):
            kept = head[0]
        elif kind == EventKind.NOTE and re.fullmatch(r"[a-z]+-[a-z-]+ [a-z]+", text):
            return text  # a fault and what became of it
        return kept + self._hash("text", text, 8)

    def _identity(self, found: dict[str, Any]) -> dict[str, Any]:
        if isinstance(found.get("host"), str):
            self._note([found["host"]])
            found["host"] = self.host(found["host"])
        own = found.get("engine") == "lab"
        if found.get("role") == "unknown" and isinstance(found.get("service"), str):
            found["service"] = self._reached(found["service"])
        for name in ("service", "instance", "world"):
            found[name] = self._named(found.get(name), own)
        for group in found.get("groups") or ():
            if isinstance(group, dict):
                group["world"] = self._named(group.get("world"), own)
        return found

    def _reached(self, name: str) -> str:
        """Return how an unknown rank is reached (``tcp://HOST:PORT``, ``pod/NAME``, ``user@HOST``, ``pid 7``), nameless."""
        if "://" in name or name.startswith("pid "):
            return name  # the first is replaced as other services are
        kind, slash, rest = name.rpartition("/")
        return f"{kind}{slash}{self.host(rest.rpartition('@')[2])}"

    def _named(self, name: object, own: bool) -> object:
        # A lab's server is called decode@lab:NAME: that is no host.
        if not isinstance(name, str) or (own and _SERVER.findall(name) == ["lab"]):
            return name
        return self.address(name) if "://" in name else self.server(name)  # the first: only its endpoint is known

    def _hash(self, kind: str, text: str, size: int) -> str:
        sum_ = blake2b(text.encode("utf-8", "replace"), digest_size=size, key=self._key, person=kind.encode())
        return f"{kind}-{sum_.hexdigest()}"


class Redacted(Source):
    """A view of another recording with replaced names. Changed records get new checksums as they are read.

    Events with a wrong checksum are blanked, since their content is unknown. Raises ValueError if it is no recording, or if the
    redacted identity does not fit.
    """

    def __init__(self, source: Source, names: Names) -> None:
        head = source.read(0, f.HEADER_SIZE)
        layout = f.layout(parse_header(head).size)
        self._source, self._names, self.size = source, names, source.size
        self._head = _head(bytearray(head), names)
        *_, self._first, capacity = layout
        self._last = min(self._first + capacity * f.EVENT_SIZE, self.size)
        self._texts: dict[tuple[int, bytes], bytes] = {}

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes at ``offset``, fewer than ``length`` where they end."""
        end = min(offset + length, self.size)
        out = bytearray(self._source.read(offset, max(0, end - offset)))
        head = self._head[offset:end]
        out[: len(head)] = head
        start, stop = max(offset, self._first), min(end, self._last)
        if start < stop:
            first = start - (start - self._first) % f.EVENT_SIZE
            last = min(self._last, stop + (self._first - stop) % f.EVENT_SIZE)
            window = bytearray(self._source.read(first, last - first))
            if len(self._texts) > _MOST_TEXTS:
                self._texts.clear()
            _events(window, self._names, self._texts)
            out[start - offset : stop - offset] = window[start - first : stop - first]
        return bytes(out)

    def pieces(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Return the pieces that are no holes: those of the other recording."""
        return self._source.pieces(offset, length)


def redact(data: bytes, names: Names) -> bytes:
    """Redact a recording in memory. Raises as :class:`Redacted`."""
    return Redacted(Source(data), names).read(0, len(data))


def _head(out: bytearray, names: Names) -> bytes:
    length, _ = f.IDENTITY_FIELDS.unpack_from(out, f.IDENTITY_OFFSET_FIELDS)
    raw = names.identity(bytes(out[f.IDENTITY_OFFSET : f.IDENTITY_OFFSET + length]))
    if len(raw) > f.IDENTITY_MAX:
        raise ValueError(f"its identity without names has {len(raw)} bytes, at most {f.IDENTITY_MAX} fit")
    out[f.IDENTITY_OFFSET : f.HEADER_SIZE] = raw.ljust(f.HEADER_SIZE - f.IDENTITY_OFFSET, b"\0")
    f.IDENTITY_FIELDS.pack_into(out, f.IDENTITY_OFFSET_FIELDS, len(raw), crc32(raw))
    return bytes(out)


_MOST_TEXTS = 65_536
_BLANK = bytes(f.EVENT_SIZE)
_BODY = f.EVENT.size
_TEXT_AT = f.EVENT.size - f.TEXT_BYTES
_KIND_AT = 16


def _events(out: bytearray, names: Names, texts: dict[tuple[int, bytes], bytes]) -> None:
    """Replace the names in event records. texts: what became of texts that were replaced before."""
    for at in range(0, len(out), f.EVENT_SIZE):
        record = bytes(out[at : at + f.EVENT_SIZE])
        if record == _BLANK[: len(record)]:
            continue
        whole = len(record) == f.EVENT_SIZE
        if not whole or crc32(record[:_BODY]) != int.from_bytes(record[f.EVENT_CRC_OFFSET :], "little"):
            out[at : at + len(record)] = bytes(len(record))
            continue
        kind, text = record[_KIND_AT], record[_TEXT_AT:_BODY]
        if text[0] == 0:
            continue
        key = (kind, text)
        new = texts.get(key)
        if new is None:
            said = names.event(kind, text.rstrip(b"\0").decode("utf-8", "replace"))
            new = texts[key] = said.encode("utf-8", "replace")[: f.TEXT_BYTES].ljust(f.TEXT_BYTES, b"\0")
        if new != text:
            body = record[:_TEXT_AT] + new
            out[at : at + f.EVENT_SIZE] = body + bytes(4) + crc32(body).to_bytes(4, "little")
