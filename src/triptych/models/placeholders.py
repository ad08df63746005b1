"""A processor's media tokens, and how many of them an item takes: from metadata alone, without pixels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import cast

import numpy as np
from transformers import PreTrainedConfig
from transformers.processing_utils import OmniModalProcessorMixin, ProcessorMixin
from transformers.video_utils import VideoMetadata

from triptych.errors import InvalidHandle, UnsupportedModel
from triptych.messages import MODALITIES, MediaItem, Metadata, MetadataArray, Modality

_SHAPES: Mapping[str, tuple[int, ...]] = {
    "image_grid_thw": (1, 3),
    "video_grid_thw": (1, 3),
    "num_patches": (1,),
    "num_frames": (1,),
    "num_audio_tokens": (1,),
    "audio_feature_lengths": (1,),
    "frames_indices": (-1,),
    "fps": (1,),
    "second_per_grid_ts": (1,),
    "video_second_per_grid": (1,),
}
"""Shapes that Transformers expects, see `models/metadata.py`; routers may have flattened or nested them."""
_COUNTS = ("image_grid_thw", "video_grid_thw", "num_patches", "num_frames", "num_audio_tokens")
_MAX_COUNT = 1 << 26
"""Of patches, frames or tokens in one item: far above any model, far below what exhausts memory."""
_SUB_PROCESSORS: Mapping[Modality, tuple[str, ...]] = {
    "image": ("image_processor",),
    "audio": ("feature_extractor", "audio_processor"),
    "video": ("video_processor",),
}
_MEDIA_TOKENS = (
    *(f"{modality}_token" for modality in MODALITIES),
    *(f"{prefix}_{end}_token" for prefix in ("vision", "audio") for end in ("bos", "eos", "start", "end")),
    *("start_image_token", "end_image_token", "boi_token", "eoi_token", "boa_token", "eoa_token"),
    *("fake_image_token", "global_image_token"),
)
"""Attributes of processors that name tokens with a meaning for media."""
_MEDIA_TOKEN_IDS = re.compile(r"(image|audio|video|vision|boi|eoi|boa|eoa)\w*_token_(id|index)")
"""Fields of configurations that do."""

_BASES = (ProcessorMixin, OmniModalProcessorMixin)

Arrays = Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]]


@dataclass(frozen=True, slots=True)
class Expansion:
    """What stands in the prompt for one item: `text` holds `row_token` `num_tokens` times."""

    text: str
    row_token: str
    num_tokens: int


class Placeholders:
    """The media tokens of one processor. Thread-safe.

    Raises:
        UnsupportedModel: a processor that cannot write placeholders from metadata.
    """

    def __init__(self, processor: ProcessorMixin, config: PreTrainedConfig) -> None:
        self._processor = processor
        self._markers: dict[Modality, str] = {
            modality: token
            for modality in MODALITIES
            if isinstance(token := getattr(processor, f"{modality}_token", None), str)
            and any(getattr(processor, name, None) is not None for name in _SUB_PROCESSORS[modality])
        }
        for modality in self._markers:
            _check_expands(processor, modality)
        self._reserved = tuple(sorted(_media_tokens(processor, config)))

    @property
    def markers(self) -> Mapping[Modality, str]:
        """The token that chat templates write for one item of a modality; only modalities that are taken."""
        return self._markers

    @property
    def reserved(self) -> tuple[str, ...]:
        """Tokens that text of users must not contain: they would be taken for media."""
        return self._reserved

    def expand(self, item: MediaItem, metadata: Metadata) -> Expansion:
        """What takes the place of the marker of `item`, as the processor itself would write it.

        Raises:
            InvalidHandle: metadata lacks what this model needs, or has a wrong shape.
        """
        inputs = _processed(item, metadata_arrays(item.name, metadata))
        replace = cast(Callable[..., str], getattr(self._processor, f"replace_{item.modality}_token"))
        try:
            text = replace(inputs, 0, load_audio_from_video=False)
        except KeyError as error:
            raise InvalidHandle(f"{item.name}: the metadata lacks {error.args[0]}") from error
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise InvalidHandle(f"{item.name}: the metadata does not fit the model: {error}") from error
        token = self._markers[item.modality]
        if token not in text:  # videos of some families are written as a sequence of images
            token = self._markers.get("image", token)
        if not (num_tokens := text.count(token)):
            raise InvalidHandle(f"{item.name}: the metadata leaves no room in the prompt")
        return Expansion(text=text, row_token=token, num_tokens=num_tokens)


def _check_expands(processor: ProcessorMixin, modality: Modality) -> None:
    name = f"replace_{modality}_token"
    if any(getattr(type(processor), name) is getattr(base, name) for base in _BASES):
        raise UnsupportedModel(
            f"{type(processor).__name__} cannot tell how many tokens {modality} items take"
        )


def _media_tokens(processor: ProcessorMixin, config: PreTrainedConfig) -> set[str]:
    named = {getattr(processor, name, None) for name in _MEDIA_TOKENS}
    values = cast("dict[str, object]", config.to_dict())
    ids = [id for name, id in values.items() if _MEDIA_TOKEN_IDS.fullmatch(name) and isinstance(id, int)]
    convert = cast("Callable[[list[int]], list[str | None]]", processor.tokenizer.convert_ids_to_tokens)
    return {token for token in (*named, *convert(ids)) if isinstance(token, str) and token}


def metadata_arrays(item_name: str, metadata: Metadata) -> Arrays:
    """Metadata as Transformers passes it around: one item, so the first axis has length 1.

    Raises:
        InvalidHandle: an array has a wrong number of values, or a count is not a positive whole number.
    """
    return {array.name: _array(item_name, array) for array in metadata}


def _array(item_name: str, array: MetadataArray) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    shape = _SHAPES.get(array.name, array.shape)
    if shape != (-1,) and math.prod(shape) != len(array.values):
        raise InvalidHandle(
            f"{item_name}: {array.name} has {len(array.values)} values, not {math.prod(shape)}"
        )
    if not all(math.isfinite(value) for value in array.values):
        raise InvalidHandle(f"{item_name}: {array.name} holds values that are not finite")
    if array.name in _COUNTS and not _countable(array.values):
        raise InvalidHandle(f"{item_name}: {array.name} is not a positive count: {list(array.values)}")
    return np.asarray(array.values).reshape(shape)


def _countable(values: tuple[int | float, ...]) -> bool:
    return all(isinstance(value, int) and value > 0 for value in values) and math.prod(values) <= _MAX_COUNT


def _processed(item: MediaItem, arrays: Arrays) -> dict[str, object]:
    """What the model's processor would have computed of the item, as far as placeholders depend on it."""
    inputs: dict[str, object] = dict(arrays)
    if "num_frames" in arrays:  # only the number of frames is read
        inputs["pixel_values_videos"] = [SimpleNamespace(shape=(int(arrays["num_frames"][0]),))]
    if "frames_indices" in arrays:
        if "fps" not in arrays or arrays["fps"][0] <= 0:
            raise InvalidHandle(f"{item.name}: the metadata has frames_indices, but no fps")
        indices = cast("list[int]", arrays["frames_indices"].tolist())
        fps = float(arrays["fps"][0])
        # Processors pad `frames_indices` in place, so each call makes a new one.
        inputs["video_metadata"] = [
            VideoMetadata(total_num_frames=len(indices), fps=fps, frames_indices=indices)
        ]
    return inputs
