from __future__ import annotations

from pathlib import Path

import pytest
from model.make_tiny import make_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny omni model. Not to be written to."""
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny(directory)
    return directory
