"""Transformers is silent inside, and as it was outside."""

from __future__ import annotations

import logging

import pytest
from transformers.utils import logging as transformers_logging

from triptych.models.quiet import quiet


def test_verbosity_and_progress_bars_come_back() -> None:
    before = _state()
    with quiet():
        assert _state() == (logging.ERROR, False)
    assert _state() == before


def test_they_come_back_after_an_error() -> None:
    before = _state()
    with pytest.raises(ValueError, match="inside"):
        _fail_inside()
    assert _state() == before


def _fail_inside() -> None:
    with quiet():
        raise ValueError("inside")


def _state() -> tuple[int, bool]:
    return transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
