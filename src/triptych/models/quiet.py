"""Silences Transformers while it loads: what matters of its progress and warnings is in our own reports."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Generator[None]:
    """No progress bars and nothing below errors; process-wide, so for start-up only."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()
