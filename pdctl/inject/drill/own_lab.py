"""An embedded cluster of a drill's own: started for it, and gone after it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from pdctl.inject.drill.schema import Drill, LabOptions, LabSpec
from pdctl.lab import launch
from pdctl.lab.config import LabConfig, check, parse_shape
from pdctl.protocol import durations
from pdctl.protocol.errors import Exit, PdctlError

NAME = "drill"
_DAY_S = 86_400


def config(drill: Drill, folder: Path, *, control: bool) -> LabConfig:
    """Return the configuration of the drill's lab in ``folder``; ``control``: of the one without the fix.

    Raises PdctlError (USAGE) where the drill says nothing of a lab, or of a control.
    """
    if drill.lab is None:
        raise PdctlError(
            f"drill {drill.name} says nothing of a lab", "run it without --lab, or add lab: to it", Exit.USAGE
        )
    if control and drill.lab.control is None:
        raise PdctlError(
            f"drill {drill.name} has no control on a lab", "lab.control says what to leave out", Exit.USAGE
        )
    options = merged(drill.lab, drill.lab.control if control else None)
    device = options.metadata_device
    values: dict[str, Any] = {
        side: parse_shape(text) for side in ("prefill", "decode") if (text := getattr(options, side))
    }
    values |= {name: value for name in ("load_balance", "slots", "kv_tokens") if (value := getattr(options, name))}
    for name in ("bootstrap_timeout", "waiting_timeout", "group_timeout"):
        if text := getattr(options, name):
            values[f"{name}_s"] = durations.parse(text, most_s=_DAY_S)
    if device:
        values["metadata_device"] = _device() if device == "auto" else device
    made = LabConfig(
        name=NAME,
        without=options.without,
        force_query=options.force_query,
        run_dir=str(folder / "run"),
        record_dir=str(folder / "rec"),
        owner=os.getpid(),
        **values,
    )
    return check(made)


def merged(lab: LabSpec, control: LabOptions | None) -> LabOptions:
    """Return the lab's options with those of its control over them."""
    values = {name: getattr(lab, name) for name in LabOptions.__struct_fields__}
    if control is not None:
        values.update({name: value for name in values if (value := getattr(control, name))})
    return LabOptions(**values)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def lab_of(cluster: str, env: Mapping[str, str]) -> LabConfig | None:
    """Return the embedded cluster of this name, None where it is an engine's."""
    try:
        return launch.status(cluster, dict(env))[0]
    except PdctlError:
        return None


@contextmanager
def own_lab(
    drill: Drill, env: Mapping[str, str], *, control: bool, timeout_s: float
) -> Iterator[tuple[LabConfig, dict[str, str]]]:
    """Start the drill's lab in directories of its own; gives its configuration and the environment to find it with.

    Nothing of it is left afterwards. It ends by itself when this process does.
    """
    folder = Path(tempfile.mkdtemp(prefix="pdctl-drill-"))
    made: LabConfig | None = None
    try:
        made = config(drill, folder, control=control)
        for place in (made.run_dir, made.record_dir):
            Path(place).mkdir(mode=0o700)
        launch.up(made, timeout_s)
        yield made, {**env, "PDCTL_RUN_DIR": made.run_dir, "PDCTL_RECORD_DIR": made.record_dir}
    finally:
        if made is not None and (made.state_dir / "lab.json").exists():
            launch.down(made.state_dir)
        shutil.rmtree(folder, ignore_errors=True)


def describe(made: LabConfig) -> str:
    """Return the configuration as ``pdctl lab up`` options would say it, defaults left out."""
    told = msgspec.to_builtins(made)
    default = msgspec.to_builtins(LabConfig(name=made.name))
    left_out = {"name", "run_dir", "record_dir", "owner", "prefill", "decode"}
    more = [f"{key}={value}" for key, value in told.items() if key not in left_out and value != default[key]]
    return " ".join([f"prefill {made.prefill}", f"decode {made.decode}", *more])
