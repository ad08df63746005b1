"""The import works in a fresh interpreter, twice, with Transformers' video processors behind it."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
from triptych.models import torchvision_cpu
torchvision_cpu.install()
torchvision_cpu.install()
import torchvision
torchvision_cpu.install()
from transformers import Qwen3VLVideoProcessor
Qwen3VLVideoProcessor()
print("imported")
"""


def test_torchvision_imports_after_install() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", _SCRIPT],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == "imported", done.stderr
