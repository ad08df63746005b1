"""The engine process: the language half of a model behind a socket."""

from __future__ import annotations

import socket

import torch

from triptych.errors import StartupError
from triptych.language.attention import PAGED_ATTENTION, register_paged_attention
from triptych.language.engine import Engine
from triptych.language.process import report_startup_failure, serve_engine
from triptych.launch.engine_spec import EngineSpec
from triptych.launch.memory import settle_memory
from triptych.launch.torch_setup import prepare_torch, torch_dtype
from triptych.models.checkpoint import LoadReport
from triptych.models.language import HFLanguageModel
from triptych.transport.shm import ShmConsumer


def run_engine(spec: EngineSpec, sock: socket.socket) -> None:
    """Load the language model and step until the front closes `sock`, which is told if loading fails."""
    try:
        engine, report = _load(spec)
    except StartupError as error:
        report_startup_failure(sock, error)
        return
    settle_memory()
    serve_engine(engine, sock, load_report=str(report))


def _load(spec: EngineSpec) -> tuple[Engine, LoadReport]:
    prepare_torch(spec.model)
    register_paged_attention()
    model, report = HFLanguageModel.load(
        spec.model.path, torch_dtype(spec.model), spec.model.device, PAGED_ATTENTION
    )
    consumer = ShmConsumer(spec.transport, spec.secret)
    return Engine(model, spec.language, consumer, torch.device(spec.model.device)), report
