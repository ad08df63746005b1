"""What an engine process is told. Apart from `engine.py`, so that a front need not import the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from triptych.config import LanguageConfig, ModelConfig, TransportConfig


@dataclass(frozen=True, slots=True)
class EngineSpec:
    model: ModelConfig
    language: LanguageConfig
    transport: TransportConfig
    secret: bytes = field(repr=False)
