"""What Transformers itself makes of a conversation with real media: the reference of golden tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoProcessor, PreTrainedModel
from transformers.processing_utils import ProcessorMixin
from transformers.video_utils import VideoMetadata

from tests.tiny_models import MODEL_CLASSES
from triptych.messages import ChatMessage, MediaItem, MediaPart, Metadata, MetadataArray, Modality, TextPart

Part = str
"""A text, or "<image>", "<audio>", "<video>" for the next item of that modality."""
FRAMES_PER_SECOND = 4.0
_FRAMES = (8, 6, 8)
_AUDIO_SECONDS = (2.0, 1.19, 0.4)
_IMAGE_SIZES = ((120, 200), (96, 96), (70, 64))


@dataclass(frozen=True, slots=True)
class Conversation:
    """Our messages and items, and the media themselves."""

    messages: tuple[ChatMessage, ...]
    items: tuple[MediaItem, ...]
    media: tuple[NDArray[np.generic], ...]


@dataclass(frozen=True, slots=True)
class Reference:
    """The processor's output for a conversation and the metadata of its items, in their order."""

    batch: Mapping[str, torch.Tensor]
    metadata: tuple[Metadata, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self.batch["input_ids"][0].tolist())


def conversation(*turns: tuple[str, Sequence[Part]], even_videos: bool = False) -> Conversation:
    """Turns are (role, parts); media are random, of different sizes."""
    random = np.random.default_rng(0)
    items: list[MediaItem] = []
    media: list[NDArray[np.generic]] = []
    messages: list[ChatMessage] = []
    for role, parts in turns:
        content: list[TextPart | MediaPart] = []
        for part in parts:
            if part in ("<image>", "<audio>", "<video>"):
                modality = cast(Modality, part[1:-1])
                index = sum(item.modality == modality for item in items)
                content.append(MediaPart(item=len(items)))
                items.append(MediaItem(modality=modality, index=index, source=f"test:{len(items)}"))
                media.append(_medium(random, modality, 0 if even_videos and modality == "video" else index))
            else:
                content.append(TextPart(text=part))
        messages.append(ChatMessage(role=role, content=tuple(content)))
    return Conversation(tuple(messages), tuple(items), tuple(media))


def _medium(random: np.random.Generator, modality: Modality, index: int) -> NDArray[np.generic]:
    if modality == "audio":
        return (random.standard_normal(int(_AUDIO_SECONDS[index] * 16_000)) * 0.1).astype(np.float32)
    if modality == "image":
        return random.integers(0, 255, (*_IMAGE_SIZES[index], 3), dtype=np.uint8)
    return random.integers(0, 255, (_FRAMES[index], 96, 128, 3), dtype=np.uint8)


@cache
def load_processor(directory: Path) -> ProcessorMixin:
    return cast(ProcessorMixin, AutoProcessor.from_pretrained(directory))


@cache
def load_model(family: str, directory: Path) -> PreTrainedModel:
    return cast(PreTrainedModel, MODEL_CLASSES[family].from_pretrained(directory)).eval()


def process(directory: Path, conv: Conversation) -> Reference:
    """Render, expand and tokenise with the real media, by the public API of the processor."""
    processor = load_processor(directory)
    apply = cast(Callable[..., str], processor.apply_chat_template)
    text = apply(_hugging_face_messages(conv), tokenize=False, add_generation_prompt=True)
    of: dict[Modality, list[NDArray[np.generic]]] = {
        m: [x for x, i in zip(conv.media, conv.items, strict=True) if i.modality == m] for m in _KEYWORDS
    }
    kwargs: dict[str, object] = {_KEYWORDS[m]: found for m, found in of.items() if found}
    if of["video"]:
        described = [_described(video) for video in of["video"]]
        kwargs["videos_kwargs"] = {"do_sample_frames": False, "video_metadata": described}
    batch = cast(Callable[..., Mapping[str, torch.Tensor]], processor)(
        text=[text], return_tensors="pt", **kwargs
    )
    seen: dict[Modality, Iterator[int]] = {m: iter(range(len(found))) for m, found in of.items()}
    metadata = tuple(
        _metadata(processor, batch, item.modality, next(seen[item.modality]), medium)
        for item, medium in zip(conv.items, conv.media, strict=True)
    )
    return Reference(batch, metadata)


