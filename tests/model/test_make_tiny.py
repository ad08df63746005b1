from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import torch
from model.make_tiny import make_tiny
from safetensors.torch import load_file
from transformers import Qwen3OmniMoeThinkerForConditionalGeneration

from triptych.models.checkpoint import load_part

ROOT = Path(__file__).parent.parent.parent
LIMIT_BYTES = 10_000_000
LIMIT_PARAMETERS = 4_000_000


def weight_map(directory: Path) -> dict[str, str]:
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    return cast("dict[str, str]", index["weight_map"])


def test_it_loads_whole_and_is_small(tiny: Path) -> None:
    loaded = Qwen3OmniMoeThinkerForConditionalGeneration.from_pretrained(tiny, output_loading_info=True)
    model, info = cast("tuple[torch.nn.Module, dict[str, set[str]]]", loaded)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert sum(parameter.numel() for parameter in model.parameters()) <= LIMIT_PARAMETERS
    assert sum(path.stat().st_size for path in tiny.iterdir()) <= LIMIT_BYTES


def test_encoder_and_language_tensors_lie_in_different_shards(tiny: Path) -> None:
    encoder = {
        file for name, file in weight_map(tiny).items() if name.startswith(("visual.", "audio_tower."))
    }
    language = {file for name, file in weight_map(tiny).items() if name.startswith(("model.", "lm_head."))}
    assert encoder
    assert language
    assert not encoder & language
    assert encoder | language == set(weight_map(tiny).values())


def test_each_half_opens_one_shard(tiny: Path) -> None:
    for part in ("encoder", "language"):
        _, report = load_part(tiny, part, torch.float32, "cpu")
        assert (report.shards_opened, report.shards_total) == (1, 2)


def test_weights_are_bfloat16(tiny: Path) -> None:
    tensors = [t for file in set(weight_map(tiny).values()) for t in load_file(tiny / file).values()]
    assert {tensor.dtype for tensor in tensors} == {torch.bfloat16}


def test_making_it_again_gives_the_same_bytes(tiny: Path, tmp_path: Path) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    make_tiny(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), before)
    first, second = ({p.name: p.read_bytes() for p in d.iterdir()} for d in (tiny, tmp_path))
    assert first == second


def test_the_script_makes_the_same_model(tiny: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "model" / "make_tiny.py"), str(tmp_path / "out")]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, timeout=120)
    made = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    assert made == {p.name: p.read_bytes() for p in tiny.iterdir()}


def test_the_script_says_how_it_is_used() -> None:
    command = [sys.executable, str(ROOT / "model" / "make_tiny.py")]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "usage" in ended.stderr
