"""Which pods of a namespace serve a prefill/decode deployment, in which container, and which can't be looked into. Pure.

What ``kubectl get pods -o json`` prints is untrusted: names go into command lines, texts into messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from pdctl.protocol import structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.listen import parse_listen

MAX_PODS = 256
"""Pods that are looked into at a time: a kubectl each, of some 40 MiB."""
MAX_PORTS = 64
"""Ports of one pod that are forwarded."""
MAX_ITEMS = 16_384
"""Pods of a list, whatever they run."""
MAX_ITEM = 2 << 20
"""Bytes of one pod: etcd keeps none of over 1.5 MiB."""
MAX_VALUES = 2_000_000
"""Values in a list. A small one takes up to 100 bytes of memory. Those that kubectl prints are 45 bytes apart and more."""
MAX_PROBLEMS = 8
"""Pods of a list that can't be used and are named."""
_POD = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", re.ASCII)
_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_MARKS = (
    "leaderworkerset.sigs.k8s.io/name",
    "disaggregatedset.x-k8s.io/name",
    "rbg.workloads.x-k8s.io/group-name",
    "rolebasedgroup.workloads.x-k8s.io/name",
    "llm-d.ai/role",
    "nvidia.com/dynamo-graph-deployment-name",
)
"""A pod with one of these labels is of a deployment that may be a prefill/decode one."""
_ROLES = (
    "llm-d.ai/role",
    "nvidia.com/dynamo-sub-component-type",
    "nvidia.com/dynamo-component-type",
    "rbg.workloads.x-k8s.io/role-name",
    "rolebasedgroup.workloads.x-k8s.io/role",
    "disaggregatedset.x-k8s.io/role",
    "leaderworkerset.sigs.k8s.io/name",
)
"""Labels whose values tell the side, the surest first."""
KNOWN = "LeaderWorkerSet, RoleBasedGroup, llm-d, Dynamo"
_MODE = re.compile(r"--disaggregation-mode[ =]['\"]?(prefill|decode)\b")
_ROUTER = re.compile(r"sglang_router|sglang-router|mini_lb|launch_router|dynamo\.frontend")
_DEFAULT = "kubectl.kubernetes.io/default-container"
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class PodQuery:
    """What ``kubectl pdctl`` was told. "" where it was not: kubectl has defaults of its own for the first three.

    image: of an ephemeral container in which pdctl runs, "" to run pdctl in the pod's own. ports: to forward, None to forward
    none, () for those that a pod's PDCTL_LISTEN names.
    """

    namespace: str = ""
    context: str = ""
    kubeconfig: str = ""
    selector: str = ""
    container: str = ""
    image: str = ""
    ports: tuple[int, ...] | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The options that every kubectl gets."""
        given = {"kubeconfig": self.kubeconfig, "context": self.context, "namespace": self.namespace}
        return tuple(f"--{name}={value}" for name, value in given.items() if value)

    def __str__(self) -> str:
        where = f"namespace {self.namespace}" if self.namespace else "kubectl's namespace"
        return " ".join(["pods of", where, *(["with", self.selector] if self.selector else [])])


@dataclass(frozen=True)
class Pod:
    """A pod of the deployment. side: ``prefill``, ``decode`` or "". container: the one that serves.

    off: why it can't be looked into, "" where it may be. ports: those that its PDCTL_LISTEN names.
    """

    name: str
    side: str = ""
    container: str = ""
    off: str = ""
    ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class Pods:
    """The pods of a deployment. problems: what could not be used of the list."""

    pods: tuple[Pod, ...] = ()
    problems: tuple[str, ...] = ()


class _Reason(msgspec.Struct):
    reason: str | None = None
    message: str | None = None


class _State(msgspec.Struct):
    waiting: _Reason | None = None
    running: _Reason | None = None
    terminated: _Reason | None = None


class _ContainerStatus(msgspec.Struct):
    name: str
    state: _State | None = None


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    message: str | None = None


class _Status(msgspec.Struct):
    phase: str | None = None
    conditions: list[_Condition] | None = None
    containerStatuses: list[_ContainerStatus] | None = None  # noqa: N815


class _Env(msgspec.Struct):
    name: str = ""
    value: str | None = None


class _Container(msgspec.Struct):
    name: str
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[_Env] | None = None

    @property
    def line(self) -> str:
        return " ".join([*(self.command or ()), *(self.args or ())])


class _Spec(msgspec.Struct):
    containers: list[_Container] = []


class _Meta(msgspec.Struct):
    name: str
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletionTimestamp: str | None = None  # noqa: N815


class _Item(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Items(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


def select_pods(listed: bytes, query: PodQuery) -> Pods:
    """Return the pods that serve, from what ``kubectl get pods -o json`` printed.

    With a selector those are all; without one, those of known labels, and those whose command names a side. Raises PdctlError
    (UNREACHABLE) where there is none, or the list is none, or it is over a limit. A pod over a limit is a problem.
    """
    items = _items(listed)
    problems: list[str] = []
    found: list[Pod] = []
    names: set[str] = set()
    ended = 0
    for raw in items:
        try:
            item = _item(raw)
        except ValueError as error:
            problems.append(f"a pod of kubectl's list can't be read: {error}"[:300])
            continue
        pod = _pod(item, query)
        if not query.selector and not _serves(item, pod):
            continue
        if not _POD.fullmatch(pod.name):
            problems.append(f"{pod.name[:80]!r} is no name of a pod")
        elif pod.name in names:
            problems.append(f"pod {pod.name} is in kubectl's list twice; the first was taken")
        elif item.status.phase in _ENDED or (item.metadata.deletionTimestamp and pod.off):
            ended += 1
        else:
            names.add(pod.name)
            found.append(pod)
    if len(problems) > MAX_PROBLEMS:
        more = f"{len(problems) - MAX_PROBLEMS} more pods of kubectl's list can't be used"
        problems[MAX_PROBLEMS:] = [f"{more}: kubectl get pods -o json shows them, -l leaves them out"]
    if not found:
        there = f"{len(items)} pods are there" if items else "it has no pod"
        more = f", {ended} of the deployment have ended" if ended else ""
        raise PdctlError(
            f"no pod of a prefill/decode deployment among the {query}: {there}{more}",
            "Name another namespace with -n, or the pods' own labels with -l."
            if query.selector or not items
            else f"Known are the labels of {KNOWN}, and commands with --disaggregation-mode; -l names others.",
            details=tuple(problems),
        )
    found.sort(key=lambda pod: ({"prefill": 0, "decode": 1}.get(pod.side, 2), pod.name))
    if len(found) > MAX_PODS:
        problems.append(
            f"{len(found)} pods are there; {MAX_PODS} are looked into: -l selects some, docs/kubernetes.md has ways for more"
        )
    return Pods(tuple(found[:MAX_PODS]), tuple(problems))


def _items(listed: bytes) -> list[msgspec.Raw]:
    """Return the pods of a list, none of which is read yet. Values are counted first: many small ones would fill memory."""
    values = listed.count(b",") + listed.count(b"{") + listed.count(b"[")
    if values > MAX_VALUES:
        raise PdctlError(
            f"kubectl's list of pods has over {MAX_VALUES:,} values",
            "Select some with -l; kubectl get pods shows them.",
        )
    try:
        items = structs.from_json(listed, _Items).items or []
    except ValueError as error:
        raise PdctlError(f"kubectl's list of pods can't be read: {error}"[:300], "kubectl get pods shows it.") from None
    if len(items) > MAX_ITEMS:
        raise PdctlError(
            f"kubectl lists {len(items):,} pods; pdctl reads {MAX_ITEMS:,}", "Select those of the deployment with -l."
        )
    return items


def _item(raw: msgspec.Raw) -> _Item:
    size = len(memoryview(raw))
    if size > MAX_ITEM:
        raise ValueError(f"it has {size >> 10} KiB; {MAX_ITEM >> 10} KiB are allowed")
    return structs.from_json(raw, _Item)


def _pod(item: _Item, query: PodQuery) -> Pod:
    meta = item.metadata
    container = _container(item, query)
    ports: tuple[int, ...] = ()
    for one in (container.env or ()) if container is not None else ():
        if one.name == "PDCTL_LISTEN":
            ports = _listens(one.value or "")
    named = container.name if container is not None else query.container
    off = _off(item, named) if container is not None else _no_such(item, query.container)
    return Pod(meta.name, _side(item, container), named, off, ports)


def _container(item: _Item, query: PodQuery) -> _Container | None:
    """Return the container that serves: the one that was named, or that runs the engine, else the pod's first."""
    there = [one for one in item.spec.containers if _CONTAINER.fullmatch(one.name)]
    if query.container:
        return next((one for one in there if one.name == query.container), None)
    engines = [one for one in there if "sglang" in one.line and not _ROUTER.search(one.line)]
    named = (item.metadata.annotations or {}).get(_DEFAULT, "")
    default = [one for one in there if one.name == named]
    return next(iter([*engines, *default, *there]), None)


