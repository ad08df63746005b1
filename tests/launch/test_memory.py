from __future__ import annotations

import gc

from triptych.launch.memory import settle_memory


def test_what_is_loaded_is_not_looked_at_again() -> None:
    try:
        settle_memory()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
