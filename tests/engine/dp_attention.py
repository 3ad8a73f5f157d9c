"""What a server with data-parallel attention needs on a CPU: a model whose layers know of it, and patches.

Prefill ranks of one server have dp ranks of their own only with dp attention: without it each of the engine's replicas
believes to be dp rank 0. The tiny Llama can't be used, since a Llama's layers sum over all ranks what only one of them
has; a Qwen3's do not. Its weights are made by the engine (``--load-format dummy``), so only files of a few lines are needed.

Weights of a layer that is split over ranks differ from those of one that is not, so two servers of different sizes do
not hold the same model: **tokens mean nothing here**, all else is as it should be.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

from tests.engine.env import EngineEnv

ARGUMENTS = ("--dp-size", "2", "--enable-dp-attention")
"""Of the server with dp ranks; its ``tp`` must be 2, too."""

_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def with_dp_attention(env: EngineEnv, folder: Path) -> EngineEnv:
    """A copy of ``env`` whose servers can be given :data:`ARGUMENTS`; its model is written to ``folder``."""
    model = folder / "tiny-qwen3"
    model.mkdir()
    for name in _TOKENIZER:
        shutil.copy(env.model / name, model)
    config = json.loads((env.model / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
    (model / "config.json").write_text(json.dumps(config))
    return replace(
        env.with_patches("dp-attention"), model=model, server_args=(*env.server_args, "--load-format", "dummy")
    )
