"""A process of SGLang's shape with the real agent in it, which can be made silent.

usage: python -m tests.system.targets.silenced [--tp N] [--size N] [--rooms 11,12] [--then gil|wait]

Prints ``ready`` when its agent is up. A line on standard input ends the thread that it names.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence

import msgspec

from pdctl.agent.core import Agent
from pdctl.protocol.model import GroupInfo, Identity
from tests.system.targets import lookalike
from tests.system.targets.tiny import TinyAdapter
from tests.system.targets.writer import obey

WORLD = "the world that its agent registered"


class Adapter(TinyAdapter):
    """Says of the process what SGLang's adapter would, in names that nobody could find out from outside."""

    def __init__(self, tp: int, size: int, rooms: Sequence[int]) -> None:
        super().__init__(tp, size, 0, None)
        self.requests = [(room, f"rid-{room}", slot) for slot, room in enumerate(rooms)]

    def identity(self) -> Identity:
        groups = (GroupInfo("attn-tp", tuple(range(self.size)), WORLD),)
        return msgspec.structs.replace(
            super().identity(), engine="sglang", service="decode@registered", world=WORLD, groups=groups
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tp", type=int, default=0)
    parser.add_argument("--size", type=int, default=1)
    parser.add_argument("--rooms", type=lookalike.numbers, default=[])
    parser.add_argument("--then", default="wait")
    args = parser.parse_args()
    args.role, args.landed = "decode", []
    scheduler = lookalike.Scheduler(args)
    lookalike.publish_groups(scheduler, args.size)
    agent = Agent.start(Adapter(args.tp, args.size, args.rooms), loaded_by="test")
    assert agent is not None
    threading.Thread(target=obey, args=(agent.faults,), daemon=True).start()
    scheduler.event_loop_normal(args.then)


if __name__ == "__main__":
    main()
