"""Writes a model directory SGLang can serve: a Llama with two layers and random weights, and a tokenizer.

Usage: ``python tiny_model.py DIRECTORY``, in the engine's venv. No hub is asked. Weights are the same every time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 512
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
TEXT = ["a stitch in time saves nine, and a gate in time saves a rank. " * 20, "prefill sends, decode polls. " * 20]


def write_tokenizer(directory: Path) -> None:
    """Byte-level BPE, so that any prompt has a tokenization."""
    tokenizer = Tokenizer(models.BPE(unk_token=None))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **SPECIAL)
    fast.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    fast.save_pretrained(directory)
    # transformers 5 writes a class name that transformers 4 does not know.
    update(directory / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")


def write_model(directory: Path) -> None:
    """About 140,000 weights in bfloat16; head counts divide by 1 and 2, for tensor parallelism."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    update(directory / "config.json", torch_dtype="bfloat16", rope_theta=10000.0)


def update(path: Path, **values: object) -> None:
    """Set top-level `values` in the JSON file `path`."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}, indent=1))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write_tokenizer(target)
    write_model(target)
