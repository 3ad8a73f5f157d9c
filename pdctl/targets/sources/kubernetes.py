"""Ranks in pods, by the rights that the user's own ``kubectl`` has.

``kubectl get pods`` tells who is there (:mod:`pdctl.targets.pods`). Into each pod leads a ``kubectl exec`` that runs pdctl in
the container of the engine, an ephemeral container that runs it beside that, or a ``kubectl port-forward`` to agents that
listen. Whatever kubectl prints is untrusted: bounded, and checked. No shell is used.
"""

from __future__ import annotations

import re
import select
import shutil
import time
from collections.abc import Callable, Sequence

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.rank import Access, FoundRank, Silence
from pdctl.targets import bridges, registration
from pdctl.targets.children import PARTS_A_TURN, Child, end, ends_with_this, set_aside
from pdctl.targets.places import Places
from pdctl.targets.pods import Pod, PodQuery, Pods, select_pods, why_not
from pdctl.targets.sources.hosts import settings_of

MAX_LIST = 64 << 20
"""Bytes of a list of pods."""
MAX_SAID = 16 << 10
"""Bytes of what one port-forward prints that are read."""
_STEP_S = 0.05
_NO_PORT = "no port to forward: PDCTL_LISTEN of its container names none; --port-forward 7311-7318 does"
_FORWARDS = re.compile(rb"^Forwarding from 127\.0\.0\.1:(\d{1,5}) -> \d{1,5}\s*$", re.MULTILINE)


def find(
    places: Places, query: PodQuery, timeout_s: float, rank_timeout_s: float, problems: list[str]
) -> list[FoundRank]:
    """Return the ranks in the pods that were asked for, and a row for each pod that gives none, with the reason.

    Half of ``timeout_s`` is for that, at most a quarter for the list. Raises PdctlError (UNREACHABLE) where there is no
    kubectl, or no pod.
    """
    until = time.monotonic() + timeout_s / 2
    there = list_pods(query, timeout_s / 4)
    problems += there.problems
    reached = [pod for pod in there.pods if not pod.off]
    rows = [silent_row(pod, pod.off) for pod in there.pods if pod.off]
    if query.ports is not None:
        return rows + _forwarded(reached, places, query, until, min(rank_timeout_s, timeout_s / 4))
    settings = settings_of(places, until - time.monotonic(), rank_timeout_s)
    return rows + bridges.open_all([far_of(pod, query) for pod in reached], until, problems, settings)


def far_of(pod: Pod, query: PodQuery) -> bridges.Far:
    """Return the pdctl that runs in a pod: in the container that serves, or in an ephemeral one that sees its processes."""
    if query.image:
        run: tuple[str, ...] = (
            "debug", pod.name, "--stdin", "--quiet", f"--image={query.image}", f"--target={pod.container}", "--profile=general"
        )  # fmt: skip
        right = "pods/attach, and to patch pods/ephemeralcontainers"
    else:
        run, right = ("exec", "--stdin", f"--container={pod.container}", pod.name), "pods/exec"

    def explain(code: int | None, said: str) -> str:
        if code == Exit.USAGE:  # of an older pdctl there
            return bridges.explain(code, said)
        return why_not(pod, code, said, right=right, image=query.image)

    return bridges.Far(f"pod/{pod.name}", (*kubectl(query), *run, "--", *bridges.BRIDGE), explain)


def list_pods(query: PodQuery, timeout_s: float) -> Pods:
    """Return the pods of the deployment. Raises PdctlError (UNREACHABLE) where kubectl does not list them, or there is none."""
    more = (f"--selector={query.selector}",) if query.selector else ()
    listing = _Kubectl((*kubectl(query), "get", "pods", "--output=json", *more), MAX_LIST)
    _follow([listing], time.monotonic() + timeout_s, lambda _: False)
    code, why = listing.code, listing.why(Pod(""), "")
    listing.child.close()
    if listing.full:
        raise PdctlError(f"kubectl lists more than {MAX_LIST >> 20} MiB of pods", "Select some with -l.")
    if code != 0:
        raise PdctlError(f"kubectl does not list the {query}: {why}", "kubectl get pods shows it.")
    return select_pods(bytes(listing.out), query)


def kubectl(query: PodQuery) -> tuple[str, ...]:
    """Return how the kubectl on PATH is called. Raises PdctlError (UNREACHABLE) where there is none."""
    found = shutil.which("kubectl")
    if found is None:
        raise PdctlError("there is no kubectl on PATH", "Install it, or run pdctl in the pods: docs/kubernetes.md.")
    return (found, *query.flags)


def silent_row(pod: Pod, why: str, silence: Silence = Silence.REFUSED) -> FoundRank:
    """Return the row of a pod that can't be looked into."""
    where = f"pod/{pod.name}"
    return FoundRank(registration.nameless(where), "live", access=Access(), silent=silence, silent_why=why)


