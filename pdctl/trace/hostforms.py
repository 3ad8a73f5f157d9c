"""What names of hosts, pods and users look like in texts, and what stands before them. Pure data and predicates.

Each pattern begins at a word and has bounds, so a text takes time by its length.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterator

_C = (
    r"A-Za-z0-9_\u00aa\u00b5\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u1fff\u200c\u200d\u2c00-\u2dff\u3005-\u3007\u3040-\ud7ff"
    r"\uf900-\ufdff\ufe70-\ufefe\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc\U00010000-\U0010ffff"
)
"""What names are made of: letters, marks and digits of any script, and none of their signs, arrows and quotes."""
_N = rf"(?P<name>[{_C}](?:[{_C}.-]{{0,252}}[{_C}])?)"
_Q = r"(?:\\?['\"(\[]){0,2}"
_QUOTE = r"\\?['\"]"
_URL = r"(?:[a-z]{2,10}://)?"
_KEYS = r"host|host_?name|addr|address|endpoint|node_?name|node_?list|namespace|server_name"
_KEY = rf"(?<![A-Za-z0-9_-])(?:\w{{0,40}}_)?(?:{_KEYS}){_QUOTE}?"
_KINDS = "pods?|nodes?|services?|jobs?|endpoints|deployments?|statefulsets?|namespaces?|contexts?|clusters?|the name:"
_OWNERS = "pods?|nodes?|svc|service|deployment|statefulset|job|namespace|leaderworkerset"
_OPTIONS = (
    r"hosts?|namespace|context|hostname|nodelist|master[-_]addr|(?:dist-|nccl-)?init-addr|(?:rdzv[-_])?endpoint|store"
)
_BEFORE_PORT = "server|segment|session|peer|worker|target|bootstrap|store|address|metadata|remote"
_PREPOSITIONS = "to|from|with|at|on|of|by|via"
_NO_COUNT = (
    r"(?!(?:\w{0,30}_)?(?:step|timeout|time|limit|epoch|iter|iteration|line|row|column|layer|size|len|length|count|num|total"
    "|max|min|offset|index|id|token|seq|request|req|room|rank|round|slot|page|block|batch|chunk|bytes?|level|version|pid|tid|seed)s?:)"
)
"""What stands here is no word that a number follows as a port follows a name: ``at step:1200``."""
_AS_USER = r"(?:(?:invalid |authenticating )?user \S{1,64} )?"
_KEY_WORDS = "host addr endpoint node namespace server_name"

_STRONG = (
    # ssh, Slurm
    (" host", rf"\b(?:connect to|resolve|authenticity of|unknown|key for) host(?:name)?:? {_Q}{_N}"),
    (
        "resolve|key for|added|authenticating",
        rf"\b(?:resolve|key for|permanently added|authenticating to) {_QUOTE}?\[?{_N}(?=['\":,\] \\])",
    ),
    (" port", rf"\b(?:(?:closed|reset|refused) by|disconnect(?:ed)? from) {_AS_USER}{_N}(?= port\b)"),
    ("connect", rf"\bconnect(?:ed|ing|ion)? to {_Q}{_N}(?=:\d{{2,5}}(?!\d)| port \d)"),
    ("connection to", rf"\bconnection to {_N}(?= (?:closed|timed|port|refused|lost|failed)|\.?$)"),
    (": permission denied (", rf"(?<![\w.-]){_N}(?=: permission denied \()"),
    ("ssh ", rf"\bssh (?:-v )?{_N}(?= true\b)"),
    ("srun: error", rf"\bsrun: error: {_N}(?=:)"),
    (" cancelled", rf"\bON {_N}(?= CANCELLED)"),
    # kubectl, Kubernetes
    ("/", rf"(?<![\w/-])(?:{_OWNERS})(?:\.[a-z]\S{{0,40}})?/{_N}"),
    ("\"|'", rf"\b(?:{_KINDS})(?:\.[a-z]{{1,20}})? {_QUOTE}{_N}"),
    ("user ", r"\buser \\?\"(?P<name>[^\"\s\\]{1,253})"),
    ("system:", rf"\bsystem:(?:serviceaccount|node):{_N}"),
    ("system:", rf"\bsystem:serviceaccount:[\w.-]{{1,253}}:{_N}"),
    ("pod |node |svc |service ", rf"\b(?:describe|delete|get|cordon|drain) (?:pod|node|svc|service) {_N}"),
    ("namespace", rf"\b(?:of|in|in the) namespace {_Q}{_N}"),
    ("lookup ", rf"\blookup {_N}(?= on |: )"),
    ("assigned ", rf"\bassigned {_N}(?=/)"),
    ("assigned ", rf"\bassigned [\w.-]{{1,253}}/{_N}"),
    ("assigned ", rf"\bassigned [\w.-]{{1,253}}/[\w.-]{{1,253}} to {_N}"),
    ("kubectl", rf"\bkubectl\b[^\n]{{0,400}}? -n[ =]{_N}"),
    # settings and options
    (_KEY_WORDS.replace(" ", "|"), rf"{_KEY}\s{{0,4}}=\s{{0,4}}{_Q}{_URL}{_N}"),
    (_KEY_WORDS.replace(" ", "|"), rf"{_KEY}\s{{0,4}}:\s{{0,4}}{_QUOTE}{_URL}{_N}"),
    (_KEY_WORDS.replace(" ", "|"), rf"{_KEY}\s{{0,4}}:\s{{0,4}}{_N}(?=:\d{{2,5}}(?!\d))"),
    ("--", rf"(?<![\w-])--(?:{_OPTIONS})[ =]{_Q}{_URL}{_N}"),
    # torch.distributed, NCCL, UCX, Mooncake, aiohttp
    ("]:", rf"\[{_N}\](?=:\d{{1,5}})"),
    (" (", rf"\b(?:to|of|at|from|with) \(['\"]?{_N}['\"]?(?=, ?\d{{1,5}}\))"),
    ("nccl", rf"(?<!\S){_N}(?=:\d{{1,8}}:\d{{1,8}} \[\d{{1,4}}\] NCCL)"),
    ("[", rf"\[{_N}(?=:\d{{1,8}}:\d{{1,8}}(?::\d{{1,8}})?\])"),
    (":", rf"\b(?:{_BEFORE_PORT})(?: server)?:? {_Q}{_NO_COUNT}{_N}(?=:\d{{2,5}}(?!\d))"),
    (
        ":",
        rf"\b(?:{_PREPOSITIONS})(?: server)?:? {_Q}{_NO_COUNT}{_N}(?=:(?:\d{{4,5}}|443|80)(?!\d))",
    ),
    # pdctl's own
    ("segment |nic path |failed: ", rf"(?:segment|nic path|has failed:) {_N}(?=:\d{{2,5}}(?!\d))"),
    ("<", rf"\b(?:to|from|with) {_N}(?=<\d{{1,5}}>)"),
    ("connecting to", rf"\bconnecting to {_N}(?= (?:\[|port\b))"),
    (" not responding", rf"\bserver {_N}(?= not responding)"),
    ("the name ", rf"\bthe name {_N}(?= (?:can't|is not))"),
    (" on ", rf"\b(?:pid \d{{1,10}}|socket is) on {_N}"),
    ("addresses of", rf"\baddresses of {_N}"),
    ("://", rf"://(?:[^\s/@]{{1,200}}@)?{_N}"),
)
_WEAK = (
    (
        "host|node|pod|server|namespace|segment|peer|machine|context",
        rf"\b(?:host(?:name)?|node|pod|server|namespace|segment|peer|machine|context)(?::| is|) {_Q}{_N}",
    ),
    (_KEY_WORDS.replace(" ", "|"), rf"{_KEY}\s{{0,8}}:\s{{0,4}}{_N}"),
    ("getaddrinfo|gethostby", rf"\b(?:getaddrinfo|gethostbyname)\w{{0,10}}(?: failed)?(?: for)?[ (:=]{{1,3}}{_Q}{_N}"),
    ("kubectl", rf"\bkubectl (?:exec|logs|attach|debug|port-forward) -c \S{{1,63}} {_N}"),
    (
        "kubectl",
        rf"\bkubectl (?:exec|logs|attach|debug|port-forward)(?: --?(?!-)[\w-]{{1,40}}(?:=\S{{0,200}})?){{0,12}} {_N}",
    ),
    (":", rf"\b(?:{_PREPOSITIONS})(?: server)?:? {_Q}{_N}(?=:\d{{2,3}}(?!\d))"),
    (":", rf"(?<![\w.:/@\[-]){_N}(?=:\d{{4,5}}(?![\w.:]))"),
)


def _compiled(rows: tuple[tuple[str, str], ...]) -> tuple[tuple[tuple[str, ...], re.Pattern[str]], ...]:
    return tuple((tuple(words.split("|")), re.compile(each, re.IGNORECASE | re.ASCII)) for words, each in rows)


STRONG = _compiled(_STRONG)
"""What stands before a name tells that it is one, whatever the word. Each with words of which a text has one."""
WEAK = _compiled(_WEAK)
"""The word has to look like a name, too: it has a digit, or is of parts."""
USER = re.compile(rf"(?<![{_C}.@+-])(?P<user>[{_C}.+-]{{1,64}})@{_N}", re.ASCII)
NODESET = re.compile(rf"(?<![{_C}.-])([{_C}][{_C}.-]{{0,252}})\[[0-9][0-9,-]{{0,400}}\][{_C}.-]{{0,252}}", re.ASCII)
OF_NODES = re.compile(r"(?:srun: error:|\b(?:hosts?|nodes?|nodelist)[ =:]{0,3})\s?\Z", re.IGNORECASE)
IP4 = re.compile(r"(?<![0-9A-Za-z.])(?<!==)(?<![Vv]ersion )(?:\d{1,3}\.){3}\d{1,3}(?![0-9A-Za-z]|\.\d)", re.ASCII)
IP6 = re.compile(
    r"(?:(?<![\w:.])|(?<=[a-z]\d:)|(?<=[g-zG-Z_]:))(?!(?:(?<=[\w)\]]\[)|(?<=[)\]])\[)\d{0,9}::\d{0,9}\])(?P<open>\[)?"
    r"(?P<ip>(?:[0-9A-Fa-f]{0,4}:){2,8}(?:(?:\d{1,3}\.){3}\d{1,3}|\d{5}|[0-9A-Fa-f]{1,4})?)"
    r"(?:%[\w.-]{1,32})?(?(open)\]|(?![\w:]))",
    re.ASCII,
)
"""An address, and no slice: ``ids[::2]``."""
MAC = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2}(?![\w:])", re.ASCII)
TOKEN = re.compile(r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?", re.ASCII)
WORD = re.compile(rf"[{_C}](?:[{_C}.-]*[{_C}])?")
"""A token of any script."""
HASHED = re.compile(r"(?:host|rid|text|name)-[0-9a-f]{8,16}(?:\.[0-9a-f]{8})?")
FILE = re.compile(
    r"\.(?:py|pyc|cpp|cc|cxx|c|h|hpp|cu|cuh|rs|go|js|so(?:\.\d+)*|json|ya?ml|toml|log|txt|md|html?|zip|gz|pdtrace|pdrec|sock"
    r"|safetensors|bin|sh|tmp|lock|pid|csv|pt|whl|conf|cfg)\Z",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"v?\d[\d._T+-]*(?:Z|(?:post|rc|a|b|dev)\d+)?|0x[0-9a-f]+", re.IGNORECASE | re.ASCII)
"""A number, a version, a day."""
_QUANTITY = re.compile(
    r"\d[\d.]*[-_]?(?:[kmgtp]?i?b(?:it|yte)?s?|[kmgt]|[kmgt]?bps|[mun]?s|sec|min|[hdx]|[kmg]?hz)",
    re.IGNORECASE | re.ASCII,
)
_HEX = re.compile(r"[0-9a-f]{7,64}", re.IGNORECASE)
_METAVAR = re.compile(r"[A-Z][A-Z_]*")
_PLACE = re.compile(
    r"(?:prefill|decode|(?:attn[-_])?(?:tp|dp|pp|cp|ep)|rank|room|slot|layer|cuda|sha|md|u?int|b?float|fp|bf|e\dm|mlx\d_|ib|eth"
    r"|bond)[-_]?\d*",
    re.IGNORECASE | re.ASCII,
)
"""A rank, a type, a device: no name, even with a digit."""
_SAFE = "[bcdfghjklmnpqrstvwxz2456789]"
_MADE = re.compile(
    rf"ip-\d{{1,3}}(?:-\d{{1,3}}){{3}}|[a-z0-9][a-z0-9-]{{0,220}}-{_SAFE}{{8,10}}-{_SAFE}{{5}}", re.ASCII
)
"""Names that EC2 and a ReplicaSet of Kubernetes make."""
_ENDS = """
com net org edu gov mil io ai cloud dev internal intra local localdomain lan corp svc home example test de uk fr jp cn
kr eu ru ch us
"""
_DOMAINS = frozenset(_ENDS.split())
_ONE_DOT = frozenset(("com", "net", "org", "edu", "gov", "corp", "lan"))
_PUBLIC = (
    *("k8s.io", "kubernetes.io", "llm-d.ai", "github.com", "githubusercontent.com", "huggingface.co", "pytorch.org"),
    *("python.org", "pypi.org", "sglang.ai"),
)
"""What is there for everybody names nobody."""
_BELOW = tuple(f".{name}" for name in _PUBLIC)
_NOT_NAMES = """
localhost localhost.localdomain prefill decode lab sglang pdctl torch none null true false default kube-system env off
unknown cluster.local svc.cluster.local nvidia.com
"""
NEVER = frozenset(_NOT_NAMES.split())
_WORDS = """
a all an and any are as at be been but by can can't cannot closed could describe did do does down end error failed for
from get gone had has have header here host hostname how i if in into is it its itself key kubectl lost may memory must
my name named namespace no node nodes not now of on one or other our out peer pod pods port process rank ranks reached
refused remote router same server servers shows side so socket that the their them there these they this time timed to
too under unless until up user via was well were what when where which while who why will with within without world you
your exec attach portforward ephemeralcontainers log logs status scale backend frontend leader master scheduler worker
client engine gateway service
"""
COMMON = NEVER | frozenset(_WORDS.split())
"""Words that follow a word like ``host`` in a sentence."""


def ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a text is, that of IPv4 where it is mapped into IPv6, None where it is none."""
    if len(text) > 45:
        return None
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None) or found


