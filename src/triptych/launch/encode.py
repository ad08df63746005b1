"""Builds the encode stage of a worker."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

from triptych.config import WorkerConfig, available_cores
from triptych.embeddings.handle import HandleSigner
from triptych.embeddings.memory import MemoryStore
from triptych.encoder.runner import EncoderRunner
from triptych.launch.torch_setup import prepare_torch, torch_dtype
from triptych.media.fetch import Fetcher
from triptych.media.pool import DecodePool
from triptych.models.checkpoint import load_part
from triptych.models.encoder import HFEncoder
from triptych.models.processor import HFMediaProcessor
from triptych.stages.encode import EncodeParts, EncodeStage
from triptych.stages.prepare import Preparer
from triptych.telemetry import Metrics
from triptych.transport.shm import ShmProducer


async def build_encode_stage(
    config: WorkerConfig, signer: HandleSigner, metrics: Metrics, stack: AsyncExitStack
) -> EncodeStage:
    """Load the encoder half; `stack` closes what was built.

    Raises:
        StartupError: the checkpoint does not fit.
    """
    encoder, processor = await asyncio.to_thread(_load_encoder, config)
    runner = EncoderRunner(encoder, config.encoder)
    stack.callback(runner.close)
    producer = ShmProducer(config.transport, config.secret)
    stack.callback(producer.close)
    processing = ThreadPoolExecutor(max(1, available_cores() // 2), "process")
    stack.callback(processing.shutdown, cancel_futures=True)
    parts = EncodeParts(
        preparer=_preparer(config, stack),
        processor=processor,
        processing=processing,
        encoder=encoder,
        runner=runner,
        producer=producer,
        store=MemoryStore(config.encoder.cache_bytes),
    )
    peer = (config.server.host, config.server.port)
    return EncodeStage(parts, signer, config.transport, metrics, peer)


def _load_encoder(config: WorkerConfig) -> tuple[HFEncoder, HFMediaProcessor]:
    prepare_torch(config.model)
    model, _ = load_part(config.model.path, "encoder", torch_dtype(config.model), config.model.device)
    processor = HFMediaProcessor(config.model.path)
    return HFEncoder(model, processor), processor


def _preparer(config: WorkerConfig, stack: AsyncExitStack) -> Preparer:
    fetcher = Fetcher(config.media.fetch)
    stack.push_async_callback(fetcher.close)
    pool = DecodePool(config.media.decode.num_threads)
    stack.callback(pool.close)
    return Preparer(fetcher, pool, config.media)
