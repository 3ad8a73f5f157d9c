"""Prints, as JSON, what pdctl finds in the code of each transfer backend of the SGLang that is installed. It starts nothing."""

from __future__ import annotations

import importlib
import json
from types import SimpleNamespace

from pdctl.engines.base import Hooks
from pdctl.engines.sglang import seams
from pdctl.engines.sglang.backends import backend_of
from pdctl.faults.table import FaultTable
from pdctl.recording.null import NullRecorder

found = {}
for name in seams.CONNECTIONS:
    try:
        module = importlib.import_module(name)
    except ImportError:
        continue
    managers = (getattr(module, one) for one in dir(module) if one.endswith("KVManager"))
    kind = next(one for one in managers if one.__module__ == name)
    manager = object.__new__(kind)
    backend = backend_of(SimpleNamespace(disagg_prefill_bootstrap_queue=SimpleNamespace(kv_manager=manager)))
    ends = backend.ends()
    found[kind.__name__] = {
        "ends": None if ends is None else [ends.bootstrap, ends.waiting],
        "lacks": list(backend.lacks()),
        "aux": backend.aux({})[0],
        "owed": [backend.owed(role) for role in ("prefill", "decode")],
        "heard": [
            [seam.name, seam.present]
            for seam in backend.install(Hooks(), NullRecorder("a test"), FaultTable(False), "decode")
        ],
    }
print(json.dumps(found))
