"""A probe of every modality passes the processor."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from tests.tiny_models import FAMILIES, MODALITIES, tiny_checkpoint
from triptych.messages import Modality
from triptych.models.probe import probe_item
from triptych.models.processor import HFMediaProcessor


@pytest.mark.parametrize("family", FAMILIES)
def test_every_modality_has_a_small_item(tmp_path: Path, family: str) -> None:
    processor = HFMediaProcessor(tiny_checkpoint(family, tmp_path))
    for modality in MODALITIES[family]:
        item = probe_item(processor, cast(Modality, modality))
        assert item.modality == modality
        assert 0 < item.num_tokens < 100