_KEYWORDS: Mapping[Modality, str] = {"image": "images", "audio": "audio", "video": "videos"}


def _described(video: NDArray[np.generic]) -> VideoMetadata:
    n = len(video)
    return VideoMetadata(
        total_num_frames=n,
        fps=FRAMES_PER_SECOND,
        duration=n / FRAMES_PER_SECOND,
        frames_indices=list(range(n)),
    )


def _hugging_face_messages(conv: Conversation) -> list[dict[str, object]]:
    def part(part: TextPart | MediaPart) -> dict[str, str]:
        if isinstance(part, TextPart):
            return {"type": "text", "text": part.text}
        return {"type": conv.items[part.item].modality}

    return [{"role": m.role, "content": [part(p) for p in m.content]} for m in conv.messages]


def _metadata(
    processor: ProcessorMixin,
    batch: Mapping[str, torch.Tensor],
    modality: Modality,
    k: int,
    medium: NDArray[np.generic],
) -> Metadata:
    """Of the k-th item of a modality, read off the whole conversation's output."""
    names = {
        "image": ("image_grid_thw",),
        "video": ("video_grid_thw", "second_per_grid_ts", "video_second_per_grid"),
        "audio": (),
    }[modality]
    arrays = {name: np.asarray(batch[name][k : k + 1]) for name in names if name in batch}
    if modality == "audio":
        mel = batch["feature_attention_mask"][k].sum().item()
        arrays["audio_feature_lengths"] = np.asarray([mel])
        arrays["num_audio_tokens"] = _audio_tokens(int(mel))
    if modality == "video":
        arrays |= {"frames_indices": np.arange(len(medium)), "fps": np.asarray([FRAMES_PER_SECOND])}
        if "video_grid_thw" not in batch:
            arrays = {"num_frames": np.asarray([len(medium)])}
    if modality == "image" and "image_grid_thw" not in batch:
        run = cast(Callable[..., Mapping[str, torch.Tensor]], processor.image_processor)
        arrays["num_patches"] = np.asarray(run([medium], crop_to_patches=True)["num_patches"])
    return tuple(metadata_array(name, arrays[name]) for name in sorted(arrays))


def _audio_tokens(mel: int) -> NDArray[np.int64]:
    """Three convolutions of stride 2 over chunks of 100 mel frames."""
    rest = mel % 100
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return np.asarray([rest + mel // 100 * 13])


def metadata_array(name: str, values: NDArray[np.generic]) -> MetadataArray:
    return MetadataArray(name=name, shape=values.shape, values=tuple(values.reshape(-1).tolist()))


def item_rows(
    model: PreTrainedModel, batch: Mapping[str, torch.Tensor], items: Sequence[tuple[Modality, int]]
) -> Iterator[torch.Tensor]:
    """Rows [num_tokens, width] of each item, given as (modality, num_tokens) in order of appearance;
    DeepStack layers are packed behind the main embedding."""
    streams = {m: _features(model, batch, m) for m in _KEYWORDS}
    for modality, num_tokens in items:
        written_as_images = modality == "video" and "pixel_values_videos" not in batch
        source: Modality = "image" if written_as_images else modality
        yield streams[source][:num_tokens]
        streams[source] = streams[source][num_tokens:]
    assert not any(len(left) for left in streams.values())


def _features(model: PreTrainedModel, batch: Mapping[str, torch.Tensor], modality: Modality) -> torch.Tensor:
    arguments = {
        "image": ("pixel_values", "image_grid_thw"),
        "video": ("pixel_values_videos", "video_grid_thw"),
        "audio": ("input_features", "feature_attention_mask"),
    }[modality]
    if arguments[0] not in batch:
        return torch.empty(0, 0)
    run = cast(Callable[..., object], getattr(model.base_model, f"get_{modality}_features"))
    with torch.no_grad():
        output = run(**{n: batch[n] for n in arguments if n in batch}, return_dict=True)
    layers = [cast(Sequence[torch.Tensor], getattr(output, "pooler_output", ()))]
    layers += cast("list[Sequence[torch.Tensor]]", getattr(output, "deepstack_features", None) or [])
    return torch.cat([torch.cat([t.reshape(-1, t.shape[-1]) for t in layer]) for layer in layers], dim=-1)
