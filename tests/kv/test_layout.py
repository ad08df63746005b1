from __future__ import annotations

import pytest
import torch

from triptych.errors import ConfigError
from triptych.kv.layout import KvLayout, KvShape

SHAPE = KvShape(num_layers=3, num_kv_heads=2, key_dim=8, value_dim=4, dtype=torch.bfloat16)
TOKEN_BYTES = 3 * 2 * (8 + 4) * 2


def test_budget_buys_whole_pages() -> None:
    layout = KvLayout.within(10 * 16 * TOKEN_BYTES + 1, 16, SHAPE)
    assert (layout.num_pages, layout.page_bytes, layout.num_tokens) == (10, 16 * TOKEN_BYTES, 160)


def test_budget_below_one_page_is_refused() -> None:
    with pytest.raises(ConfigError, match="holds no page"):
        KvLayout.within(16 * TOKEN_BYTES - 1, 16, SHAPE)


def test_pages_round_up() -> None:
    layout = KvLayout(page_tokens=16, num_pages=4, shape=SHAPE)
    assert [layout.pages_for(n) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
