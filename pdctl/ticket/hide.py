"""Take names out of documents and logs, as :mod:`pdctl.trace.redact` does out of recordings, with the same hashes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from pdctl.trace.redact import Names

LEFT_OUT = "[left out]"
_HOST_KEYS = frozenset({"host"})
_RID_KEYS = frozenset({"rid", "rids"})
_ADDRESS_KEYS = frozenset({"tcp", "store", "endpoint", "bootstrap", "address"})
_HASHED = re.compile(r"(?:host|rid|text|name)-[0-9a-f]{8,16}")
_TOKEN = re.compile(r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?")
_RID = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_IP = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)|\[[0-9A-Fa-f.]{0,4}:[0-9A-Fa-f:.]{1,44}\]")
_URL = re.compile(r"(?<=://)[A-Za-z0-9_](?:[\w.-]*\w)?")
_SERVER = re.compile(r"(?<=prefill@|[^\w]decode@)[A-Za-z0-9_](?:[\w.-]*\w)?|(?<=^decode@)[A-Za-z0-9_](?:[\w.-]*\w)?")
_NODESET = re.compile(r"(?<![\w.-])[A-Za-z0-9_][\w.-]{0,252}\[[0-9][0-9,-]{0,400}\][\w.-]{0,252}")
_QUOTED_RID = re.compile(r"""\brids?['"]?\s*[=:]\s*['"]([^'"\s]{1,200})['"]""")
_SETTING = re.compile(
    r"""(?P<key>\b\w*(?:model_path|tokenizer_path|model_name|dist_init_addr|chat_template)['"]?\s*[=:]\s*)"""
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


class Hider:
    """Replaces names by hashes, the same name by the same hash everywhere. hosts, rids: names that texts may hold."""

    def __init__(self, salt: str, hosts: Iterable[str] = (), rids: Iterable[str] = ()) -> None:
        self.salt = salt
        self._hosts = {host for host in hosts if host and host != "lab"}
        self._rids = set(rids)
        self._settle()

    def _settle(self) -> None:
        self.names = Names(self.salt, self._hosts)
        long = {rid for rid in self._rids if len(rid) > 3 and not rid.isdecimal() and not _HASHED.fullmatch(rid)}
        self._tokens = {rid for rid in long if _TOKEN.fullmatch(rid)}
        self._odd = sorted(long - self._tokens, key=len, reverse=True)[:_MOST_ODD]

    def learn(self, document: Any) -> None:
        """Take note of the hosts and request ids that a document names, so that other texts with them lose them, too."""
        self._learn(document, "")
        self._settle()

    def _learn(self, value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, one in value.items():
                self._learn(one, name)
        elif isinstance(value, list):
            for one in value:
                self._learn(one, key)
        elif isinstance(value, str) and value and not _HASHED.fullmatch(value):
            if key in _HOST_KEYS and value != "lab":
                self._hosts.add(value)
            elif key in _RID_KEYS:
                self._rids.add(value)

    def document(self, value: Any, key: str = "") -> Any:
        """Return a document, as JSON has it, without names."""
        if isinstance(value, dict):
            return {self.text(name): self.document(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [self.document(one, key) for one in value]
        if not isinstance(value, str) or not value or _HASHED.fullmatch(value):
            return value
        if key in _RID_KEYS:
            return self.names.rid(value)
        if key in _HOST_KEYS:
            return value if value == "lab" else self.names.host(value)
        if key in _ADDRESS_KEYS and _TOKEN.match(value) and "/" not in value.replace("://", ""):
            return self.names.address(value)
        return self.text(value)

    def text(self, text: str) -> str:
        """Return a sentence without the names that are known, without addresses, and without the folders of files."""
        for rid in self._odd:
            if rid in text:
                text = text.replace(rid, self.names.rid(rid))
        text = _URL.sub(self._host, text)
        text = _SERVER.sub(self._host, text)
        text = _NODESET.sub(self._nodeset, text)
        text = _IP.sub(self._host, text)
        text = _RID.sub(lambda found: self.names.rid(found[0]), text)
        text = _TOKEN.sub(lambda found: self.names.rid(found[0]) if found[0] in self._tokens else found[0], text)
        return self.names.words(text)

    def _host(self, found: re.Match[str]) -> str:
        return found[0] if found[0] == "lab" or _HASHED.fullmatch(found[0]) else self.names.host(found[0])

    def _nodeset(self, found: re.Match[str]) -> str:
        """Return ``gpu[001-064]`` as one name, where it is of hosts that are known."""
        head = found[0].partition("[")[0]
        known = any(host.startswith(head) for host in self._hosts)
        return self.names.host(found[0]) if known else found[0]

    def log(self, lines: Iterable[str]) -> list[str]:
        """Return the lines of an engine's or router's log without names."""
        lines = list(lines)
        self._rids.update(found for line in lines for found in _QUOTED_RID.findall(line))
        self._settle()
        return [self.text(_SETTING.sub(self._setting, line)) for line in lines]

    def _setting(self, found: re.Match[str]) -> str:
        value = found["value"].strip("'\"")
        if value in ("None", "null", "") or _HASHED.fullmatch(value):
            return found[0]
        return f"{found['key']}'{self.names.host(value).replace('host-', 'name-', 1)}'"


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


__all__ = ["Hider", "without_secrets"]
