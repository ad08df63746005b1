"""Which decoders can run on a paged KV cache of full, causal attention; the others are refused by name."""

from __future__ import annotations

import inspect

from transformers import PreTrainedConfig, PreTrainedModel

from triptych.errors import UnsupportedModel

FULL_ATTENTION = "full_attention"
_LOGIT_CHANGES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Applied by a model's forward behind its output embeddings, which is all that is called here."""
_NEUTRAL = (None, 0, 1)


def check_decoder(model: PreTrainedModel) -> None:
    """Raises:
    UnsupportedModel: the model computes something that paged, causal attention over all tokens is not.
    """
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise UnsupportedModel(f"{name}: encoder-decoder models are not served")
    if unsupported := sorted(set(layer_types(config)) - {FULL_ATTENTION}):
        raise UnsupportedModel(f"{name}: layers of type {', '.join(unsupported)} are not served")
    if "token_type_ids" in inspect.signature(model.forward).parameters:
        raise UnsupportedModel(f"{name}: attention in both directions within images is not served")
    for field in _LOGIT_CHANGES:
        if getattr(config, field, None) not in _NEUTRAL:
            raise UnsupportedModel(f"{name}: {field} is not served")


def layer_types(config: PreTrainedConfig) -> tuple[str, ...]:
    """The attention type of each layer; configurations without such a list have one type throughout."""
    declared: object = getattr(config, "layer_types", None)
    if isinstance(declared, list | tuple):
        return tuple(str(kind) for kind in declared)
    sliding = getattr(config, "sliding_window", None) is not None and getattr(
        config, "use_sliding_window", True
    )
    return ("sliding_attention" if sliding else FULL_ATTENTION,)
