"""The real servers for a drill's requests: the operator's options, the servers' own data, and the checks of both."""

from __future__ import annotations

from dataclasses import dataclass

from pdctl.engines.sglang.server import Info, Server, ask
from pdctl.inject.drill.schema import LabLoad
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.numbers import PORT, whole

MOST_CONCURRENCY = 256
"""Each request that waits takes two threads here."""


@dataclass(frozen=True)
class Pair:
    """Both servers, their own data, and the address of the prefill's bootstrap server for decode."""

    prefill: Server
    decode: Server
    bootstrap: tuple[str, int]
    prefill_info: Info
    decode_info: Info

    @property
    def servers(self) -> dict[str, Server]:
        """Both servers, by role."""
        return {"prefill": self.prefill, "decode": self.decode}

    def describe(self) -> str:
        """Return where requests go, in words."""
        host, port = self.bootstrap
        return f"prefill {self.prefill.url} decode {self.decode.url} bootstrap {host}:{port}"


@dataclass(frozen=True)
class Address:
    """Where an operator says that the servers are. bootstrap: None for what the prefill server says."""

    prefill: Server
    decode: Server
    bootstrap: tuple[str, int] | None = None

    @classmethod
    def parse(cls, prefill_url: str, decode_url: str, bootstrap: str) -> Address | None:
        """Return what the three options say, None where none is given. Raises PdctlError (USAGE)."""
        if not prefill_url and not decode_url:
            if bootstrap:
                raise PdctlError("--bootstrap without servers", "give --prefill-url and --decode-url", Exit.USAGE)
            return None
        for option, url in (("--prefill-url", prefill_url), ("--decode-url", decode_url)):
            if not url:
                raise PdctlError(
                    f"{option} is missing: a request goes to both servers", "give --prefill-url and --decode-url",
                    Exit.USAGE,
                )  # fmt: skip
        return cls(
            Server.parse(prefill_url, "prefill"),
            Server.parse(decode_url, "decode"),
            _host_port(bootstrap) if bootstrap else None,
        )

    def reach(self) -> Pair:
        """Ask both servers who they are. Raises PdctlError where one does not answer, or is something else."""
        infos = {server.role: ask(server) for server in (self.prefill, self.decode)}
        for server in (self.prefill, self.decode):
            mode = infos[server.role].mode
            if mode != server.role:
                kind = f"a {mode} server" if mode in infos else "a server without disaggregation"
                raise PdctlError(
                    f"--{server.role}-url: {server.url} is {kind}", "give each server with its own option", Exit.USAGE
                )
        bootstrap = self.bootstrap
        if bootstrap is None:
            port = infos["prefill"].bootstrap_port
            if not port:
                raise PdctlError(
                    "the prefill server does not say where its bootstrap server is", "give --bootstrap HOST:PORT",
                    Exit.USAGE,
                )  # fmt: skip
            bootstrap = (self.prefill.host, port)
        return Pair(self.prefill, self.decode, bootstrap, infos["prefill"], infos["decode"])


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    number = whole(port, PORT)
    if not host or not number or "/" in host:
        raise PdctlError(f"--bootstrap {text!r} is no address", "write it as HOST:PORT", Exit.USAGE)
    return host.strip("[]"), number


def check_version(pair: Pair, versions: set[str]) -> None:
    """Raise PdctlError (USAGE) where the ranks that the drill looks at run other versions than these servers."""
    for server, info in ((pair.prefill, pair.prefill_info), (pair.decode, pair.decode_info)):
        if info.version and versions and info.version not in versions:
            raise PdctlError(
                f"{server.url} is of SGLang {info.version}, the ranks found are of {', '.join(sorted(versions))}",
                "name the servers of these ranks; --cluster chooses others",
                Exit.USAGE,
            )


def check(spec: LabLoad, pair: Pair) -> None:
    """Raise PdctlError (USAGE) where this load can't be sent to these servers."""
    size = pair.prefill_info.dp_size
    if spec.prefill_dp >= size:
        raise PdctlError(f"there is no prefill dp {spec.prefill_dp}", f"this prefill server has {size}", Exit.USAGE)
    if spec.concurrency > MOST_CONCURRENCY:
        raise PdctlError(
            f"{spec.concurrency} requests at once are too many for pdctl", f"at most {MOST_CONCURRENCY}", Exit.USAGE
        )
