"""Which tokens end a reply, by a checkpoint's own files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from transformers import GenerationConfig, PreTrainedConfig


def eos_token_ids(path: Path, config: PreTrainedConfig) -> tuple[int, ...]:
    """From generation_config.json, else from the text model's configuration; empty if neither names any."""
    try:
        declared = cast(object, GenerationConfig.from_pretrained(path, local_files_only=True).eos_token_id)
    except OSError:
        declared = None
    if declared is None:
        declared = cast(object, getattr(config.get_text_config(decoder=True), "eos_token_id", None))
    if isinstance(declared, int):
        return (declared,)
    return tuple(cast("list[int]", declared or []))
