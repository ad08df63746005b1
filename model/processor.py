"""The tiny model's processor: Qwen3-Omni's, with small images and few frames, and its chat template."""

from __future__ import annotations

from pathlib import Path

import transformers
from transformers import PreTrainedTokenizerFast

TEMPLATE = Path(__file__).with_name("chat_template.jinja")
IMAGE_PIXELS = {"shortest_edge": 64 * 64, "longest_edge": 256 * 256}
"""At most 64 tokens an image: a token stands for 32 × 32 pixels."""
VIDEO_PIXELS = {"shortest_edge": 4 * 64 * 64, "longest_edge": 8 * 128 * 128}
"""Over all frames of a video. Qwen3OmniMoeProcessor lays its own class default (128 to 768 tokens) over this
one unless a caller passes a size, so a video takes 64 to 384 tokens there: two frames share a token."""


def make_processor(tokenizer: PreTrainedTokenizerFast) -> transformers.Qwen3OmniMoeProcessor:
    return transformers.Qwen3OmniMoeProcessor(
        image_processor=transformers.Qwen2VLImageProcessor(
            patch_size=16, image_mean=[0.5] * 3, image_std=[0.5] * 3, size=IMAGE_PIXELS
        ),
        video_processor=transformers.Qwen3VLVideoProcessor(
            size=VIDEO_PIXELS, fps=2, min_frames=4, max_frames=8, cap_pixels_per_frame=False
        ),
        feature_extractor=transformers.WhisperFeatureExtractor(feature_size=128),
        tokenizer=tokenizer,
        chat_template=TEMPLATE.read_text(encoding="utf-8"),
    )
