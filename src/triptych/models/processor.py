"""Decoded media → encoder input, by the model's own Transformers processor, one item at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import AutoProcessor, BatchFeature
from transformers.processing_utils import OmniModalProcessorMixin, ProcessorMixin

from triptych.errors import CheckpointError, MediaInvalid, UnsupportedModality
from triptych.media.types import Decoded, DecodedAudio, DecodedImage, DecodedVideo, DecodePolicy
from triptych.messages import Modality
from triptych.models.frame_sampling import ModelFrameSampler, VideoProcessor, video_metadata
from triptych.models.interface import ProcessedItem
from triptych.models.metadata import item_metadata
from triptych.models.quiet import quiet

_SCHEMA = "1"
"""Change with anything here or in `frame_sampling` that changes what a processor is given."""
_DEFAULT_SAMPLE_RATE_HZ = 16_000
_COUNTS = frozenset({"num_patches", "num_audio_tokens", "second_per_grid_ts", "video_second_per_grid"})
"""Outputs that no encoder takes."""

Kwargs = dict[str, dict[str, object]]
_Element = TypeVar("_Element", np.uint8, np.float32)


class HFMediaProcessor:
    """A `MediaProcessor` on the processor saved beside a checkpoint. Thread-safe.

    Raises:
        CheckpointError: the directory holds no processor that Transformers can load.
    """

    def __init__(self, path: Path) -> None:
        try:
            with quiet():
                loaded = AutoProcessor.from_pretrained(path, local_files_only=True)
        except (OSError, ValueError, TypeError, ImportError, KeyError, AttributeError) as error:
            raise CheckpointError(f"cannot load the processor in {path}: {error}") from error
        if not isinstance(loaded, ProcessorMixin):
            raise CheckpointError(f"{path} holds a {type(loaded).__name__}, not a multimodal processor")
        self._processor = loaded
        self._kwargs = _merged_kwargs(loaded)
        self._modalities = _modalities(loaded)
        self._policy = _policy(loaded, path)

    @property
    def modalities(self) -> frozenset[Modality]:
        return self._modalities

    @property
    def policy(self) -> DecodePolicy:
        return self._policy

    def process(self, modality: Modality, decoded: Decoded) -> ProcessedItem:
        if modality not in self._modalities:
            raise UnsupportedModality(f"the model takes no {modality}")
        try:
            match decoded:
                case DecodedImage():
                    processed, replacement, frames = self._image(decoded)
                case DecodedVideo():
                    processed, replacement, frames = self._video(decoded)
                case DecodedAudio():
                    processed, replacement, frames = self._audio(decoded)
        except (ValueError, RuntimeError, ZeroDivisionError) as error:
            raise MediaInvalid(f"the model's processor refuses it: {error}") from error
        num_tokens = self._count(modality, replacement)
        as_images = modality == "video" and num_tokens == 0
        if as_images:
            num_tokens = self._count("image", replacement)
        if num_tokens == 0:
            raise MediaInvalid("too short or too small for the model")
        return ProcessedItem(
            modality=modality,
            inputs=_encoder_inputs(processed, as_images),
            metadata=item_metadata(processed, frames),
            num_tokens=num_tokens,
        )

    def _image(self, decoded: DecodedImage) -> _Output:
        pixels = _tensor(decoded.pixels).permute(2, 0, 1)
        kwargs = {**self._kwargs["images_kwargs"], "input_data_format": "channels_first"}
        run = cast(_Run, self._processor._process_images)  # pyright: ignore[reportPrivateUsage]
        processed, replacements = run([pixels], **kwargs)
        return processed, replacements[0], {}

    def _video(self, decoded: DecodedVideo) -> _Output:
        frames = _tensor(decoded.frames).permute(0, 3, 1, 2)
        videos_kwargs = {
            **self._kwargs["videos_kwargs"],
            "input_data_format": "channels_first",
            "do_sample_frames": False,
            "video_metadata": [video_metadata(decoded.info, decoded.frame_indices)],
        }
        run = cast(_Run, self._processor._process_videos)  # pyright: ignore[reportPrivateUsage]
        if isinstance(self._processor, OmniModalProcessorMixin):
            kwargs = {**self._kwargs, "videos_kwargs": videos_kwargs, "load_audio_from_video": False}
            processed, replacements = run([frames], **kwargs)
        else:
            processed, replacements = run([frames], **videos_kwargs)
        sampling = {
            "frames_indices": decoded.frame_indices,
            "fps": [decoded.info.frames_per_second],
            "total_num_frames": [decoded.info.num_frames],
        }
        return processed, replacements[0], sampling

    def _audio(self, decoded: DecodedAudio) -> _Output:
        extractor = getattr(self._processor, "feature_extractor", None)
        window = cast(int, getattr(extractor, "n_fft", 0))
        if len(decoded.samples) <= window // 2:
            # The spectrogram's padding mirrors half a window.
            raise MediaInvalid(
                f"too short: {len(decoded.samples)} samples at {decoded.sample_rate_hz} Hz, "
                f"the model needs more than {window // 2}"
            )
        kwargs = {**self._kwargs["audio_kwargs"], "sampling_rate": decoded.sample_rate_hz}
        run = cast(_Run, self._processor._process_audio)  # pyright: ignore[reportPrivateUsage]
        processed, replacements = run([decoded.samples], **kwargs)
        return processed, replacements[0], {}

    def _count(self, modality: Modality, replacement: str) -> int:
        """Placeholders; videos of some families have none of their own: they are written as images."""
        token = getattr(self._processor, f"{modality}_token", None)
        return replacement.count(token) if token else 0


_Output = tuple[Mapping[str, object], str, Mapping[str, object]]
"""What the processor made, the text that takes the placeholder's place, and how frames were sampled."""
_Run = Callable[..., tuple[BatchFeature, list[str]]]