def is_address(name: str) -> bool:
    """Return whether a name is an IP address, in brackets or not."""
    return ip(name.strip("[]").partition("%")[0]) is not None


def host_of(address: str) -> str:
    """Return the host of ``HOST``, ``HOST:PORT`` or ``tcp://HOST:PORT``, an IPv6 address with its brackets."""
    rest = address.rpartition("://")[2]
    host, found, port = rest.rpartition(":")
    return host if found and port.strip("/").isdecimal() and not (is_address(rest) and not is_address(host)) else rest


def canonical(name: str) -> str:
    """Return one form of a host's name or address: small letters, no brackets, no zone, IPv4 where it is mapped into IPv6."""
    name = name.strip().strip("[]").rstrip(".").lower()
    found = ip(name.partition("%")[0])
    return str(found) if found is not None else name


def is_local(name: str) -> bool:
    """Return whether a name means the host itself, or any, on every host."""
    plain = canonical(name)
    found = ip(plain)
    return (
        plain in ("localhost", "localhost.localdomain") if found is None else found.is_loopback or found.is_unspecified
    )


def is_distinct(name: str) -> bool:
    """Return whether a word is a name by its look: it has a digit or is of parts, and is no number, version, hash or rank."""
    return ("-" in name or any(map(str.isdigit, name))) and not any(
        one.fullmatch(name) for one in (_PLACE, _PLAIN, _QUANTITY, _HEX)
    )


