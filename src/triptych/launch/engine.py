"""The engine process: the language half of a model behind a socket."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, field

import torch

from triptych.config import LanguageConfig, ModelConfig, TransportConfig
from triptych.language.attention import PAGED_ATTENTION
from triptych.language.engine import Engine
from triptych.language.process import serve_engine
from triptych.models import torchvision_cpu
from triptych.models.checkpoint import load_part
from triptych.models.language import HFLanguageModel
from triptych.transport.shm import ShmConsumer

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine process is told."""

    model: ModelConfig
    language: LanguageConfig
    transport: TransportConfig
    secret: bytes = field(repr=False)


def run_engine(spec: EngineSpec, sock: socket.socket) -> None:
    """Load the language model and step until the front closes `sock`."""
    torchvision_cpu.install()
    torch.set_num_threads(spec.model.num_threads)
    device = torch.device(spec.model.device)
    dtype = torch_dtype(spec.model.dtype)
    loaded, report = load_part(
        spec.model.path, "language", dtype, device, attn_implementation=PAGED_ATTENTION
    )
    consumer = ShmConsumer(spec.transport, spec.secret)
    engine = Engine(HFLanguageModel(loaded), spec.language, consumer, device)
    try:
        serve_engine(engine, sock, load_report=str(report))
    finally:
        consumer.close()


def torch_dtype(name: str) -> torch.dtype:
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
