from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from jinja2 import TemplateError
from transformers import AutoProcessor, Qwen3OmniMoeProcessor
from transformers.video_utils import VideoMetadata

MAX_VIDEO_TOKENS = 800
IMAGE, AUDIO, VIDEO = (
    "<|vision_start|><|image_pad|><|vision_end|>",
    "<|audio_start|><|audio_pad|><|audio_end|>",
    "<|vision_start|><|video_pad|><|vision_end|>",
)


@pytest.fixture(scope="module")
def processor(tiny: Path) -> Qwen3OmniMoeProcessor:
    loaded = AutoProcessor.from_pretrained(tiny)
    assert isinstance(loaded, Qwen3OmniMoeProcessor)
    return loaded


def render(processor: Qwen3OmniMoeProcessor, *messages: Mapping[str, object]) -> str:
    apply = cast(Callable[..., str], processor.apply_chat_template)
    return apply(list(messages), tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("kinds", [("image", "audio", "video"), ("image_url", "audio_url", "video_url")])
def test_media_stand_where_they_were_written(
    kinds: tuple[str, str, str], processor: Qwen3OmniMoeProcessor
) -> None:
    image, audio, video = ({"type": kind, kind: {"url": "x"}} for kind in kinds)
    parts = [{"type": "text", "text": "a"}, video, image, {"type": "text", "text": "b"}, audio]
    assert render(processor, {"role": "user", "content": parts}) == (
        f"<|im_start|>user\na{VIDEO}{IMAGE}b{AUDIO}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_inline_audio_is_audio(processor: Qwen3OmniMoeProcessor) -> None:
    part = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    assert AUDIO in render(processor, {"role": "user", "content": [part]})


def test_strings_and_turns_are_kept(processor: Qwen3OmniMoeProcessor) -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    assert render(processor, *turns) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"
    )


def test_unknown_parts_are_refused(processor: Qwen3OmniMoeProcessor) -> None:
    with pytest.raises(TemplateError, match="unknown content part"):
        render(processor, {"role": "user", "content": [{"type": "smell"}]})


@pytest.mark.parametrize("seconds", [1, 4])
def test_a_short_video_takes_a_modest_number_of_tokens(
    seconds: int, processor: Qwen3OmniMoeProcessor
) -> None:
    num_frames = seconds * 30
    video = np.zeros((num_frames, 360, 640, 3), dtype=np.uint8)
    described = VideoMetadata(total_num_frames=num_frames, fps=30.0, duration=float(seconds))
    batch = cast(Callable[..., Mapping[str, torch.Tensor]], processor)(
        text=VIDEO, videos=[video], videos_kwargs={"video_metadata": [described]}, return_tensors="pt"
    )
    assert 64 < batch["input_ids"].shape[1] < MAX_VIDEO_TOKENS
