"""Builds the stages that a role needs, and imports no others: a language worker never loads media code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from triptych.api.service import EncodeService
from triptych.config import WorkerConfig
from triptych.embeddings.handle import HandleSigner
from triptych.launch.processes import Child
from triptych.messages import ChatEvent, ChatRequest
from triptych.telemetry import Metrics


@dataclass(frozen=True, slots=True)
class WorkerStages:
    """What a role serves; `engine` is None for encode workers."""

    chat: Callable[[ChatRequest], AsyncGenerator[ChatEvent, None]] | None
    encode: EncodeService | None
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
    if config.role == "encode":
        from triptych.launch.encode import build_encode_stage

        encode = await build_encode_stage(config, signer, metrics, stack)
        return WorkerStages(chat=None, encode=encode, engine=None)
    from triptych.launch.language import build_language_stage, start_engine

    engine, client = start_engine(config, metrics, stack)
    if config.role == "prefill-decode":
        language = await build_language_stage(config, client, signer, metrics)
        return WorkerStages(chat=language.chat, encode=None, engine=engine)
    from triptych.launch.encode import build_encode_stage
    from triptych.stages.combined import CombinedStage

    encode = await build_encode_stage(config, signer, metrics, stack)
    language = await build_language_stage(config, client, signer, metrics)
    return WorkerStages(chat=CombinedStage(encode, language).chat, encode=encode, engine=engine)
