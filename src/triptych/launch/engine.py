"""The engine process: the language half of a model behind a socket."""

from __future__ import annotations

import socket

import torch

from triptych.language.attention import PAGED_ATTENTION, register_paged_attention
from triptych.language.engine import Engine
from triptych.language.process import serve_engine
from triptych.launch.engine_spec import EngineSpec
from triptych.launch.torch_setup import prepare_torch, torch_dtype
from triptych.models.checkpoint import load_part
from triptych.models.eos import eos_token_ids
from triptych.models.language import HFLanguageModel
from triptych.transport.shm import ShmConsumer


def run_engine(spec: EngineSpec, sock: socket.socket) -> None:
    """Load the language model and step until the front closes `sock`."""
    prepare_torch(spec.model)
    register_paged_attention()
    device = torch.device(spec.model.device)
    loaded, report = load_part(
        spec.model.path,
        "language",
        torch_dtype(spec.model),
        spec.model.device,
        attn_implementation=PAGED_ATTENTION,
    )
    consumer = ShmConsumer(spec.transport, spec.secret)
    engine = Engine(
        HFLanguageModel(loaded, eos_token_ids(spec.model.path, loaded.config)),
        spec.language,
        consumer,
        device,
    )
    try:
        serve_engine(engine, sock, load_report=str(report))
    finally:
        consumer.close()
