"""Which modules of a multimodal model are its encoder half, and which its language half.

model ─┬─ base_model ─┬─ vision tower, projector, audio tower …   encoder
       │              ├─ decoder (`get_decoder()`)                language
       │              └─ direct parameters (e.g. a newline row)   both
       └─ output embeddings (`lm_head`)                           language
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import nn
from transformers import PreTrainedModel

Part = Literal["encoder", "language"]


@dataclass(frozen=True, slots=True)
class Split:
    """Dotted paths of modules with parameters, and names of the parameters that both halves keep."""

    encoder: tuple[str, ...]
    language: tuple[str, ...]
    shared: tuple[str, ...]

    def keeps(self, part: Part, name: str) -> bool:
        """Whether the parameter `name` belongs to `part`."""
        mine = self.encoder if part == "encoder" else self.language
        return name in self.shared or any(name.startswith(path + ".") for path in mine)

    def dropped(self, part: Part) -> tuple[str, ...]:
        return self.language if part == "encoder" else self.encoder


def split(model: PreTrainedModel) -> Split:
    """Tell the halves of `model` (which may be on the meta device) apart; a half that it lacks is empty."""
    base = model.base_model
    prefix = "" if base is model else f"{model.base_model_prefix}."
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    children = {prefix + name: child for name, child in base.named_children()}
    if base is not model:
        children |= {name: child for name, child in model.named_children() if child is not base}
    weighty = {path: child for path, child in children.items() if any(True for _ in child.parameters())}
    language = tuple(path for path, child in weighty.items() if child is decoder or child is head)
    is_text_model = decoder is base or decoder is model
    return Split(
        encoder=() if is_text_model else tuple(path for path in weighty if path not in language),
        language=language,
        shared=tuple(prefix + name for name, _ in base.named_parameters(recurse=False)),
    )


def drop(model: nn.Module, paths: tuple[str, ...]) -> None:
    """Set the modules at `paths` to None."""
    for path in paths:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, None)
