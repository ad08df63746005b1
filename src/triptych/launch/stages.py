"""Builds the stages of a worker from its config."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass

import torch

from triptych.config import WorkerConfig
from triptych.embeddings.handle import HandleSigner
from triptych.embeddings.memory import MemoryStore
from triptych.encoder.runner import EncoderRunner
from triptych.errors import TriptychError, WorkerUnavailable
from triptych.language.process import EngineClient
from triptych.launch.engine import EngineSpec, torch_dtype
from triptych.launch.processes import Child, spawn
from triptych.media.fetch import Fetcher
from triptych.media.pool import DecodePool
from triptych.messages import ChatEvent, ChatRequest, StepOutput, TokenEvent
from triptych.models import torchvision_cpu
from triptych.models.chat import HFChatTokenizer
from triptych.models.checkpoint import load_part
from triptych.models.encoder import HFEncoder
from triptych.models.interface import MediaProcessor
from triptych.models.processor import HFMediaProcessor
from triptych.stages.combined import CombinedStage
from triptych.stages.encode import EncodeParts, EncodeStage
from triptych.stages.prefill_decode import PrefillDecodeStage
from triptych.stages.prepare import Preparer
from triptych.telemetry import Metrics
from triptych.transport.shm import ShmProducer

_ENGINE_START_SECONDS = 600.0
_ENGINE_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerStages:
    """What a role serves; `engine` is None for encode workers."""

    chat: Callable[[ChatRequest], AsyncGenerator[ChatEvent, None]] | None
    encode: EncodeStage | None
    engine: Child | None

    @property
    def alive(self) -> bool:
        return self.engine is None or self.engine.alive

    async def until_dead(self) -> None:
        """Return when the engine process has died; an encode worker has none, and waits for ever."""
        if self.engine is None:
            await asyncio.Event().wait()
        else:
            await asyncio.to_thread(self.engine.process.wait)


async def build_stages(config: WorkerConfig, metrics: Metrics, stack: AsyncExitStack) -> WorkerStages:
    """Load what the role needs; `stack` closes it again.

    Raises:
        StartupError: the checkpoint does not fit, or the engine process could not start.
    """
    signer = HandleSigner(config.secret)
    engine: Child | None = None
    client: EngineClient | None = None
    if config.role != "encode":
        engine, client = _start_engine(config, metrics, stack)
    await asyncio.to_thread(_prepare_process, config.model.num_threads)
    encode = None if config.role == "prefill-decode" else await _encode_stage(config, signer, metrics, stack)
    if engine is None or client is None:
        return WorkerStages(chat=None, encode=encode, engine=None)
    language = await _language_stage(config, client, signer, metrics)
    chat = language.chat if encode is None else CombinedStage(encode, language).chat
    return WorkerStages(chat=chat, encode=encode, engine=engine)


def _prepare_process(num_threads: int) -> None:
    torchvision_cpu.install()
    torch.set_num_threads(num_threads)


def _start_engine(
    config: WorkerConfig, metrics: Metrics, stack: AsyncExitStack
) -> tuple[Child, EngineClient]:
    """The engine loads its model in its own process while this one loads the rest."""
    spec = EngineSpec(config.model, config.language, config.transport, config.secret)
    ours, theirs = socket.socketpair()
    engine = spawn("engine", "engine", spec, theirs)
    stack.callback(engine.stop, _ENGINE_STOP_SECONDS)

    def on_step(step: StepOutput) -> None:
        num_tokens = sum(isinstance(event, TokenEvent) for event in step.events)
        metrics.engine_step(num_tokens, step.num_running, step.num_waiting, step.kv_usage)

    client = EngineClient(ours, on_step=on_step)
    stack.push_async_callback(client.close)
    return engine, client


async def _language_stage(
    config: WorkerConfig, client: EngineClient, signer: HandleSigner, metrics: Metrics
) -> PrefillDecodeStage:
    tokenizer = await asyncio.to_thread(HFChatTokenizer, config.model.path)
    try:
        ready = await client.ready(_ENGINE_START_SECONDS)
    except WorkerUnavailable as error:
        raise TriptychError("the engine process could not start; its own message is above") from error
    metrics.kv_layout(ready.kv_page_tokens, ready.num_kv_pages)
    return PrefillDecodeStage(tokenizer, client, signer, metrics, ready.max_context_tokens)


async def _encode_stage(
    config: WorkerConfig, signer: HandleSigner, metrics: Metrics, stack: AsyncExitStack
) -> EncodeStage:
    encoder, processor = await asyncio.to_thread(_load_encoder, config)
    runner = EncoderRunner(encoder, config.encoder)
    stack.callback(runner.close)
    producer = ShmProducer(config.transport, config.secret)
    stack.callback(producer.close)
    processing = ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2), "process")
    stack.callback(processing.shutdown, cancel_futures=True)
    parts = EncodeParts(
        preparer=await _preparer(config, stack),
        processor=processor,
        processing=processing,
        encoder=encoder,
        runner=runner,
        producer=producer,
        store=MemoryStore(config.encoder.cache_bytes),
    )
    peer = (config.server.host, config.server.port)
    return EncodeStage(parts, signer, config.transport, metrics, peer)


def _load_encoder(config: WorkerConfig) -> tuple[HFEncoder, MediaProcessor]:
    device = torch.device(config.model.device)
    model, _ = load_part(config.model.path, "encoder", torch_dtype(config.model.dtype), device)
    processor = HFMediaProcessor(config.model.path)
    return HFEncoder(model, processor), processor


async def _preparer(config: WorkerConfig, stack: AsyncExitStack) -> Preparer:
    fetcher = Fetcher(config.media.fetch)
    stack.push_async_callback(fetcher.close)
    pool = DecodePool(config.media.decode.num_threads)
    stack.callback(pool.close)
    return Preparer(fetcher, pool, config.media)
