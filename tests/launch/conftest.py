"""Children without models, and signal handlers that a test may change."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from model.make_tiny import make_tiny

from tests.standing_in import stand_in_for_python


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From now on children run `child_program.py`. Returns what is started in place of Python."""
    return stand_in_for_python("tests.launch.child_program", tmp_path, monkeypatch)


@pytest.fixture
def own_signals() -> Iterator[None]:
    """SIGINT and SIGTERM do nothing unless the test installs something; what was there comes back."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def tiny_omni(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built-in model with random weights."""
    directory = tmp_path_factory.mktemp("tiny") / "tiny-omni"
    make_tiny(directory)
    return directory


@pytest.fixture
def own_threads() -> Iterator[None]:
    """What a test sets with `torch.set_num_threads` is taken back."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
