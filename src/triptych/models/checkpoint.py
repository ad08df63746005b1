"""Loads one half of a multimodal checkpoint, reading only the weights of that half."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from triptych.errors import CheckpointError, UnsupportedModel
from triptych.models.architecture import load_config, model_class
from triptych.models.parts import Part, Split, drop, split
from triptych.models.quiet import quiet
from triptych.models.weight_files import LazyTensor, WeightFiles, find_weights, tensor_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What loading one half took."""

    part: Part
    shards_opened: int
    shards_total: int
    num_parameters: int
    bytes_read: int
    """Of tensor data, in the dtype that they are held in."""
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.part}: {self.num_parameters / 1e6:.1f} M parameters from {self.shards_opened} of "
            f"{self.shards_total} shards in {self.seconds:.1f} s"
        )


def load_part(
    path: Path,
    part: Part,
    dtype: torch.dtype,
    device: str,
    attn_implementation: str | None = None,
) -> tuple[PreTrainedModel, LoadReport]:
    """Load the encoder or the language half of the checkpoint in `path`; the other half's modules are None.

    `attn_implementation` is a name that Transformers knows or that was registered with it.

    Raises:
        CheckpointError: files missing or damaged, or a parameter of this half that no file accounts for.
        UnsupportedModel: an architecture that cannot be served.
    """
    started = time.perf_counter()
    with quiet():
        config = load_config(path)
        cls = model_class(config)
        skeleton = _skeleton(cls, config)
    files = find_weights(path)
    halves = split(skeleton)
    if not halves.encoder or not halves.language:
        raise UnsupportedModel(f"{cls.__name__} is not an encoder and a language model")
    wanted = _wanted_keys(skeleton, halves, part, files)
    build = _part_class(cls, halves.dropped(part), part)
    model, missing, num_bytes = _load(build, config, files, wanted, dtype, device, attn_implementation)
    if missing:
        _log.warning("%s: cannot tell the %s's weights by name (%s); reading all", path, part, min(missing))
        wanted = list(files.file_of)
        model, missing, num_bytes = _load(build, config, files, wanted, dtype, device, attn_implementation)
    if missing:
        raise CheckpointError(f"{path}: no file holds {', '.join(sorted(missing)[:5])}")
    report = LoadReport(
        part=part,
        shards_opened=len({files.file_of[key] for key in wanted}),
        shards_total=len(files.names),
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        bytes_read=num_bytes,
        seconds=time.perf_counter() - started,
    )
    return model, report


def _skeleton(cls: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        return cls(config)


def _wanted_keys(skeleton: PreTrainedModel, halves: Split, part: Part, files: WeightFiles) -> list[str]:
    conversions = get_model_conversion_mapping(skeleton)
    renamings = [step for step in conversions if isinstance(step, WeightRenaming)]
    converters = [step for step in conversions if isinstance(step, WeightConverter)]
    expected = skeleton.state_dict()

    def target(key: str) -> str:
        return rename_source_key(key, renamings, converters, skeleton.base_model_prefix, expected)[0]

    return [key for key in sorted(files.file_of) if halves.keeps(part, target(key))]


def _part_class(cls: type[PreTrainedModel], dropped: tuple[str, ...], part: Part) -> type[PreTrainedModel]:
    """A subclass whose instances lack the other half from the start: it is neither read nor missed."""

    def build(self: PreTrainedModel, config: PreTrainedConfig) -> None:
        cls.__init__(self, config)
        drop(self, dropped)

    # Module and name stay the original's: Transformers looks weight renamings up by them.
    members: dict[str, object] = {
        "__init__": build,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
    }
    if part == "encoder":
        members["_tied_weights_keys"] = {}
    return cast(type[PreTrainedModel], type(cls.__name__, (cls,), members))


def _load(
    cls: type[PreTrainedModel],
    config: PreTrainedConfig,
    files: WeightFiles,
    keys: list[str],
    dtype: torch.dtype,
    device: str,
    attn_implementation: str | None,
) -> tuple[PreTrainedModel, set[str], int]:
    with ExitStack() as stack:
        stack.enter_context(quiet())
        tensors = files.open(keys, stack)
        num_bytes = tensor_bytes(tensors, dtype)
        model, missing = _from_tensors(cls, config, tensors, dtype, attn_implementation)
        nn.Module.to(model.eval().requires_grad_(False), device)
        return model, missing, num_bytes


def _from_tensors(
    cls: type[PreTrainedModel],
    config: PreTrainedConfig,
    tensors: Mapping[str, LazyTensor],
    dtype: torch.dtype,
    attn_implementation: str | None,
) -> tuple[PreTrainedModel, set[str]]:
    try:
        loaded = cls.from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            dtype=dtype,
            output_loading_info=True,
            attn_implementation=attn_implementation,
        )
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot load {cls.__name__}: {error}") from error
    model, info = cast("tuple[PreTrainedModel, dict[str, set[str]]]", loaded)
    return model, set(info["missing_keys"])