def _side(item: _Item, container: _Container | None) -> str:
    labels = item.metadata.labels or {}
    mode = _MODE.search(container.line) if container is not None else None
    said = [labels.get(key, "") for key in _ROLES[:-1]]
    for text in [*said, mode[1] if mode else "", labels.get(_ROLES[-1], ""), item.metadata.name]:
        sides = [side for side in ("prefill", "decode") if side in text.lower()]
        if len(sides) == 1:
            return sides[0]
    return ""


def _serves(item: _Item, pod: Pod) -> bool:
    """Return whether a pod is one of a prefill/decode deployment, as far as its labels and commands tell."""
    lines = [one.line for one in item.spec.containers]
    if any(_MODE.search(line) and not _ROUTER.search(line) for line in lines):
        return True
    marked = any(mark in (item.metadata.labels or {}) for mark in _MARKS)
    engine = any("sglang" in line and not _ROUTER.search(line) for line in lines)
    router = any(map(_ROUTER.search, lines))
    return marked and (engine or (bool(pod.side) and not router))


def _no_such(item: _Item, wanted: str) -> str:
    there = ", ".join(one.name[:63] for one in item.spec.containers[:8])
    return f"it has no container {wanted}; it has {there}" if wanted else "it has no container"


def _off(item: _Item, name: str) -> str:
    """Return why pdctl can't run in a container, "" where it runs. A pod that is not ready is looked into if it does."""
    status = item.status
    state = next((one.state for one in status.containerStatuses or () if one.name == name), None)
    if state is not None and state.running is not None:
        return ""
    waiting = (state.waiting or state.terminated) if state is not None else None
    said: Sequence[str | None] = [waiting.reason, waiting.message] if waiting is not None else []
    if waiting is None:
        said = [one.message for one in status.conditions or () if one.status == "False" and one.message][:1]
    why = ": ".join(text for text in said if text)
    what = "has ended" if state is not None and state.terminated is not None else "has not started"
    next_step = f"kubectl describe pod {item.metadata.name} has more"
    return f"not ready: container {name} {what}{f' ({why[:200]})' if why else ''}; {next_step}"


