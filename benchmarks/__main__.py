"""Runs every benchmark, prints a table of the results and their goals, and writes them as JSON.

    python -m benchmarks [--quick] [--json FILE]

With and without pdctl are measured in turn, in one session. The exit code says whether everything ran, not whether a goal
was met: that depends on the machine, and on what else it does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ENGINE = "0.5.13.post1"
ROOT = Path(__file__).resolve().parents[1]


def engine() -> tuple[Path, dict[str, str]] | str:
    """Return the interpreter that has the engine and its environment, or why there is none."""
    try:
        from tests.engine.env import EngineNotInstalledError, engine_env
    except ImportError as error:
        return f"tests.engine can't be loaded: {error}"
    try:
        env = engine_env(ENGINE)
    except EngineNotInstalledError as error:
        return str(error)
    return env.python, env.with_path(ROOT).process_environ({"PYTHONSAFEPATH": ""})


def run(python: Path, module: str, *arguments: str, env: dict[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the JSON lines that a benchmark prints, and one with ``failed`` if it ended badly."""
    command = [str(python), "-m", f"benchmarks.{module}", *arguments]
    print(f"running {module} {' '.join(arguments)}", file=sys.stderr, flush=True)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
    if process.wait():
        yield {"benchmark": module, "failed": f"exit code {process.returncode}"}


def results(quick: bool) -> Iterator[dict[str, Any]]:
    """Yield every result."""
    python = Path(sys.executable)
    blocks = "20" if quick else "100"
    chunks = "3" if quick else "60"
    yield from run(python, "turn_cost", "--blocks", blocks)
    yield from run(python, "turn_cost", "--blocks", blocks, "--changing")
    yield from run(python, "turn_cost", "--blocks", blocks, "--reductions")
    yield from run(python, "torch_name", "--blocks", blocks)
    found = engine()
    if isinstance(found, str):
        yield {"benchmark": "poll_overhead", "skipped": found}
    else:
        yield from run(found[0], "poll_overhead", "--chunks", chunks, env=found[1])
        yield from run(found[0], "poll_overhead", "--chunks", chunks, "--changing", env=found[1])
        yield from run(found[0], "poll_overhead", "--chunks", chunks, "--sites", env=found[1])
    yield from run(python, "agent", *(("--runs", "2", "--seconds", "5") if quick else ()))
    yield from run(python, "judges", *(("--requests", "1000", "--times", "2") if quick else ()))
    yield from run(python, "fan_out", *(("--ranks", "64", "--times", "2") if quick else ()))
    whole = ("--sizes", "16", "--times", "1") if quick else ("--times", "2")
    yield from run(python, "fan_out", "--whole", *whole)
    yield from run(python, "load_trace", "--runs", "3" if quick else "15")
    yield from run(python, "read_recording", "--runs", "3" if quick else "15")
    yield from run(python, "watch", *(("--ranks", "4", "--runs", "3") if quick else ()))
    few = ("--schedules", "300", "--seconds", "0.1") if quick else ()
    yield from run(python, "explorer", *few)
    if not isinstance(found, str):
        yield from run(found[0], "explorer", "--policy", "gate-zero", *few, env=found[1])
    yield from run(python, "replay", *(("--rounds", "500", "--times", "1") if quick else ()))
    yield from run(python, "start_up", "--runs", "4" if quick else "15")
    yield from run(python, "top", *(("--ranks", "4", "--seconds", "5") if quick else ()))


