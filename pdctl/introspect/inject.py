"""Puts pdctl's agent into a process that runs without one, and takes it out again."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

import pdctl
from pdctl.agent.injected import ALREADY, LACKS, NEEDS, RESULT_SUFFIX, ROOM, STARTED, already
from pdctl.introspect import hijack, permissions, pyspy, waiting
from pdctl.introspect.memory import GoneError, NotPermittedError
from pdctl.introspect.symbols import NotFoundError
from pdctl.protocol import paths
from pdctl.protocol.model import ATTACHED
from pdctl.protocol.processes import look

_SOURCE = """
try:
    import importlib.util as u, sys
    if u.find_spec("pdctl") is None:
        s = u.spec_from_file_location("pdctl", {package!r} + "/__init__.py", submodule_search_locations=[{package!r}])
        m = sys.modules["pdctl"] = u.module_from_spec(s)
        s.loader.exec_module(m)
    from pdctl.agent.injected import start
    start({options!r})
except BaseException as e:
    with open({result!r}, "r+") as f:
        f.write(f"{{type(e).__name__}}: {{e}}"[:2000])
"""


class Injected(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one process.

    state: ``running`` (the agent answers), ``there`` (the process had a suitable agent already), ``pending`` (the agent starts
    by itself once it gets the GIL) or ``refused``. rank: its label. endpoint: its socket. Both are "" without an agent.
    thread: the hijacked thread, 0 for none. stopped_ms: for how long it was stopped. unarmed: refused, because the existing
    agent takes no faults and ``arm`` was requested.
    """

    pid: int
    state: str
    rank: str = ""
    endpoint: str = ""
    thread: int = 0
    stopped_ms: float = 0.0
    unarmed: bool = False
    reason: str = ""
    next_step: str = ""


def inject(pid: int, env: Mapping[str, str], *, arm: bool, wait_s: float) -> Injected:
    """Start an agent in ``pid``, which must be a rank of this user in this container, and wait until it answers.

    env: PDCTL_RUN_DIR and PDCTL_RECORD_DIR are those the agent uses. arm: it takes faults.
    """
    package = Path(pdctl.__file__).parent
    try:
        folder = paths.private_dir(paths.run_dirs(env)[0])
    except OSError as error:
        return Injected(pid=pid, state="refused", reason=f"no run directory for its socket: {error}")
    why, cure = _unfit(pid, (package, folder))
    if why:
        return Injected(pid=pid, state="refused", reason=why, next_step=cure)
    stem = paths.stem(pid, look(pid).start)
    end = time.monotonic() + wait_s
    result = folder / f"{stem}.{secrets.token_hex(4)}{RESULT_SUFFIX}"
    try:
        with waiting.alone(folder, stem, wait_s) as mine:
            if not mine:
                return Injected(pid=pid, state="refused", reason="another pdctl is about to put an agent into it")
            known = load_registration(pid, env)
            if known is not None:
                return _there(pid, known, arm=arm)
            before = waiting.waiting(folder, stem)
            if before is None:
                try:
                    paths.write_private(result, b" " * ROOM)
                    found = _begin(pid, env, package, folder, result, arm=arm)
                    if found.state == "pending":
                        waiting.mark_waiting(result, armed=arm)
                except BaseException:
                    waiting.forget(result)
                    raise
    except OSError as error:
        reason = f"{folder} can't be written: {error.strerror}"
        return Injected(pid=pid, state="refused", reason=reason, next_step="Nothing was changed in the process.")
    if before is not None:
        return _behind(pid, before, env, arm=arm, end=end)
    try:
        if found.state == "pending":
            found = _wait(found, env, waiting.Waiting(result, arm), arm=arm, end=end)
    except BaseException:
        waiting.forget(result)  # so that an agent that waits for the GIL does not start behind everybody's back
        raise
    if found.state != "pending":
        waiting.forget(result)
    return found


def load_registration(pid: int, env: Mapping[str, str]) -> paths.Registration | None:
    """Return the registration of ``pid`` in the run directories of ``env``, None without one."""
    name = f"{paths.stem(pid, look(pid).start)}{paths.REGISTRATION_SUFFIX}"
    for folder in paths.run_dirs(env):
        try:
            return paths.read_registration(folder / name)
        except (OSError, ValueError):
            continue
    return None


def _there(pid: int, known: paths.Registration, *, arm: bool) -> Injected:
    i = known.identity
    found = Injected(pid=pid, state="there", rank=i.label, endpoint=known.endpoint, reason=already(known))
    if i.armed or not arm:
        return found
    cure = "One that came with the engine is armed at the engine's start: PDCTL_ARM=1."
    if i.loaded_by == ATTACHED:
        cure = f"pdctl attach {pid} --remove-agent, and then --inject-agent --arm."
    return msgspec.structs.replace(found, state="refused", unarmed=True, next_step=cure)


def take_back(pid: int, env: Mapping[str, str]) -> bool:
    """Cancel injected agents of ``pid`` that still wait for the GIL. Return whether there were any."""
    stem = paths.stem(pid, look(pid).start)
    found = [path for folder in paths.run_dirs(env)[:1] for path in waiting.results(folder, stem)]
    blank = [path for path in found if not waiting.text(path)]
    for path in found:
        waiting.forget(path)
    return bool(blank)


