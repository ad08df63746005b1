"""What Transformers' own `generate` answers: the monolithic model that every layout must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tests.flow.media import RATE_HZ, VIDEO_FPS, Film, Picture, Sound
from tests.tiny_models import MODEL_CLASSES

import torch  # isort: skip  (after tests.tiny_models, which prepares torchvision)
from transformers import AutoProcessor, BatchFeature, PreTrainedModel, ProcessorMixin
from transformers.video_utils import VideoMetadata

Part = str | Picture | Sound | Film
MAX_TOKENS = 20
MARGIN = 1e-4
"""Random weights have near-ties: a difference passes only where the two best logits are closer than this."""


@dataclass(frozen=True)
class Reference:
    """A full model with its processor."""

    model: PreTrainedModel
    processor: ProcessorMixin

    def answer(self, parts: Sequence[Part]) -> list[int]:
        """Greedy token ids, the stop token included."""
        inputs = self._inputs(parts)
        with torch.inference_mode():
            ids = self._generate(inputs, max_new_tokens=MAX_TOKENS)
        return ids[0, inputs["input_ids"].shape[1] :].tolist()

    def is_near_tie(self, parts: Sequence[Part], common: Sequence[int]) -> bool:
        """Whether the two best tokens after the prompt and `common` are closer than `MARGIN`."""
        inputs = self._inputs(parts)
        forced = torch.tensor([list(common)], dtype=torch.long)
        with torch.inference_mode():
            output = self._generate(
                inputs,
                max_new_tokens=len(common) + 1,
                return_dict_in_generate=True,
                output_logits=True,
                prefix_allowed_tokens_fn=_forced(inputs["input_ids"].shape[1], forced[0].tolist()),
            )
        best = output.logits[-1][0].topk(2).values
        return float(best[0] - best[1]) < MARGIN

    def _generate(self, inputs: BatchFeature, **options: object) -> Any:
        generate = cast(Callable[..., Any], self.model.generate)
        return generate(**inputs, do_sample=False, **options)

    def _inputs(self, parts: Sequence[Part]) -> BatchFeature:
        render = cast(Callable[..., str], self.processor.apply_chat_template)
        text = render(
            [{"role": "user", "content": [_template_part(part) for part in parts]}],
            tokenize=False,
            add_generation_prompt=True,
        )
        media = {
            "images": [torch.from_numpy(p.pixels).permute(2, 0, 1) for p in parts if isinstance(p, Picture)],
            "audio": [part.samples for part in parts if isinstance(part, Sound)],
            "videos": [torch.from_numpy(p.frames).permute(0, 3, 1, 2) for p in parts if isinstance(p, Film)],
        }
        options: dict[str, object] = {name: value for name, value in media.items() if value}
        if "videos" in options:
            # Families that do not sample take every frame of clips as short as these.
            sampled = bool(cast(Any, self.processor).video_processor.do_sample_frames)
            metadata = [_video_metadata(part, sampled) for part in parts if isinstance(part, Film)]
            options["videos_kwargs"] = {"do_sample_frames": sampled, "video_metadata": metadata}
        if "audio" in options:
            options["audio_kwargs"] = {"sampling_rate": RATE_HZ}
        process = cast(Callable[..., BatchFeature], self.processor)
        inputs = process(text=[text], return_tensors="pt", **options)
        inputs.pop("num_audio_tokens", None)
        return inputs


def load(family: str, path: Path) -> Reference:
    model = MODEL_CLASSES[family].from_pretrained(path, dtype=torch.float32).eval()
    return Reference(model, AutoProcessor.from_pretrained(path))


def _template_part(part: Part) -> dict[str, str]:
    match part:
        case str():
            return {"type": "text", "text": part}
        case Picture():
            return {"type": "image"}
        case Sound():
            return {"type": "audio"}
        case Film():
            return {"type": "video"}


def _video_metadata(film: Film, sampled: bool) -> VideoMetadata:
    count, height, width = film.frames.shape[:3]
    return VideoMetadata(
        total_num_frames=count,
        fps=float(VIDEO_FPS),
        duration=count / VIDEO_FPS,
        height=height,
        width=width,
        frames_indices=None if sampled else list(range(count)),
    )


def _forced(prompt_length: int, tokens: Sequence[int]) -> Callable[[int, torch.Tensor], list[int]]:
    def allowed(batch: int, ids: torch.Tensor) -> list[int]:
        position = ids.shape[-1] - prompt_length
        return [tokens[position]] if position < len(tokens) else list(range(10**6))

    return allowed