@functools.lru_cache(maxsize=1 << 15)
def is_formed(token: str) -> bool:
    """Return whether a word can be nothing but a name: it has a domain, or is made by Kubernetes or EC2."""
    low = token.lower()
    if ("-" not in low and "." not in low) or len(low) > 253 or _PLAIN.fullmatch(low) or HASHED.fullmatch(token):
        return False
    if _MADE.fullmatch(low):
        return True
    labels = low.split(".")
    if len(labels) < 2 or labels[-1] not in _DOMAINS or "_" in low or not all(labels) or _public(low):
        return False
    return len(labels) > 2 or labels[-1] in _ONE_DOT or is_distinct(labels[0])


def may_be(name: str) -> bool:
    """Return whether a word where a name is to stand is one."""
    low = name.lower()
    if low in COMMON or any(one.fullmatch(name) for one in (_METAVAR, _PLACE, HASHED)) or FILE.search(low):
        return False
    return not is_local(name) if is_address(name) else not _PLAIN.fullmatch(name) and not _public(low)


def looks(name: str, before: str) -> bool:
    """Return whether a word that may be a name looks like one. before: the word before it."""
    if not may_be(name) or "_" in name or _HEX.fullmatch(name) or _QUANTITY.fullmatch(name):
        return False
    of_parts = "-" in name and before.lower().startswith(("pod", "namespace", "context", "node ", "kubectl"))
    return of_parts or any(map(str.isdigit, name))


def is_place(word: str) -> bool:
    """Return whether what stands before ``@`` is a role, a number or a hash, and no user."""
    return word.isdecimal() or any(one.fullmatch(word) for one in (_PLACE, HASHED))


def is_version(word: str) -> bool:
    """Return whether a word is a number, a version or a day."""
    return _PLAIN.fullmatch(word) is not None and not is_address(word)


def parts(token: str) -> list[str]:
    """Return the parts of a word, and what is between them at the odd places."""
    return re.split(r"([._-])", token)


def ends(name: str) -> Iterator[str]:
    """Yield the domains of a name, of two labels and more, and what follows each of its labels."""
    labels = name.split(".", 40)
    yield from (".".join(labels[at:]) for at in range(1, len(labels) - 1))


def _public(low: str) -> bool:
    return low in _PUBLIC or low.endswith(_BELOW)
