"""Take names out of documents and logs, as :mod:`pdctl.trace.redact` does out of recordings, with the same hashes. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from pdctl.protocol.errors import PdctlError
from pdctl.trace.hostforms import HASHED, host_of, may_be
from pdctl.trace.hostnames import told
from pdctl.trace.redact import Names

LEFT_OUT = "[left out]"
_HOST_KEYS = frozenset({"host"})
_RID_KEYS = frozenset({"rid", "rids"})
_ADDRESS_KEYS = frozenset({"tcp", "store", "endpoint", "bootstrap", "address"})
_SERVER_KEYS = frozenset({"service", "instance", "world", "server"})
_AT = re.compile(r"@(\[[^@\]/|]+\]|[^@:/|]+)")
_TOKEN = re.compile(r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?")
_RID = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?![0-9A-Za-z])", re.IGNORECASE
)
_QUOTED_RID = re.compile(r"""\brids?['"]?\s*[=:]\s*['"]([^'"\s]{1,200})['"]""")
_SETTING = re.compile(
    r"""(?P<key>\b\w*(?:model_path|tokenizer_path|model_name|chat_template)['"]?\s*[=:]\s*)"""
    r"""(?P<value>'[^']*'|"[^"]*"|[^\s,)}]+)"""
)
_SECRET = re.compile(
    r"""(?i)(?P<key>(?<![\w-])[\w-]{0,80}?(?:api[_-]?keys?|access[_-]?key(?:[_-]?id)?|password|passwd|secret|authorization|cookie"""
    r"""|hf[_-]?token|access[_-]?token|auth[_-]?token|hub[_-]?token|bearer|(?<![#\w-])token(?=['"\\]*\s*[=:]))['"\\]*(?:\s*[=:,]\s*|\s+)(?:b(?=['"]))?\\?"""
    r"""(?:(?:bearer|basic|token|digest)\s+)?)"""
    r"""(?P<value>\[[^\]]*\]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,)}]+)"""
)
_USERINFO = re.compile(r"(?<=://)[^\s/@]{1,200}@")
_KEYLIKE = re.compile(r"\b(?:hf_|sk-)[A-Za-z0-9_-]{8,}")
_MOST_LINE = 16 << 10
"""Characters of a line of a log that are kept."""
_REQUEST = re.compile(
    r"\b(?:Receive|Finish): obj=|\binput_ids\b|\boutput_ids\b|\bprompt['\"]?\s*[=:]|\bmessages['\"]?\s*[=:]"
)
_MOST_ODD = 200
MOST_TEXT = 1 << 20
"""Characters of one text: a longer one would take more than seconds to be searched for names."""
_MOST_HOSTS = 65_536
_MOST_RIDS = 262_144
"""Request ids that are known, without those that are found by their form."""


class HidingError(PdctlError):
    """Names can't be taken out of something, which therefore may not be kept."""


class Hider:
    """Replaces names by hashes, the same name by the same hash everywhere. hosts, rids: names that texts may hold, no hashes.

    fields: keys of documents that are no names, whatever hosts are called. check: called before each text of a document and
    each line of a log; what it raises ends that.
    """

    def __init__(
        self, salt: str, hosts: Iterable[str] = (), rids: Iterable[str] = (), fields: Iterable[str] = ()
    ) -> None:
        self.salt = salt
        self.check: Callable[[], None] = lambda: None
        self._fields = frozenset(fields)
        self._hosts = {host for host in hosts if host and host != "lab"}
        self._rids = set(rids)
        self._names: Names | None = None

    @property
    def names(self) -> Names:
        """What replaces the names that are known by now."""
        if self._names is None:
            self._names = self._settled()
        return self._names

    def _settled(self) -> Names:
        long = {rid for rid in self._rids if len(rid) > 3 and not rid.isdecimal() and not HASHED.fullmatch(rid)}
        self._tokens = {rid for rid in long if _TOKEN.fullmatch(rid)}
        self._odd = sorted(long - self._tokens, key=len, reverse=True)[:_MOST_ODD]
        return Names(self.salt, self._hosts)

    def learn(self, *documents: Any) -> None:
        """Take note of the hosts and request ids that documents, or lines of a log, name: other texts lose them, too.

        Raises HidingError as soon as they are too many, and what ``check`` raises; then nothing of these is known.
        """
        before, self._names = (self._hosts.copy(), self._rids.copy()), None
        try:
            for document in documents:
                self._learn(document, "")
        except HidingError:
            self._hosts, self._rids = before
            raise

    def _learn(self, value: Any, key: str) -> None:
        if isinstance(value, dict):
            if value.get("role") == "unknown" and isinstance(value.get("service"), str):
                self._add(host_of(value["service"].rpartition("@")[2].removeprefix("pod/")))
            for name, one in value.items():
                self._learn(name, "")
                self._learn(one, name)
        elif isinstance(value, list | tuple):
            for one in value:
                self._learn(one, key)
        elif isinstance(value, str) and value and not HASHED.fullmatch(value):
            self.check()
            value = value[:MOST_TEXT]  # one that is longer is not told
            for rid in _QUOTED_RID.findall(value):
                self._know(rid)
            if key in _RID_KEYS:
                self._know(value)
            elif key in _HOST_KEYS:
                self._add(value)
            elif key in _ADDRESS_KEYS and "/" not in value.replace("://", ""):
                self._add(host_of(value))
            else:
                self._hosts.update(filter(may_be, _AT.findall(value)) if key in _SERVER_KEYS else ())
                self._hosts |= told([value])
            for known, most, what in ((self._hosts, _MOST_HOSTS, "names"), (self._rids, _MOST_RIDS, "request ids")):
                if len(known) > most:
                    raise HidingError(f"it would make more than {most} {what} known")

    def _add(self, host: str) -> None:
        if host and host != "lab" and not HASHED.fullmatch(host):
            self._hosts.add(host)

    def _know(self, rid: str) -> None:
        if not _RID.fullmatch(rid):  # such a one is found wherever it is
            self._rids.add(rid)

    def document(self, value: Any, key: str = "") -> Any:
        """Return a document, as JSON has it, without names. Raises as :meth:`said`."""
        if isinstance(value, dict):
            return {
                name if name in self._fields else self.said(name): self.document(one, name)
                for name, one in value.items()
            }
        if isinstance(value, list):
            return [self.document(one, key) for one in value]
        if not isinstance(value, str) or not value or self.names.is_hash(value):
            return value
        if key in _RID_KEYS:
            return self.names.rid(value)
        if key in _HOST_KEYS:
            return value if value == "lab" else self.names.host(value)
        if key in _ADDRESS_KEYS and _TOKEN.match(value) and "/" not in value.replace("://", ""):
            return self.names.address(value)
        return self.said(value)

    def said(self, text: str) -> str:
        """Return :meth:`text` of a text. Raises HidingError for one of over MOST_TEXT characters, and what ``check`` raises."""
        self.check()
        if len(text) > MOST_TEXT:
            raise HidingError(f"a text in it has {len(text)} characters, at most {MOST_TEXT} are searched for names")
        return self.text(text)

    def text(self, text: str) -> str:
        """Return a sentence without the names that are known, without addresses, and without the folders of files."""
        names = self.names
        for rid in self._odd:
            if rid in text:
                text = text.replace(rid, names.rid(rid))
        text = _RID.sub(lambda found: names.rid(found[0]), text)
        text = _TOKEN.sub(lambda found: names.rid(found[0]) if found[0] in self._tokens else found[0], text)
        return names.words(text)

    def log(self, lines: Iterable[str]) -> list[str]:
        """Return the lines of an engine's or router's log, of which it has learned, without names."""
        return [self._line(line) for line in lines]

    def _line(self, line: str) -> str:
        self.check()
        return self.text(_SETTING.sub(self._setting, line))

    def _setting(self, found: re.Match[str]) -> str:
        value = found["value"].strip("'\"")
        if value in ("None", "null", "") or self.names.is_hash(value):
            return found[0]
        return f"{found['key']}'{self.names.host(value).replace('host-', 'name-', 1)}'"


def field_names() -> set[str]:
    """Return the names of all fields of the documents in a bundle."""
    from pdctl.probes.check.model import CheckDocument
    from pdctl.probes.config.model import ConfigDocument
    from pdctl.probes.dump.model import GroupsDump, QueuesDump
    from pdctl.probes.metadata.model import MetadataDocument
    from pdctl.probes.queues.model import QueuesDocument
    from pdctl.probes.ranks.judge import RanksDocument
    from pdctl.probes.stacks.model import StacksDocument
    from pdctl.probes.story.model import StoryDocument
    from pdctl.probes.stuck.model import StuckDocument

    kinds = (
        *(CheckDocument, ConfigDocument, GroupsDump, QueuesDump, MetadataDocument, QueuesDocument, RanksDocument),
        *(StacksDocument, StoryDocument, StuckDocument),
    )
    _, shapes = msgspec.json.schema_components(kinds)
    return {name for shape in shapes.values() for name in shape.get("properties", ())}


def without_secrets(line: str) -> str:
    """Return a line of a log without keys and passwords, and nothing of a line that tells what a request says."""
    line = line if len(line) <= _MOST_LINE else f"{line[:_MOST_LINE]}…"
    if _REQUEST.search(line):
        return f"{line[:40].partition('Receive')[0].partition('Finish')[0]}{LEFT_OUT[:-1]}: what a request says]"
    return _KEYLIKE.sub(LEFT_OUT, _SECRET.sub(_secret, _USERINFO.sub(f"{LEFT_OUT}@", line)))


def _secret(found: re.Match[str]) -> str:
    value = found["value"].strip("'\"")
    kept = value in ("None", "null", "", "False", "True") or value.isdecimal()
    return found[0] if kept else f"{found['key']}{LEFT_OUT}"
