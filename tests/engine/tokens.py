"""The tokens that a pair of servers answers without pdctl: what those of a pair with pdctl must equal.

Usage::

    python -m tests.engine.tokens [--versions 0.5.12.post1 ...]    # writes assets/tokens.json anew; default: all

They depend on the version, on the model and on the instructions of the processor that a bfloat16 sum is made with. Those of a
machine whose processor differs from the ones in ``assets/tokens.json`` are made when they are first asked for, by a pair
of their own, and kept beside the installed engine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.engine import recipe
from tests.engine.env import EngineEnv, engine_env, engine_home, loopback_namespace
from tests.engine.harness import Pair

STORED = recipe.ASSETS / "tokens.json"
PROMPTS = 4

Tokens = list[list[int]]


def right_tokens(version: str) -> Tokens:
    """Return the token ids of the first ``PROMPTS`` prompts, each asked alone.

    Raises EngineNotInstalledError where the version is not installed and its tokens would have to be made.
    """
    kept = engine_home() / "tokens.json"
    key = key_of(engine_env(version))
    for file in (STORED, kept):
        found = _read(file).get(version, {}).get(key)
        if found:
            return found
    made = make(version)
    _keep(kept, version, key, made)
    return made


def make(version: str) -> Tokens:
    """Ask a pair of servers that knows nothing of pdctl."""
    with tempfile.TemporaryDirectory(prefix="pdctl-tokens-") as folder, loopback_namespace() as namespace:
        env = engine_env(version)
        with Pair.start(env, namespace, Path(folder), environ={"PDCTL_AGENT": "off"}) as pair:
            answers = pair.one_by_one(PROMPTS)
            assert not list(pair.run_dir.iterdir()), "an agent was there"
    tokens = [answer for answer in answers if answer]
    assert len(tokens) == PROMPTS, answers
    return tokens


def key_of(env: EngineEnv) -> str:
    """Return what tokens depend on besides the version: the weights' digest, and that of the vector instructions."""
    weights = hashlib.sha256((env.model / "model.safetensors").read_bytes()).hexdigest()[:8]
    processor = Path("/proc/cpuinfo").read_text()
    vendor = re.search(r"^vendor_id\s*: (.*)$", processor, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", processor, re.MULTILINE)
    vector = sorted(word for word in (flags[1].split() if flags else ()) if re.match("avx|amx|fma|f16c", word))
    instructions = hashlib.sha256(" ".join([vendor[1] if vendor else "", *vector]).encode()).hexdigest()[:8]
    return f"{weights}-{instructions}"


def _read(file: Path) -> dict[str, dict[str, Tokens]]:
    try:
        found: dict[str, dict[str, Tokens]] = json.loads(file.read_text())
    except FileNotFoundError:
        return {}
    return found


def _keep(file: Path, version: str, key: str, tokens: Tokens) -> None:
    kept = _read(file)
    kept.setdefault(version, {})[key] = tokens
    written = file.with_suffix(".new")
    written.write_text(json.dumps(kept, sort_keys=True) + "\n")
    written.replace(file)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the tokens of these versions and write them into the tree."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.tokens", description="tokens without pdctl")
    parser.add_argument("--versions", nargs="+", choices=sorted(recipe.VERSIONS), default=sorted(recipe.VERSIONS))
    for version in parser.parse_args(arguments).versions:
        _keep(STORED, version, key_of(engine_env(version)), make(version))
        print(f"{version}: {STORED}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