def _begin(pid: int, env: Mapping[str, str], package: Path, folder: Path, result: Path, *, arm: bool) -> Injected:
    options = {"PDCTL_RUN_DIR": str(folder), "result": str(result), "PDCTL_ARM": "1" if arm else "0"}
    if env.get("PDCTL_RECORD_DIR"):
        options["PDCTL_RECORD_DIR"] = env["PDCTL_RECORD_DIR"]
    text = _SOURCE.format(package=str(package), options=options, result=str(result))
    try:
        hijacked = hijack.start_thread(pid, f"exec({text!r}, {{}})")
    except NotPermittedError:
        refusal = permissions.explain(pid)
        reason = f"not permitted ({refusal.what}): {refusal.why}"
        return Injected(pid=pid, state="refused", reason=reason, next_step=refusal.cure)
    except (hijack.NoThreadError, NotFoundError, GoneError, OSError) as error:
        return Injected(pid=pid, state="refused", reason=str(error), next_step="Nothing was changed in it.")
    return Injected(pid=pid, state="pending", thread=hijacked.tid, stopped_ms=round(hijacked.ms, 3))


def _unfit(pid: int, needed: Sequence[Path]) -> tuple[str, str]:
    """Return why no agent can be injected into a process, and what helps; ("", "") if no reason is known.

    needed: directories that the agent must find where pdctl has them.
    """
    unsupported = hijack.unsupported()
    if unsupported:
        return unsupported, "pdctl attach without --inject-agent reads it from outside."
    process = look(pid)
    if not process.state or process.state in "ZX":
        return process.why_silent, ""
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
        elsewhere = [path for path in needed if not _same(path, Path(f"/proc/{pid}/root{path}"))]
    except PermissionError:
        refusal = permissions.explain(pid)
        return f"not permitted ({refusal.what}): {refusal.why}", refusal.cure
    except OSError:
        return "process has ended", ""
    if elsewhere:
        return f"it is in another container: it does not see {elsewhere[0]}", "Run pdctl in its container."
    if owner != os.geteuid():
        return f"it runs as uid {owner}: its socket would not be this user's", f"Run pdctl as uid {owner}."
    return "", ""


def _same(here: Path, there: Path) -> bool:
    """Return whether both are one directory. Raises PermissionError, and OSError where the process has ended."""
    try:
        mine, its = here.stat(), there.stat()
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (its.st_dev, its.st_ino)


def _behind(pid: int, before: waiting.Waiting, env: Mapping[str, str], *, arm: bool, end: float) -> Injected:
    """Wait for an agent that another command injected, and return the result."""
    found = Injected(pid=pid, state="pending")
    if arm and not before.armed:
        return msgspec.structs.replace(
            found, state="refused", unarmed=True, reason="an agent that takes no faults was put in before, and waits",
            next_step=f"pdctl attach {pid} --remove-agent takes it back; and then --inject-agent --arm.",
        )  # fmt: skip
    found = _wait(found, env, before, arm=arm, end=end)
    if found.state == "running":
        known = load_registration(pid, env)
        return found if known is None else _there(pid, known, arm=arm)
    if found.state == "pending":
        found = msgspec.structs.replace(found, reason=f"one was put in before: {found.reason}")
    return found


def _wait(found: Injected, env: Mapping[str, str], one: waiting.Waiting, *, arm: bool, end: float) -> Injected:
    """Wait for the agent's report of its start, and return the result."""
    while time.monotonic() < end:
        said = waiting.load_report(one)
        known = (
            load_registration(found.pid, env) if said is None or said == STARTED or said.startswith(ALREADY) else None
        )
        if known is not None and said == STARTED:
            return msgspec.structs.replace(found, state="running", rank=known.identity.label, endpoint=known.endpoint)
        # Another one was quicker; or the one that is waited for, and whoever put it in has seen it.
        if known is not None:
            return _there(found.pid, known, arm=arm)
        if said is None:
            return msgspec.structs.replace(found, state="refused", reason="it was taken back (--remove-agent)")
        if said and said != STARTED:
            reason, cure = _not_started(found.pid, said)
            return msgspec.structs.replace(found, state="refused", reason=reason, next_step=cure)
        if not look(found.pid).state:
            return msgspec.structs.replace(found, state="refused", reason="process has ended")
        time.sleep(waiting.LOOK_S)
    return msgspec.structs.replace(
        found,
        reason=f"{_why_not_yet(found.pid)}; its agent starts by itself then",
        next_step="pdctl attach PID --remove-agent takes it back. Until then pdctl reads the process from outside.",
    )


def _not_started(pid: int, said: str) -> tuple[str, str]:
    """Return why an agent did not start, and what helps, from its report."""
    if not said.startswith(LACKS):
        return f"its agent did not start: {said}", ""
    module, _, python = said.removeprefix(LACKS).strip().partition("\n")
    python = python or str(Path(f"/proc/{pid}/exe"))
    reason = f"its Python has no module {module}, which the agent needs"
    return reason, f"{python} -m pip install {' '.join(NEEDS)}, and then again: the process need not be started anew."


def _why_not_yet(pid: int) -> str:
    """Describe what an agent waits for."""
    process = look(pid)
    if process.state in ("T", "t"):
        return f"{process.why_silent}: it must go on"
    try:
        stack = pyspy.main_thread(pyspy.find(pid), pid, 2.0)
    except pyspy.PySpyError:
        return "its agent waits for the GIL"
    if not stack.holds_gil:
        return "its agent has not had the GIL in that time"
    where = stack.frames[0]
    return f"its agent waits for the GIL, which its main thread has in {where.function} ({where.file}:{where.line})"
