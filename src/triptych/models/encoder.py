"""The encoder half of a Transformers model: processed items of any modality → embeddings."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
import transformers
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from triptych.errors import InternalError, MediaInvalid, UnsupportedModel
from triptych.messages import MODALITIES, Modality
from triptych.models import fast_blocks, patches, segments
from triptych.models.encoder_batch import Rows, merge_inputs, split_by_audio_padding, split_rows
from triptych.models.interface import MediaProcessor, ProcessedItem
from triptych.models.probe import probe_item
from triptych.models.quiet import quiet

_Features = Callable[..., ModelOutput]


class HFEncoder:
    """An `EncoderModel` on a model of which `load_part` loaded the encoder. Thread-safe.

    Attention and patch embedding are replaced by equal, faster forms; outputs stay within float32 rounding.

    Raises:
        UnsupportedModel: the processor takes a modality for which the model has no feature method, or the
            model yields another number of rows than the processor reserves placeholders for.
    """

    def __init__(self, model: PreTrainedModel, processor: MediaProcessor) -> None:
        self._device = model.device
        self._dtype = model.dtype
        self._namespace = _namespace(model)
        fast_blocks.install(model)
        segments.install(model)
        patches.install(model)
        self._features: dict[Modality, _Features] = {
            m: _feature_method(model, m) for m in MODALITIES if m in processor.modalities
        }
        self._chunk_length = _audio_chunk_length(model)
        with quiet():
            self._widths: dict[Modality, int] = {m: self._measure_width(processor, m) for m in self._features}

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def widths(self) -> Mapping[Modality, int]:
        return self._widths

    def encode(self, items: Sequence[ProcessedItem]) -> list[torch.Tensor]:
        rows: dict[int, torch.Tensor] = {}
        for modality in self._features:
            chosen = [(index, item) for index, item in enumerate(items) if item.modality == modality]
            for group in split_by_audio_padding(chosen, self._chunk_length):
                outputs = self._encode_together(modality, [item for _, item in group])
                rows.update(zip((index for index, _ in group), outputs, strict=True))
        return [rows[index] for index in range(len(items))]

    @torch.inference_mode()
    def _encode_together(self, modality: Modality, items: Sequence[ProcessedItem]) -> list[torch.Tensor]:
        features = self._features[modality]
        taken = inspect.signature(features).parameters
        inputs = {
            name: tensor.to(self._device) for name, tensor in merge_inputs(items).items() if name in taken
        }
        try:
            output = features(**inputs, return_dict=True)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InternalError(f"the {modality} encoder failed: {error}") from error
        layers = [
            cast(Rows, output["pooler_output"]),
            *cast("list[Rows]", output.get("deepstack_features") or []),
        ]
        return split_rows(layers, [item.num_tokens for item in items], self._dtype)

    def _measure_width(self, processor: MediaProcessor, modality: Modality) -> int:
        try:
            item = probe_item(processor, modality)
            return self._encode_together(modality, [item])[0].shape[1]
        except (InternalError, MediaInvalid) as error:
            raise UnsupportedModel(f"cannot encode a small {modality}: {error}") from error


def _feature_method(model: PreTrainedModel, modality: Modality) -> _Features:
    """Some families have no method for videos: their frames go through the one for images."""
    names = [f"get_{modality}_features", *(["get_image_features"] if modality == "video" else [])]
    for name in names:
        method = getattr(model.base_model, name, None)
        if method is not None:
            return cast(_Features, method)
    raise UnsupportedModel(f"{type(model).__name__} has no {names[0]}")


def _audio_chunk_length(model: PreTrainedModel) -> int | None:
    """Mel frames that the audio tower convolves at once, where it works in chunks."""
    audio = getattr(model.config, "audio_config", None)
    half = getattr(audio, "n_window", None)
    return None if half is None else 2 * cast(int, half)


def _namespace(model: PreTrainedModel) -> str:
    """Digest of everything that decides an output beside its input: code, configuration, weights, dtype."""
    config = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    described = json.dumps(config, sort_keys=True, default=str)
    digest = hashlib.sha256(f"{transformers.__version__}\0{type(model).__name__}\0{described}".encode())
    for name, parameter in sorted(model.named_parameters()):
        digest.update(f"\0{name}\0{parameter.dtype}\0{tuple(parameter.shape)}\0".encode())
        digest.update(parameter.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
