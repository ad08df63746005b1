"""The front of a language worker and the process that it starts."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.api.serving import new_metrics
from tests.stages.generating import answered, chat_request
from triptych.config import ModelConfig, WorkerConfig
from triptych.embeddings.handle import HandleSigner
from triptych.errors import CheckpointError, StartupError
from triptych.launch.language import build_language_stage, start_engine
from triptych.launch.processes import Child
from triptych.telemetry import Metrics

SECRET = b"0123456789abcdef"
pytestmark = pytest.mark.usefixtures("stand_in", "own_threads")


def config(model: Path, name: str = "tiny") -> WorkerConfig:
    return WorkerConfig(role="prefill-decode", model=ModelConfig(path=model, served_name=name), secret=SECRET)


async def one_reply(wanted: WorkerConfig, metrics: Metrics) -> tuple[str, Child]:
    async with AsyncExitStack() as stack:
        engine, client = start_engine(wanted, metrics, stack)
        stage = await build_language_stage(wanted, client, HandleSigner(SECRET), metrics)
        assert engine.alive
        answer = await answered(stage.chat(chat_request("hi")))
    assert answer.finished.finish_reason == "length"
    return answer.text, engine


def test_the_engine_answers_and_ends_with_its_front(tiny_omni: Path) -> None:
    text, engine = asyncio.run(one_reply(config(tiny_omni), new_metrics()))
    assert text == "A"
    assert not engine.alive


def test_the_engines_load_is_in_the_metrics(tiny_omni: Path) -> None:
    metrics = new_metrics()
    asyncio.run(one_reply(config(tiny_omni), metrics))
    value = metrics.registry.get_sample_value
    assert value("vllm:num_requests_running") == 2
    assert value("vllm:num_requests_waiting") == 3
    assert value("vllm:kv_cache_usage_perc") == 0.5
    assert value("triptych_output_tokens_total") == 1
    assert value("vllm:cache_config_info", {"block_size": "16", "num_gpu_blocks": "9"}) == 1


def test_an_engine_that_dies_while_loading_is_a_startup_error(tiny_omni: Path) -> None:
    with pytest.raises(StartupError, match="engine process could not start"):
        asyncio.run(one_reply(config(tiny_omni, "broken"), new_metrics()))


def test_a_directory_without_a_tokenizer_is_refused_and_the_engine_ended(tmp_path: Path) -> None:
    wanted = replace(config(tmp_path, "mute"))

    async def main() -> Child:
        async with AsyncExitStack() as stack:
            engine, client = start_engine(wanted, new_metrics(), stack)
            with pytest.raises(CheckpointError, match=str(tmp_path)):
                await build_language_stage(wanted, client, HandleSigner(SECRET), new_metrics())
        return engine

    assert not asyncio.run(main()).alive
