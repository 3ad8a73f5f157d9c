"""``kubectl pdctl``: takes kubectl's options from the arguments. What is left is a command line of pdctl."""

from __future__ import annotations

from collections.abc import Sequence

from pdctl.protocol.errors import Exit, PdctlError
from pdctl.targets.pods import PodQuery, parse_ports

_OPTIONS = {
    "--namespace": "namespace", "-n": "namespace", "--context": "context", "--kubeconfig": "kubeconfig",
    "--selector": "selector", "-l": "selector", "--container": "container", "-c": "container",
    "--debug-image": "image", "--port-forward": "ports",
}  # fmt: skip
HELP = """\
kubectl pdctl [OPTION…] COMMAND … looks into the pods of a prefill/decode deployment, by your own kubectl's rights.

  -n, --namespace NAME   Of this namespace; --context and --kubeconfig, too, are kubectl's own.
  -l, --selector LABELS  Into these pods, not those of known deployments.
  -c, --container NAME   In this container of each, not the one that runs the engine.
  --debug-image IMAGE    By an ephemeral container of this image beside it, not by the pdctl in the container.
  --port-forward PORTS   By agents that listen on these ports (7311-7318; auto: PDCTL_LISTEN of each container).
"""
REFUSED = ("attach", "clean", "demo", "drill", "lab", "preflight", "replay", "run", "self-test")
"""Commands about this host, or about nobody's pods."""


def split_arguments(words: Sequence[str]) -> tuple[PodQuery, list[str]]:
    """Return the pods that kubectl's options in ``words`` ask for, and the other words. Raises PdctlError (USAGE)."""
    given: dict[str, str] = {}
    left: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            left += [word, *rest]
            break
        name, equals, value = word.partition("=")
        if name not in _OPTIONS and word[:2] in _OPTIONS and not word.startswith("--"):
            name, equals, value = word[:2], "=", word[2:].removeprefix("=")
        if name not in _OPTIONS:
            left.append(word)
            continue
        if not equals:
            value = next(rest, "")
        if not value or (not equals and value.startswith("-")):
            raise PdctlError(f"{name} has no value", "kubectl pdctl --help shows how to use it.", Exit.USAGE)
        given[_OPTIONS[name]] = value
    if given.get("image") and "ports" in given:
        raise PdctlError("--debug-image and --port-forward are two ways into a pod", "Give one of them.", Exit.USAGE)
    ports = parse_ports(given.pop("ports")) if "ports" in given else None
    return PodQuery(ports=ports, **given), left


def refuse(name: str) -> None:
    """Return where a command looks at ranks, wherever they are; raises PdctlError (USAGE) where it is of one host only."""
    if name in REFUSED:
        raise PdctlError(
            f"pdctl {name} does not work on pods from here",
            f"Run it in one: kubectl exec -it POD -c CONTAINER -- pdctl {name}",
            Exit.USAGE,
        )
