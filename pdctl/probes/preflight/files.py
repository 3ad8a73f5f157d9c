"""Settings that ``dump config -o json`` saved, as evidence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pdctl.probes.config.model import ConfigDocument
from pdctl.probes.preflight.model import SETTINGS, Evidence
from pdctl.probes.preflight.sides import merged, pairs_of, side_of
from pdctl.protocol import structs
from pdctl.protocol.errors import Exit, PdctlError
from pdctl.protocol.files import read_regular

MOST_BYTES = 16 << 20
MOST_SERVERS = 256


def collect(paths: Sequence[Path], router_s: float) -> Evidence:
    """Return what these files tell. Raises PdctlError: USAGE for a file without settings, UNREACHABLE for none to read."""
    document = merged([_read(path) for path in paths])
    if len(document.servers) > MOST_SERVERS:
        raise PdctlError(f"more than {MOST_SERVERS} servers", "Give the files of one deployment.", Exit.USAGE)
    sides = [side_of(server) for server in document.servers]
    pairs, unpaired = pairs_of(document, sides)
    return Evidence(
        way=SETTINGS,
        sides=tuple(sides),
        pairs=pairs,
        unpaired=unpaired,
        said=tuple(found for found in document.findings if found.code == "PD134"),
        router_s=router_s,
        problems=document.problems,
    )


def _read(path: Path) -> ConfigDocument:
    try:
        return structs.from_json(read_regular(path, MOST_BYTES, follow=True), ConfigDocument)
    except OSError as error:
        raise PdctlError(
            f"{path} can't be read: {error.strerror}", "Name a file that pdctl dump config -o json wrote."
        ) from None
    except ValueError as error:
        raise PdctlError(
            f"{path} has no settings: {str(error)[:200]}", "Write it with pdctl dump config -o json > FILE.", Exit.USAGE
        ) from None
