"""Whether a metadata row can come late on one rank and not on another, by what the rank's own code does. Pure."""

from __future__ import annotations

from pdctl.protocol.metadata import Metadata
from pdctl.protocol.model import Identity


def safety(identity: Identity, body: Metadata) -> tuple[str, str]:
    """Return (``yes``, ``partly``, ``no``, ``unknown`` or, where no rows are received, ``-``; why)."""
    if identity.role != "decode":
        return "-", "rows are written here by this rank itself"
    if not body.device:
        return "unknown", body.not_read
    tail = "" if body.zeroed else "; freed slots keep their room, which passes for a landed row until it is overwritten"
    if body.gate:
        return (
            "yes" if body.zeroed else "partly"
        ), f"the gate holds Success back until every rank's row is written{tail}"
    if identity.tp_size * identity.cp_size == 1:
        return "yes" if body.zeroed else "partly", f"no gate, and no other rank to be out of step with{tail}"
    where = f"no gate, rows on {body.device}"
    if body.aux == "tcp":
        return "partly", f"{where}, sent as messages before the status is{tail}"
    if body.aux == "bound":
        return (
            "yes" if body.zeroed else "partly"
        ), f"{where}, and Success is heard with the row, never before it{tail}"
    if body.device != "cpu":
        why = "written by the transfer engine asynchronously: one rank may see its row before another, unheld"
        return "no", f"{where}, {why}{tail}"
    if body.aux == "rdma":
        return "partly", f"{where}, written before the status is sent: safe as long as that write is not late{tail}"
    return "unknown", f"{where}; {body.aux_why}{tail}"
