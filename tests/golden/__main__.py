"""``python -m tests.golden [NAME…]`` compares what commands print with the golden files; ``--write`` writes them.

NAME is a case's (``hung/ranks``) or the beginning of one (``hung``); without any all are meant. As root it runs in namespaces
of its own: nothing else that runs on the machine is seen.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from tests.golden.golden import Stage, chosen, difference, path
from tests.golden.running import run_apart, run_here
from tests.support import apart

_ALONE = "PDCTL_GOLDEN_ALONE"


def main() -> int:
    """Compare or write; return 0, or 1 where something differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write the files instead of comparing")
    parser.add_argument("--apart", action="store_true", help="run every command in a process of its own")
    parser.add_argument("--times", action="store_true", help="say how long each case took")
    given = parser.parse_args()
    if not os.environ.get(_ALONE) and not apart.why_not():
        os.environ[_ALONE] = "1"
        return apart.main([sys.executable, "-m", "tests.golden", *sys.argv[1:]])
    cases = chosen(given.names)
    if not cases:
        parser.error("no case has such a name")
    differ = False
    with Stage(run_apart if given.apart else run_here) as stage:
        for case in cases:
            begun, spent = time.monotonic(), time.process_time()
            seen = stage.seen(case)
            if given.times:
                print(f"{time.monotonic() - begun:6.2f} s, {time.process_time() - spent:5.2f} s of CPU  {case.name}")
            if given.write:
                path(case).parent.mkdir(parents=True, exist_ok=True)
                path(case).write_text(seen)
            elif lines := difference(case, seen):
                differ = True
                sys.stdout.write(lines)
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