def _merged_kwargs(processor: ProcessorMixin) -> Kwargs:
    """The keyword arguments that calling the processor would use: class-level ones override saved ones."""
    init_kwargs = getattr(processor.tokenizer, "init_kwargs", {})
    with quiet():
        merge = processor._merge_kwargs  # pyright: ignore[reportPrivateUsage]
        merged = merge(tokenizer_init_kwargs=init_kwargs, return_tensors="pt")
    return cast(Kwargs, merged)


def _modalities(processor: ProcessorMixin) -> frozenset[Modality]:
    parts: dict[Modality, tuple[str, ...]] = {
        "image": ("image_processor",),
        "audio": ("audio_processor", "feature_extractor"),
        "video": ("video_processor",),
    }
    return frozenset(
        m for m, names in parts.items() if any(getattr(processor, n, None) is not None for n in names)
    )


def _policy(processor: ProcessorMixin, path: Path) -> DecodePolicy:
    audio = getattr(processor, "audio_processor", None) or getattr(processor, "feature_extractor", None)
    video = cast("VideoProcessor | None", getattr(processor, "video_processor", None))
    sampler = ModelFrameSampler(video, getattr(video, "temporal_patch_size", None) or 1)
    digest = hashlib.sha256(f"{_SCHEMA}\0{transformers.__version__}\0{type(processor).__name__}".encode())
    for file in sorted(path.glob("*processor_config.json")):
        digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return DecodePolicy(
        audio_sample_rate_hz=getattr(audio, "sampling_rate", _DEFAULT_SAMPLE_RATE_HZ),
        sample_frames=sampler,
        options_digest=digest.hexdigest(),
    )


def _tensor(array: NDArray[_Element]) -> torch.Tensor:
    """Without a copy where numpy allows writing, which torch insists on."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _encoder_inputs(processed: Mapping[str, object], as_images: bool) -> dict[str, torch.Tensor]:
    inputs = {
        name: value
        for name, value in processed.items()
        if name not in _COUNTS and isinstance(value, torch.Tensor)
    }
    if as_images:  # [videos, frames, channels, height, width]
        inputs["pixel_values"] = inputs.pop("pixel_values_videos").flatten(0, 1)
    return inputs
