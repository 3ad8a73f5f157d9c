"""The main functions of a lab's forked processes: one rank, and the bootstrap server of a prefill server.

A server is named as in :attr:`pdctl.lab.config.LabConfig.servers`.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import time
import traceback
from pathlib import Path

from pdctl.lab import state
from pdctl.lab.config import LabConfig
from pdctl.protocol.errors import Exit, PdctlError

START_TIMEOUT_S = 120.0


def label_of(server: str, dp: int, pp: int, tp: int) -> str:
    """Return the name of a rank's process; of the first prefill server and of decode, as Identity.label writes it."""
    return f"{server} dp{dp} pp{pp} tp{tp}"


def labels_of(config: LabConfig, server: str) -> list[str]:
    """Return the names of a server's ranks, in order."""
    shape = config.shape(server)
    places = itertools.product(range(shape.dp), range(shape.pp), range(shape.tp))
    return [label_of(server, dp, pp, tp) for dp, pp, tp in places]


def request_endpoint(config: LabConfig, server: str, dp: int) -> str:
    """Return where a server's dp rank takes requests."""
    return f"ipc://{config.state_dir}/{server}-dp{dp}.req"


def port_file(config: LabConfig, bootstrap: str) -> Path:
    """Return the file that a bootstrap server's address is in. The address outlives its process, as a configured port does."""
    return config.state_dir / f"{bootstrap}.port"


def bootstrap_address(config: LabConfig, prefill: str) -> str:
    """Return where the bootstrap server of a prefill server listens. Raises PdctlError where it has not said so yet."""
    try:
        return port_file(config, config.bootstraps[prefill]).read_text()
    except OSError as error:
        raise PdctlError(
            f"the bootstrap server of lab {config.name!r} has no address: {error.strerror}",
            f"pdctl lab status --name {config.name} shows what runs",
            Exit.UNREACHABLE,
        ) from None


def log_file(folder: Path, label: str) -> Path:
    """Return where a process writes its log."""
    return folder / f"{label.replace(' ', '-')}.log"


def logs_to(folder: Path, label: str) -> None:
    """Send this process's standard output and error to its log file."""
    fd = os.open(log_file(folder, label), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.close(fd)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", force=True
    )


def bootstrap_main(config: LabConfig, label: str) -> None:
    """Serve the bootstrap routes for ever, at the address of the process before it where there was one."""
    from pdctl.lab.engine.bootstrap import CommonKVBootstrapServer

    file = port_file(config, label)
    before = file.read_text() if file.exists() else ""
    server = CommonKVBootstrapServer(
        config.entry_cleanup_s, int(before.rpartition(":")[2] or 0), slow_s=config.slow_bootstrap_s
    )
    address = f"127.0.0.1:{server.server_port}"
    state.publish(file, address)
    state.write(config.state_dir, state.me(label, state.READY, endpoint=address))
    server.serve_forever()


def rank_main(config: LabConfig, server: str, place: tuple[int, int, int], start: str) -> None:
    """Be one rank for ever, at ``place`` (dp, pp, tp). start: name of this start of the server, the same for all its ranks."""
    import torch

    from pdctl.agent.core import Agent
    from pdctl.engines.lab.adapter import LabAdapter
    from pdctl.lab.engine import groups
    from pdctl.lab.engine.scheduler import Scheduler
    from pdctl.lab.engine.transport import make_transport

    torch.set_num_threads(1)
    dp, pp, tp = place
    label, shape, folder = label_of(server, dp, pp, tp), config.shape(server), config.state_dir
    world = world_file(config, server, dp)
    dps = (dp, shape.dp) if config.dp_attention else (0, 1)
    mine = groups.make_groups(world, (tp, shape.tp), (pp, shape.pp), dps, config.group_timeout_s, state.publish)
    transport = make_transport(config.transport)
    bootstrap = port_file(config, config.bootstraps.get(server, "bootstrap"))
    address = groups.wait_for_file(bootstrap, time.monotonic() + START_TIMEOUT_S)
    _wait_for_turn(config, server)
    scheduler = Scheduler(config, server, dp, mine, transport, address, request_endpoint(config, server, dp), start)
    Agent.start(LabAdapter(scheduler), loaded_by="lab")
    state.write(folder, state.me(label, state.READY, transport=transport.name, endpoint=mine.store))
    try:
        scheduler.run()
    except Exception:
        logging.getLogger(__name__).error("Scheduler hit an exception: %s", traceback.format_exc())
        raise


def world_file(config: LabConfig, server: str, dp: int) -> Path:
    """Return the file with the port of a torch world's store. With dp attention one world has all dp ranks."""
    return config.state_dir / f"world-{server}-dp{0 if config.dp_attention else dp}.port"


def _wait_for_turn(config: LabConfig, server: str) -> None:
    """Let the server before this one register first, where both register with one bootstrap server: the last one stays."""
    if not config.shared_bootstrap or server not in config.servers[1 : config.prefills]:
        return
    before = set(labels_of(config, config.servers[config.servers.index(server) - 1]))
    deadline = time.monotonic() + START_TIMEOUT_S
    while not before <= {p.label for p in state.processes(config.state_dir) if p.state != state.STARTING}:
        if time.monotonic() > deadline:
            raise TimeoutError("the server before this one did not register")
        time.sleep(0.02)
