"""From a checkpoint directory to its configuration and Transformers class."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import transformers
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from triptych.errors import CheckpointError, UnsupportedModel

_WRAPPERS = {
    "qwen2_5_omni": "Qwen2_5OmniThinkerForConditionalGeneration",
    "qwen3_omni_moe": "Qwen3OmniMoeThinkerForConditionalGeneration",
}
"""Checkpoints of speech models whose text half, the thinker, is what is served here."""


def load_config(path: Path) -> PreTrainedConfig:
    """The configuration of the model that is served; of a wrapper checkpoint, its thinker's.

    Raises:
        CheckpointError: no such directory, or no readable config.json in it.
        UnsupportedModel: a model type that Transformers does not know.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a directory")
    if not (path / "config.json").is_file():
        raise CheckpointError(f"{path} holds no config.json")
    try:
        config = cast(PreTrainedConfig, AutoConfig.from_pretrained(path, local_files_only=True))
    except ValueError as error:  # also JSON errors
        if "model type" in str(error) or "model_type" in str(error):
            raise UnsupportedModel(
                f"{path}: Transformers {transformers.__version__} knows no such model"
            ) from error
        raise CheckpointError(f"cannot read {path / 'config.json'}: {error}") from error
    except OSError as error:
        raise CheckpointError(f"cannot read {path / 'config.json'}: {error}") from error
    if config.model_type not in _WRAPPERS:
        return config
    thinker = cast(PreTrainedConfig, config.thinker_config)
    thinker.architectures = [_WRAPPERS[config.model_type]]
    return thinker


def model_class(config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that the configuration names.

    Raises:
        UnsupportedModel: no class named, not in Transformers, or it has no decoder to split at.
    """
    names = config.architectures or []
    if len(names) != 1:
        raise UnsupportedModel(f"the checkpoint names {names or 'no architecture'}; exactly one is needed")
    found = getattr(transformers, names[0], None)
    if not isinstance(found, type) or not issubclass(found, PreTrainedModel):
        raise UnsupportedModel(f"Transformers {transformers.__version__} has no architecture {names[0]}")
    return found
