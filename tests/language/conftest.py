"""Imported before any test module: makes torchvision importable, which Transformers needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tiny_models import tiny_checkpoint


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tiny checkpoint of a family, made at its first use. Not to be written to."""
    directory = tmp_path_factory.mktemp("checkpoints")
    return lambda family: tiny_checkpoint(family, directory)
