"""The main functions of a lab's forked processes: one rank, and the bootstrap server of the prefill server."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

from pdctl.lab import state
from pdctl.lab.config import LabConfig
from pdctl.protocol.errors import Exit, PdctlError

START_TIMEOUT_S = 120.0


def label_of(role: str, dp: int, pp: int, tp: int) -> str:
    """Return the name of a rank as Identity.label writes it."""
    return f"{role} dp{dp} pp{pp} tp{tp}"


def request_endpoint(config: LabConfig, role: str, dp: int) -> str:
    """Return where a server's dp rank takes requests."""
    return f"ipc://{config.state_dir}/{role}-dp{dp}.req"


def bootstrap_address(config: LabConfig) -> str:
    """Return where the prefill server's bootstrap server listens. Raises PdctlError where it has not said so yet."""
    try:
        return (config.state_dir / "bootstrap.port").read_text()
    except OSError as error:
        raise PdctlError(
            f"the bootstrap server of lab {config.name!r} has no address: {error.strerror}",
            f"pdctl lab status --name {config.name} shows what runs",
            Exit.UNREACHABLE,
        ) from None


def logs_to(folder: Path, label: str) -> None:
    """Send this process's standard output and error to its log file."""
    fd = os.open(folder / f"{label.replace(' ', '-')}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )


def bootstrap_main(config: LabConfig) -> None:
    """Serve the bootstrap routes for ever."""
    from pdctl.lab.engine.bootstrap import CommonKVBootstrapServer

    server = CommonKVBootstrapServer(config.entry_cleanup_s)
    address = f"127.0.0.1:{server.server_port}"
    state.publish(config.state_dir / "bootstrap.port", address)
    state.write(config.state_dir, state.me("bootstrap", state.READY, endpoint=address))
    server.serve_forever()


def rank_main(config: LabConfig, role: str, dp: int, pp: int, tp: int) -> None:
    """Be one rank for ever. ``instance`` is the same for all ranks of this start of the server."""
    import torch

    from pdctl.agent.core import Agent
    from pdctl.engines.lab.adapter import LabAdapter
    from pdctl.lab.engine import groups
    from pdctl.lab.engine.scheduler import Scheduler
    from pdctl.lab.engine.transport import make_transport

    torch.set_num_threads(1)
    label, shape, folder = label_of(role, dp, pp, tp), config.shape(role), config.state_dir
    port_file = folder / f"world-{role}-dp{dp}.port"
    mine = groups.make_groups(port_file, (tp, shape.tp), (pp, shape.pp), config.group_timeout_s, state.publish)
    transport = make_transport(config.transport)
    bootstrap = groups.wait_for_file(folder / "bootstrap.port", time.monotonic() + START_TIMEOUT_S)
    scheduler = Scheduler(config, role, dp, mine, transport, bootstrap, request_endpoint(config, role, dp))
    Agent.start(LabAdapter(scheduler), loaded_by="lab")
    state.write(folder, state.me(label, state.READY, transport=transport.name, endpoint=mine.store))
    scheduler.run()
