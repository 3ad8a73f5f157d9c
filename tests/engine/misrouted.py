"""A drill's load on real servers: one request, which in the drill goes to another prefill dp rank than its room implies.

usage: python misrouted.py PREFILL_PORT DECODE_PORT BOOTSTRAP_PORT

Exit status 0: the prefill has answered, whatever it said, as a router would see it; the decode's request is then given up. A
request that does no harm must be answered by both.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import urllib.error
import urllib.request
from typing import Any

PATIENCE_S = 600


def post(port: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found
    except urllib.error.HTTPError as error:
        return {"error": error.read().decode("utf-8", "replace")}


def main(prefill: str, decode: str, bootstrap: str) -> int:
    plain = os.environ["PDCTL_DRILL_PLAIN"] == "1"
    body = {
        "text": "a request like any other",
        "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
        "bootstrap_host": "127.0.0.1",
        "bootstrap_port": int(bootstrap),
        "bootstrap_room": random.getrandbits(61) << 1 | 1,
    }
    answers: dict[str, Any] = {}

    def ask(role: str, port: str, asked: dict[str, Any]) -> None:
        answers[role] = post(port, asked)

    routed = {} if plain else {"routed_dp_rank": 0}  # the room is odd, and implies dp rank 1
    threads = [
        threading.Thread(target=ask, args=("prefill", prefill, body | routed), daemon=True),
        threading.Thread(target=ask, args=("decode", decode, body), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads if plain else threads[:1]:
        thread.join()
    print(f"plain {plain}: {json.dumps(answers)[:400]}", file=sys.stderr)
    return int(plain and "output_ids" not in answers["decode"])


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # a router that hangs up on decode
