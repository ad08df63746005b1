"""A module that is run in place of `python -m triptych`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def stand_in_for_python(module: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For as long as `monkeypatch` holds, what is started with `sys.executable` is `module`.

    It gets the whole command line. Returns the script that stands for Python.
    """
    script = directory / "python"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(sys, "executable", str(script))
    return script