def rows(result: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (what, measured, goal) of one result."""
    name = result["benchmark"]
    for word in ("skipped", "failed"):
        if word in result:
            yield name, f"{word}: {result[word]}", ""
            return
    if name == "turn_cost":
        kind = "every round differs" if result["changing"] else "nothing changed"
        what = "flags that ranks agree on" if result["reductions"] else "turn"
        yield f"{what}, {result['requests']} requests, {kind}: CPU added", _quartiles(result["added_us"], "µs"), ""
    elif name == "torch_name":
        what = "a module's other functions, one of which calls torch.distributed"
        yield f"{what}: CPU, hooked", _quartiles(result["ratio"], "×"), "≤ 1.01"
        yield f"{what}: CPU, with a proxy in place all the time", _quartiles(result["standing_ratio"], "×"), ""
    elif name == "poll_overhead":
        kind = "every round differs" if result["changing"] else "nothing changed"
        goal = "" if result["changing"] else ("≤ 1.05" if result["requests"] <= 16 else "≤ 1.03")
        what = f"engine's poll, {result['requests']} requests, {kind}"
        if result["sites"]:
            goal, what = "≤ 1.01", f"engine's poll, {result['requests']} requests, armed to recorded only"
        yield f"{what}: wall", _quartiles(result["ratio"], "×"), goal
        yield f"{what}: by CPU added", f"{result['cpu_ratio']:.3f} ×", goal
    elif name == "agent_memory":
        yield "agent: RSS added", f"{result['rss_added_mib']} MiB", "≤ 12 MiB"
    elif name == "agent_idle":
        yield "agent: idle", f"{result['share_of_a_core']:.3%} of a core", "≤ 0.1 %"
    elif name == "top":
        yield (
            f"pdctl top: {result['ranks']} ranks, a look a second",
            f"{result['share_of_a_core']:.1%} of a core",
            "≤ 10 %",
        )
    elif name == "agent_snapshot":
        what = f"agent: snapshot of {result['requests']} requests"
        yield f"{what}, CPU", _quartiles(result["build_ms"], "ms"), ""
        yield f"{what}, longest with the GIL", _quartiles(result["stretch_ms"], "ms"), "≤ 1 ms"
        yield f"{what}, main thread held up", _quartiles(result["gap_ms"], "ms"), ""
        yield "agent: main thread held up without it", _quartiles(result["gap_without_ms"], "ms"), ""
    elif name == "judge":
        what = f"{result['probe']}: {result['ranks']} ranks with {result['requests']} requests each"
        yield f"{what}, decoding, CPU", f"{result['decode_ms']} ms", ""
        yield f"{what}, judging, CPU", f"{result['judge_ms']} ms", "≤ 150 ms"
        yield f"{what}, RSS added", f"{result['rss_added_mib']} MiB", "≤ 300 MiB"
    elif name == "fan_out_whole":
        what = f"{result['command']} of {result['ranks']} ranks over TCP, {result['case']}, {result['way']}"
        yield f"{what}: wall", f"{result['wall_s']} s", ""
        yield f"{what}: client", f"{result['cpu_s']} s of CPU, {result['peak_mib']} MiB", "≤ 200 MiB"
        yield f"{what}: on the wire", f"{result['wire_kib_a_rank']} KiB a rank", "≤ 8 KiB, diverged ≤ 512"
    elif name == "load_trace":
        yield "load_trace: full recording of 16 MiB", _quartiles(result["wall_s"], "s"), "≤ 0.3 s"
        yield "load_trace: to its bytes and checksums alone, CPU", _quartiles(result["cpu_ratio"], "×"), ""
    elif name == "read_recording":
        for part in ("read", "events", "history", "last_words", "together"):
            goal = "≤ 60 ms" if part == "together" else ""
            yield f"full recording of 16 MiB, {part}: CPU", _quartiles(result[f"{part}_ms"], "ms"), goal
            yield (
                f"full recording of 16 MiB, {part}: to its bytes and checksums",
                _quartiles(result[f"{part}_ratio"], "×"),
                "",
            )
        for part in ("read", "together", "changes"):
            yield f"full recording of 16 MiB, {part}: memory for a byte", _quartiles(result[f"{part}_peak"], "×"), ""
    elif name == "watch":
        what = f"a look of watch at {result['ranks']} full recordings"
        yield f"{what}: CPU", _quartiles(result["look_ms"], "ms"), ""
        yield f"{what}: to reading and judging them whole", _quartiles(result["ratio"], "×"), "≤ 0.1"
        yield f"{what}, twice a second", f"{result['share_of_a_core']:.1%} of a core", "≤ 10 %"
    elif name == "explorer":
        what = f"explorer, {result['policy']}"
        yield f"{what}: poll decisions, one core", f"{result['decisions_per_s']:.3g} /s", "≥ 1e8 /s on two"
        for key, other in (("plain_per_s", "a plain Python loop"), ("engine_per_s", "the engine's gate and a MIN")):
            if key in result:
                yield f"{what}: schedules to {other}", f"{result['schedules_per_s'] / result[key]:.0f} ×", "≥ 50 ×"
    elif name == "explorer_sampled":
        yield "explorer, schedules drawn of 4 ranks × 8 requests × 4 rounds", f"{result['schedules_per_s']:.3g} /s", ""
    elif name == "replay":
        what = f"replay of {result['rounds']:,} rounds, {result['ranks']} ranks, {result['requests']} requests"
        yield f"{what}: to bare Gloo reductions", f"{result['ratio']:.2f} ×", "≤ 2 ×"
    elif name == "start_up":
        for key, shown, minimal in (
            ("help", "pdctl --help", "minimal_app_help"),
            ("diff_queues_help", "pdctl diff-queues --help", "minimal_app_one_help"),
        ):
            value = f"{result[f'{key}_to_import_only_cpu']:.2f} ×"
            yield f"{shown} to `import typer, rich`, CPU", value, "≤ 1.5 ×"
            yield f"{shown} to the smallest such application, CPU", f"{result[f'{key}_to_{minimal}_cpu']:.2f} ×", ""


def _quartiles(value: dict[str, float], unit: str) -> str:
    return f"{value['median']:.3g} {unit} ({value['q1']:.3g} to {value['q3']:.3g})"


def main() -> int:
    """Exit status: 0 when all ran or were skipped, 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repetitions: to see that everything runs")
    parser.add_argument("--json", type=Path, default=Path("build/benchmarks.json"), help="where the results go")
    options = parser.parse_args()
    found = list(results(options.quick))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": machine, "results": found}, indent=1) + "\n")
    table = [row for result in found for row in rows(result)]
    width = max(len(row[0]) for row in table)
    for what, measured, goal in table:
        print(f"{what:<{width}}  {measured}{f'   goal {goal}' if goal else ''}")
    print(f"\n{machine['cores']} cores, load {os.getloadavg()[0]:.1f}; all numbers are in {options.json}")
    return 1 if any("failed" in result for result in found) else 0


if __name__ == "__main__":
    sys.exit(main())
