"""``python -m tests.gpu [--rows FILE] [NAME…]``: everything that needs a card, in one go, in a few minutes.

It prints a row for each check: what came out, or why it was left out. ``--rows`` puts those that were done into FILE, as a
section before the others, as docs/track-record.md has them. Exit code 1 if one failed.

It needs torch, msgspec, typer, rich and pyzmq, and no network; nothing is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence
from pathlib import Path

NEEDED = ("torch", "numpy", "msgspec", "typer", "rich", "zmq")


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks that are named, or all."""
    asked = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    asked.add_argument("names", nargs="*", metavar="NAME")
    asked.add_argument("--rows", type=Path, help="file of docs/track-record.md's kind")
    args = asked.parse_args(words)
    lacking = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if lacking:
        print(f"nothing can be checked: {', '.join(lacking)} can't be imported")
        return 2
    from tests.gpu.checks import CHECKS, FailedError, SkippedError, card, cards

    unknown = [name for name in args.names if name not in CHECKS]
    if unknown:
        asked.error(f"checks are {', '.join(CHECKS)}")
    on, failed, done = card(), False, []
    print(f"{cards()} cards · {on or 'no CUDA device'}")
    for name in args.names or CHECKS:
        check, began = CHECKS[name], time.monotonic()
        try:
            said = check.run() if cards() >= check.cards else ""
            if not said:
                raise SkippedError(f"needs {check.cards} card{'s' * (check.cards > 1)}, torch sees {cards()}")
            state = "ok"
            done.append(f"| {check.what} | {on} | `make gpu` | {said} |")
        except SkippedError as why:
            state, said = "skipped", str(why)
        except FailedError as why:
            state, said, failed = "FAILED", str(why), True
            done.append(f"| {check.what} | {on} | `make gpu` | **failed**: {said} |")
        print(f"{name:<14} {state:<8} {time.monotonic() - began:6.1f} s  {said}", flush=True)
    if args.rows is not None and done:
        head, mark, rest = args.rows.read_text().partition("\n## ")
        section = "\n".join([f"\n## {time.strftime('%Y-%m-%d')}, {on}", "", HEAD, *done, ""])
        args.rows.write_text(head + section + mark + rest)
    return int(failed)


HEAD = "| What | Card | Command | Came out |\n|--|--|--|--|"

if __name__ == "__main__":
    sys.exit(main())
