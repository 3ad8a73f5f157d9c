"""Find names of hosts, pods, users and networks in texts: reasons, errors, lines of logs. Pure.

A name is found because it is known, in any capitals, with or without a domain, and inside a longer word; because of what
stands before it (``connect to host X``, ``pod/X``, ``--namespace X``); or by its form (an address, a name with a domain, a name
that Kubernetes made).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from pdctl.trace import hostforms as forms

_MOST_CACHED = 65_536
_MOST_ODD = 1000
_MOST_PARTS = 48
"""Words of a name that is found inside a longer word, and what is between them."""
_LONG = 300
_END = "/"

_Tree = dict[str, "_Tree"]
"""Names by their parts; where one ends is ``_END``."""

Say = Callable[[str], str]


def told(texts: Iterable[str]) -> set[str]:
    """Return the names that texts tell by what stands before them, or by their form, and that are names at any other place."""
    names = HostNames()
    each = (name for text in texts for name in names.found(text))
    return {name for name in each if forms.is_distinct(name) or forms.is_formed(name)}


class HostNames:
    """Finds names in texts. known: names of hosts, pods and networks that texts may hold."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._whole: set[str] = set()
        self._inside: _Tree = {}
        self._domains: set[str] = set()
        odd: set[str] = set()
        for name in {forms.canonical(one) for one in known}:
            self._add(name, odd)
        self._sorted = sorted(self._whole)
        self._odd: re.Pattern[str] | None = None
        if odd:
            first = "|".join(map(re.escape, sorted(odd, key=len, reverse=True)[:_MOST_ODD]))
            self._odd = re.compile(rf"(?<![^\W_])(?:{first})(?![^\W_])", re.IGNORECASE)
        self._cache: dict[str, str] = {}

    def _add(self, name: str, odd: set[str]) -> None:
        """Take note of a name. odd: names that are no words of ASCII, which are looked for as they are."""
        if not name or name in forms.NEVER or forms.is_local(name) or name.isdecimal():
            return
        names = [name]
        label, dot, _ = name.partition(".")
        if dot and not forms.is_address(name) and not forms.FILE.search(name):
            names += [label] * forms.is_distinct(label)
            self._domains.update(end for end in forms.ends(name) if end not in forms.NEVER)
        for one in names:
            if not forms.TOKEN.fullmatch(one) and not forms.is_address(one):
                odd.update([one] * (len(one) > 1 and any(map(str.isalnum, one))))
                continue
            self._whole.add(one)
            parts = forms.parts(one)
            if len(one) > 3 and len(parts) <= _MOST_PARTS and forms.is_distinct(one):
                node = self._inside
                for part in parts:
                    node = node.setdefault(part, {})
                node[_END] = {}

    def found(self, text: str) -> Iterator[str]:
        """Yield the names that a text has by what stands before them, or by their form."""
        names: list[str] = []

        def note(name: str) -> str:
            names.append(name)
            return name

        self._told(text, note)
        yield from names
        yield from (one[0] for one in forms.WORD.finditer(text) if forms.is_formed(one[0]))

    def replace(self, text: str, say: Say) -> str:
        """Return ``text`` with ``say(name)`` for each name in it, which is to be as ``HASHED``.

        Texts of one object are to come with one ``say``: words are remembered.
        """
        if self._odd is not None:
            text = self._odd.sub(lambda found: say(found[0]), text)
        if ":" in text:
            text = forms.MAC.sub(lambda found: say(found[0]), text)
            text = forms.IP6.sub(lambda found: _address(found, say), text)
        text = self._told(text, say)
        if "[" in text:
            text = forms.NODESET.sub(lambda found: self._nodeset(found, say), text)
        text = forms.IP4.sub(lambda found: say(found[0]) if forms.may_be(found[0]) else found[0], text)
        return forms.WORD.sub(lambda found: self._token(found[0], say), text)

    def _told(self, text: str, say: Say) -> str:
        """Return ``text`` without the names that what stands before them tells."""
        low = text.lower()
        if "@" in low:
            text = forms.USER.sub(lambda found: _at(found, say), text)
        for words, pattern in forms.STRONG:
            if any(word in low for word in words):
                text = pattern.sub(lambda found: _said(found, say, meant=forms.may_be(found["name"])), text)
        for words, pattern in forms.WEAK:
            if any(word in low for word in words):
                text = pattern.sub(lambda found: _said(found, say, meant=forms.looks(found["name"], found[0])), text)
        return text

    def _nodeset(self, found: re.Match[str], say: Say) -> str:
        """Return ``gpu[001-064]`` as one name, where it is of hosts."""
        head, at = found[1].lower(), found.start()
        next_ = self._sorted[(first := bisect_left(self._sorted, head)) : first + 1]
        known = head not in forms.NEVER and any(host.startswith(head) for host in next_)
        return say(found[0]) if known or forms.OF_NODES.search(found.string[max(0, at - 24) : at]) else found[0]

    def _token(self, token: str, say: Say) -> str:
        if len(token) > _LONG:
            return self._within(token, say)
        new = self._cache.get(token)
        if new is None:
            if len(self._cache) > _MOST_CACHED:
                self._cache.clear()
            new = self._cache[token] = self._new(token, say)
        return new

    def _new(self, token: str, say: Say) -> str:
        low = token.lower()
        if low in self._whole:
            return say(token)
        if low in forms.NEVER or forms.HASHED.fullmatch(token):
            return token
        label, dot, domain = low.partition(".")
        if dot and "_" not in domain and not forms.FILE.search(low):
            known = label in self._whole or low in self._domains
            if known or any(end in self._domains for end in forms.ends(low)):
                return say(token)
        return say(token) if forms.is_formed(token) else self._within(token, say)

    def _within(self, token: str, say: Say) -> str:
        """Return a word with the names in it replaced: ``prefill-gpu-07.log``."""
        if not token.isascii():  # scripts without blanks between words
            return forms.TOKEN.sub(lambda found: self._token(found[0], say), token)
        parts = forms.parts(token)
        if len(parts) < 2 or not self._whole:
            return token
        low = forms.parts(token.lower())
        made: list[str] = []
        at = 0
        while at < len(parts):
            size = self._size(low, at)
            dotted = parts[at - 1 : at] in ([], ["."]) and parts[at + 1 : at + 2] in ([], ["."])
            if not size and dotted and low[at] in self._whole:
                size = 1
            made.append(say("".join(parts[at : at + size])) if size else parts[at])
            at += size or 1
        return "".join(made)

    def _size(self, parts: list[str], at: int) -> int:
        """Return how many parts from this one on are a known name, 0 for none."""
        node, size = self._inside, 0
        for number, part in enumerate(parts[at : at + _MOST_PARTS], start=1):
            if part not in node:
                break
            node = node[part]
            size = number if _END in node else size
        return size


def _said(found: re.Match[str], say: Say, *, meant: bool) -> str:
    if not meant:
        return found[0]
    first, last = (at - found.start() for at in found.span("name"))
    return f"{found[0][:first]}{say(found['name'])}{found[0][last:]}"


def _at(found: re.Match[str], say: Say) -> str:
    """Return ``user@host`` without both, and ``decode@host`` without the host."""
    user, name = found["user"], found["name"]
    if forms.is_place(user):
        return f"{user}@{say(name)}" if forms.may_be(name) else found[0]
    if forms.is_version(name) or not forms.may_be(user):
        return found[0] if not forms.may_be(name) else f"{user}@{say(name)}"
    return f"{say(user)}@{say(name) if forms.may_be(name) else name}"


def _address(found: re.Match[str], say: Say) -> str:
    """Return what an IPv6 address becomes, with or without a port behind it; a time stays."""
    text = found["ip"]
    for address, port in ((text, ""), text.rpartition(":")[::2]):
        if forms.ip(address) is not None and ":" in address and (not port or port.isdecimal()):
            return found[0] if forms.is_local(address) else f"{say(address)}{f':{port}' if port else ''}"
    return found[0]
