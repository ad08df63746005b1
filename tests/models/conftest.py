"""Torchvision must be importable before any test module imports Transformers."""

from __future__ import annotations

from triptych.models import torchvision_cpu

torchvision_cpu.install()