def _listens(text: str) -> tuple[int, ...]:
    """Return the ports that a value of PDCTL_LISTEN names; () for any free one, and for none."""
    try:
        listen = parse_listen(text)
    except ValueError:
        return ()
    return tuple(listen.ports[:MAX_PORTS]) if listen.ports[0] else ()


def parse_ports(text: str) -> tuple[int, ...]:
    """Return the ports of ``7311``, ``7311-7318``, or several with commas; () for ``auto``. Raises PdctlError (USAGE)."""
    if text == "auto":
        return ()
    parts = [_PORTS.fullmatch(part) for part in text.split(",")]
    ports: list[int] = []
    for part in parts[: MAX_PORTS + 1]:
        if part is not None:
            ports += range(int(part[1]), int(part[2] or part[1]) + 1)
    if None in parts or not ports or min(ports) < 1 or max(ports) > 65535 or len(ports) > MAX_PORTS:
        raise PdctlError(
            f"{text[:80]!r} are no ports to forward",
            f"Write 7311-7318, at most {MAX_PORTS}, or auto for those that PDCTL_LISTEN of each pod names.",
            Exit.USAGE,
        )
    return tuple(dict.fromkeys(ports))


def why_not(pod: Pod, code: int | None, said: str, *, right: str = "", image: str = "") -> str:
    """Return why a kubectl failed, and what to do about it.

    code: what it exited with, None where it was ended at the deadline. said: the last line of its standard error. right: what
    it had to create, image: of the ephemeral container in which pdctl was to run.
    """
    lower = said.lower()
    if "forbidden" in lower:
        return f"forbidden: {said}" + (f"; ask for the right to create {right}" if right else "")
    if "unauthorized" in lower or "must be logged in" in lower:
        return f"not authorised: {said}; log in to the cluster again"
    if code is None:
        return f"no answer in time: {said or 'kubectl has said nothing'}; give it more --timeout"
    if "executable file not found" in lower or "no such file or directory" in lower or code in (126, 127):
        there = f"image {image}" if image else f"container {pod.container}"
        return f"no pdctl in {there}; --debug-image runs one beside it, docs/kubernetes.md puts one into it"
    if pod.name and "not found" in lower:
        return f"it is gone since kubectl listed it: {said}"
    if "unable to connect to the server" in lower or "refused" in lower:
        return f"the cluster is not reached: {said}"
    return f"kubectl ended with code {code}: {said or 'it has said nothing'}"
