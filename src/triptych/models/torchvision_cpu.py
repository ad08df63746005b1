"""Lets torchvision's CUDA wheel, the only one on PyPI, import beside a CPU build of torch.

Its extension library cannot load there, so the operators that its Python code annotates at import time are
unknown to torch. Declaring their schemas first is enough: Transformers uses the pure-Python part only.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

_BOXES = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
"""Annotated without a guard in torchvision 0.28 `_meta_registrations.py`."""


def install() -> None:
    """Make `import torchvision` work. Call before importing torchvision or Transformers; can be called twice.

    Does nothing where torch has CUDA, torchvision is missing or imported already, or its library loads.
    """
    if torch.version.cuda is not None or "torchvision" in sys.modules:
        return
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None or _library_loads(Path(spec.origin).parent):
        return
    for name in _OPERATORS:
        if not hasattr(torch.ops.torchvision, name):
            torch.library.define(f"torchvision::{name}", _BOXES)


def _library_loads(package: Path) -> bool:
    for library in package.glob("_C*.so"):
        try:
            torch.ops.load_library(library)
        except OSError:
            return False
        return True
    return False
