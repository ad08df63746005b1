"""On a process's PYTHONPATH, this makes every way of opening media raise; who needs none is not hurt."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _NoMedia(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] in ("av", "soxr", "aiohttp") or fullname == "triptych.media.fetch":
            raise ImportError(f"{fullname} opens media: a language worker has no business with it")
        return None


def _refuse(*arguments: object, **options: object) -> None:
    raise AssertionError("a language worker opened an image")


sys.meta_path.insert(0, _NoMedia())
try:
    from PIL import Image
except ImportError:
    pass
else:
    Image.open = _refuse  # pyright: ignore[reportAttributeAccessIssue]
