"""Write the tiny omni model with random weights: `python model/make_tiny.py DIR`. Needs no network."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

if not __package__:  # run as a script: only this folder is on the path
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from triptych.models import torchvision_cpu

torchvision_cpu.install()

import torch  # noqa: E402
from safetensors.torch import load_file, save  # noqa: E402
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration  # noqa: E402

from model.architecture import make_model  # noqa: E402
from model.processor import make_processor  # noqa: E402
from model.tokenizer import make_tokenizer  # noqa: E402
from triptych.models.quiet import quiet  # noqa: E402

ENCODER_PREFIXES = ("visual.", "audio_tower.")
INDEX = "model.safetensors.index.json"


def make_tiny(directory: Path) -> None:
    """Write config, generation config, tokenizer, processor, chat template and bfloat16 weights.

    Encoder and language tensors lie in different shards, so that a worker can open only those it needs.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    make_processor(tokenizer).save_pretrained(directory)
    write_model(make_model(tokenizer), directory)


def write_model(model: Qwen3OmniMoeThinkerForConditionalGeneration, directory: Path) -> None:
    """Write config and weights as `save_pretrained` does, in bfloat16, one shard a part."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch, quiet():
        model.bfloat16().save_pretrained(scratch)
        for path in Path(scratch).glob("*.json"):
            path.replace(directory / path.name)
        _write_shards(load_file(Path(scratch) / "model.safetensors"), directory)


def _write_shards(tensors: Mapping[str, torch.Tensor], directory: Path) -> None:
    parts = {
        "encoder": {n: t for n, t in tensors.items() if n.startswith(ENCODER_PREFIXES)},
        "language": {n: t for n, t in tensors.items() if not n.startswith(ENCODER_PREFIXES)},
    }
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts.values(), start=1):
        shard = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        (directory / shard).write_bytes(save(part, metadata={"format": "pt"}))
        weight_map |= dict.fromkeys(part, shard)
    total_size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total_size}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python model/make_tiny.py DIR")
    make_tiny(Path(sys.argv[1]))