class _Kubectl:
    """A kubectl that runs, and what it has printed: at most ``limit`` bytes, ``full`` where it had more.

    Raises PdctlError (UNREACHABLE) if it can't be started.
    """

    def __init__(self, command: Sequence[str], limit: int) -> None:
        try:
            self.child = Child(command)
        except OSError as error:
            why = f"kubectl can't be run: {error.strerror}"
            raise PdctlError(
                why, "Is it a program, and may enough files be open (ulimit -n)? -l selects fewer pods."
            ) from None
        self.out = bytearray()
        self.full = False
        self.ports = 0
        self._limit = limit

    @property
    def code(self) -> int | None:
        """What it exited with, None while it runs."""
        return self.child.exit_code

    def take(self) -> None:
        """Take a part of what it has printed since. What is over the limit is dropped: it would stop at a full pipe."""
        for _ in range(PARTS_A_TURN):
            if not (data := self.child.receive()):
                return
            self.out += data[: self._limit + 1 - len(self.out)]
            self.full = len(self.out) > self._limit

    def why(self, pod: Pod, right: str) -> str:
        """Return why it failed. right: what it had to create."""
        return why_not(pod, self.code, self.child.last_words, right=right)


def _follow(kubectls: Sequence[_Kubectl], until: float, enough: Callable[[_Kubectl], bool]) -> None:
    """Read what they print until each has ended or printed ``enough``, or the time is over."""
    poll = select.poll()
    waiting = {one.child.fileno(): one for one in kubectls}
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting and (left_s := until - time.monotonic()) > 0:
        for fd, _ in poll.poll(min(left_s, _STEP_S) * 1000) or ((fd, 0) for fd in list(waiting)):
            one = waiting[fd]
            one.take()
            if one.full or enough(one) or (one.child.ended and one.code is not None):
                poll.unregister(fd)
                del waiting[fd]


# ---- ports that are forwarded ----------------------------------------------------------------------------------------

_FORWARDING: dict[tuple[str, ...], _Kubectl] = {}
"""Kubectls that forward ports, by their command line: the next look of this process takes them over."""


def _forwarded(
    pods: Sequence[Pod], places: Places, query: PodQuery, until: float, rank_timeout_s: float
) -> list[FoundRank]:
    """Return the ranks whose agents listen in these pods, and rows for pods in which none answers."""
    from pdctl.targets.sources import endpoints

    over = [command for command, one in _FORWARDING.items() if one.code is not None]
    end([_FORWARDING.pop(command).child for command in over])  # of pods that are gone, too
    ports = {pod.name: query.ports or pod.ports for pod in pods}
    rows = [silent_row(pod, _NO_PORT, Silence.NO_SOCKET) for pod in pods if not ports[pod.name]]
    each = [(pod, _forward(pod, query, ports[pod.name])) for pod in pods if ports[pod.name]]
    _follow([one for _, one in each], until, _forwards_all)
    leading: dict[str, Pod] = {}
    failed: list[Child] = []
    for pod, one in each:
        there = [port for port in _FORWARDS.findall(one.out) if 0 < int(port) < 65536]
        if one.code is None and there:
            leading.update((f"tcp://127.0.0.1:{int(port)}", pod) for port in there)
        else:
            rows.append(silent_row(pod, one.why(pod, "pods/portforward")))
            failed.append(one.child)
    end(failed)
    ranks = endpoints.identified([*leading], places, rank_timeout_s)
    return rows + answering([(rank, leading[rank.endpoint]) for rank in ranks])


def _forward(pod: Pod, query: PodQuery, ports: Sequence[int]) -> _Kubectl:
    command = (*ends_with_this(), *kubectl(query), "port-forward", f"pod/{pod.name}", *(f":{port}" for port in ports))
    one = _FORWARDING.get(command)
    if one is not None and one.child.ended:
        set_aside(one.child)
    if one is None or one.child.ended:
        one = _FORWARDING[command] = _Kubectl(command, MAX_SAID)
        one.ports = len(ports)
    return one


def _forwards_all(one: _Kubectl) -> bool:
    return len(_FORWARDS.findall(one.out)) >= one.ports


def answering(ranks: Sequence[tuple[FoundRank, Pod]]) -> list[FoundRank]:
    """Return the ranks that answered or do not let this user in, and one row for each pod without any.

    More ports are forwarded than agents listen: one at which nobody is, is no silent rank. A rank that should be there is
    missed by the sizes of its server.
    """
    found = [(rank, pod) for rank, pod in ranks if _somebody(rank)]
    there = {pod.name for _, pod in found}
    nobody = {pod.name: (pod, rank) for rank, pod in ranks if pod.name not in there}
    why = "no agent answers at the forwarded ports"
    rows = [silent_row(pod, f"{why}: {rank.silent_why}", rank.silent) for pod, rank in nobody.values()]
    return [*(rank for rank, _ in found), *rows]


def _somebody(rank: FoundRank) -> bool:
    return rank.silent is not Silence.NOT_AUTHORISED or rank.silent_why.startswith("not authorised: ")
