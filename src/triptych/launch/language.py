"""Builds the language stage of a worker and starts its engine process. Opens no media."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack

from triptych.config import WorkerConfig
from triptych.embeddings.handle import HandleSigner
from triptych.errors import StartupError, WorkerUnavailable
from triptych.language.client import EngineClient
from triptych.launch.engine_spec import EngineSpec
from triptych.launch.processes import Child, spawn
from triptych.launch.torch_setup import prepare_torch
from triptych.messages import StepOutput, TokenEvent
from triptych.models.chat import HFChatTokenizer
from triptych.stages.prefill_decode import PrefillDecodeStage
from triptych.telemetry import Metrics

_ENGINE_START_SECONDS = 600.0
_ENGINE_STOP_SECONDS = 5.0


def start_engine(config: WorkerConfig, metrics: Metrics, stack: AsyncExitStack) -> tuple[Child, EngineClient]:
    """The engine loads its model in its own process while this one loads the rest."""
    spec = EngineSpec(config.model, config.language, config.transport, config.secret)
    ours, theirs = socket.socketpair()
    engine = spawn("engine", "engine", spec, theirs)
    stack.callback(engine.stop, _ENGINE_STOP_SECONDS)

    def on_step(step: StepOutput) -> None:
        num_tokens = sum(isinstance(event, TokenEvent) for event in step.events)
        metrics.engine_step(num_tokens, step.num_running, step.num_waiting, step.kv_usage)

    client = EngineClient(ours, on_step=on_step)
    stack.callback(client.close)
    return engine, client


async def build_language_stage(
    config: WorkerConfig, client: EngineClient, signer: HandleSigner, metrics: Metrics
) -> PrefillDecodeStage:
    """Load tokenizer and template, then wait for the engine.

    Raises:
        StartupError: the checkpoint does not fit, or the engine process could not start.
    """
    await asyncio.to_thread(prepare_torch, config.model)
    tokenizer = await asyncio.to_thread(HFChatTokenizer, config.model.path)
    try:
        ready = await client.ready(_ENGINE_START_SECONDS)
    except WorkerUnavailable as error:
        raise StartupError(f"the engine process could not start: {error.message}") from error
    metrics.kv_layout(ready.kv_page_tokens, ready.num_kv_pages)
    return PrefillDecodeStage(tokenizer, client, signer, metrics, ready.max_context_tokens)
