from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import Qwen3Config

from triptych.models.eos import eos_token_ids


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [3, 4]}, (3, 4)),
        ({"eos_token_id": 5}, (5,)),
        ({"eos_token_id": 0}, (0,)),
        ({"do_sample": False}, (7,)),
        (None, (7,)),
    ],
)
def test_the_generation_config_wins_over_the_models(
    generation: dict[str, object] | None, expected: tuple[int, ...], tmp_path: Path
) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert eos_token_ids(tmp_path, Qwen3Config(eos_token_id=7)) == expected


def test_a_model_that_names_none_has_none(tmp_path: Path) -> None:
    assert eos_token_ids(tmp_path, Qwen3Config(eos_token_id=None)) == ()
