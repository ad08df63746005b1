"""On a process's PYTHONPATH, this makes every way of opening media raise; who needs none is not hurt."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

import av
import soxr
from PIL import Image

ALLOWED = ("triptych.media", "triptych.media.types")


class _NoMediaCode(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith("triptych.media") and fullname not in ALLOWED:
            raise ImportError(f"{fullname} opens media: a language worker has no business with it")
        return None


def _refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("a language worker opened media")


for module, name in ((av, "open"), (soxr, "resample"), (soxr, "ResampleStream"), (Image, "open")):
    setattr(module, name, _refuse)
sys.meta_path.insert(0, _NoMediaCode())
