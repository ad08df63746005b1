"""All stages behind one address: media in, text out, and no slot left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field

import pytest
import torch

from tests.media.make_image import solid_png
from tests.media.make_server import until
from tests.stages.encoding import SIDE, WIDTH, Encoding, encoding
from tests.stages.generating import ScriptedEngine, answered, chat_request, language_stage, reference
from tests.stages.preparing import GREEN, RED, images_of, inline, run
from triptych.errors import InvalidRequest, MediaInvalid, TriptychError, WorkerUnavailable
from triptych.messages import GenerateRequest, TensorRef, TokenEvent
from triptych.stages.combined import CombinedStage

RED_URL, GREEN_URL = inline(solid_png(RED)), inline(solid_png(GREEN))


def combined(part: Encoding, engine: ScriptedEngine) -> CombinedStage:
    return CombinedStage(part.stage, language_stage(engine))


def test_items_that_are_the_same_share_one_reference() -> None:
    async def test() -> None:
        async with encoding() as part:
            engine = ScriptedEngine()
            request = chat_request("a", *images_of(RED_URL, GREEN_URL, RED_URL))
            answer = await answered(combined(part, engine).chat(request))
            assert answer.text == "Hello"
            red, green, again = (item.ref for item in engine.requests[0].items)
            assert red == again
            assert red.key != green.key
            assert [item.name for item in engine.requests[0].items] == ["image 1", "image 2", "image 3"]
            assert part.processor.num_calls == 2

    run(test)


def test_the_engine_can_read_every_reference_while_it_works() -> None:
    async def test() -> None:
        async with encoding() as part:
            engine = _ReadingEngine(part)
            stage = CombinedStage(part.stage, language_stage(engine))
            await answered(stage.chat(chat_request(*images_of(RED_URL, GREEN_URL))))
            assert [rows.shape for rows in engine.read] == [(SIDE, WIDTH), (SIDE, WIDTH)]
            assert part.num_slots == 0

    run(test)


def test_timings_of_the_items_are_in_the_reply() -> None:
    async def test() -> None:
        async with encoding() as part:
            request = chat_request(*images_of(RED_URL))
            answer = await answered(combined(part, ScriptedEngine()).chat(request))
            stages = [timing.stage for timing in answer.finished.timings]
            assert stages == ["fetch", "media_decode", "process"]

    run(test)


def test_what_encoding_takes_is_deducted_from_the_deadline() -> None:
    async def test() -> None:
        async with encoding() as part:
            engine = ScriptedEngine()
            part.processor.gate.close()
            stage = combined(part, engine)
            task = asyncio.create_task(
                answered(stage.chat(chat_request(*images_of(RED_URL), deadline_ms=20_000)))
            )
            assert await asyncio.to_thread(part.processor.gate.reached.wait, 20)
            held_since = time.monotonic()
            await until(lambda: time.monotonic() - held_since > 0.05)
            part.processor.gate.opened.set()
            await task
            assert engine.requests[0].deadline_ms <= 19_950

    run(test)


def test_text_alone_needs_no_encoder() -> None:
    async def test() -> None:
        async with encoding() as part:
            engine = ScriptedEngine()
            answer = await answered(combined(part, engine).chat(chat_request("hi")))
            assert answer.text == "Hello"
            assert engine.requests[0].items == ()

    run(test)


def test_references_are_taken_without_media() -> None:
    async def test() -> None:
        async with encoding() as part:
            engine = ScriptedEngine()
            await answered(combined(part, engine).chat(chat_request("a", reference())))
            assert engine.requests[0].items[0].ref.key == "k"
            assert part.processor.num_calls == 0

    run(test)


def test_raw_media_and_references_do_not_mix() -> None:
    async def test() -> None:
        async with encoding() as part:
            engine = ScriptedEngine()
            (image,) = images_of(RED_URL)
            with pytest.raises(InvalidRequest, match="mixed"):
                await answered(combined(part, engine).chat(chat_request(image, reference(index=1))))
            assert (part.processor.num_calls, engine.requests) == (0, [])

    run(test)


def test_an_item_that_fails_ends_the_request_before_the_engine_hears_of_it() -> None:
    async def test() -> None:
        async with encoding() as part:
            engine = ScriptedEngine()
            request = chat_request(*images_of(RED_URL, inline(b"no image")))
            with pytest.raises(MediaInvalid, match=r"^image 2: "):
                await answered(combined(part, engine).chat(request))
            assert (part.num_slots, engine.requests) == (0, [])

    run(test)


@pytest.mark.parametrize("failure", [None, WorkerUnavailable("the engine died")])
def test_nothing_stays_reserved_when_the_reply_has_ended(failure: TriptychError | None) -> None:
    async def test() -> None:
        async with encoding() as part:
            part.encoder.gate.close()
            engine = ScriptedEngine(failure=failure)
            request = chat_request(*images_of(RED_URL, GREEN_URL))
            with pytest.raises(type(failure)) if failure else nullcontext():
                await answered(combined(part, engine).chat(request))
            assert (part.num_slots, part.runner.load.num_queued) == (0, 0)

    run(test)


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_nothing_stays_reserved_when_the_client_leaves(how: str) -> None:
    async def test() -> None:
        async with encoding() as part:
            part.encoder.gate.close()
            engine = ScriptedEngine(hangs_after=1)
            events = combined(part, engine).chat(chat_request(*images_of(RED_URL, GREEN_URL)))
            await anext(events)
            assert part.num_slots == 2
            if how == "cancel":
                task = asyncio.ensure_future(anext(events))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
            await events.aclose()
            assert (engine.num_open, engine.num_cancelled) == (0, 1)
            assert (part.num_slots, part.runner.load.num_queued) == (0, 0)

    run(test)


@dataclass
class _ReadingEngine:
    """Reads every reference before it says anything."""

    part: Encoding
    read: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def release(self, refs: tuple[TensorRef, ...]) -> None:
        raise NotImplementedError

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        for item in request.items:
            found = await asyncio.to_thread(self.part.reader.fetch, item.ref.tensor, 20.0)
            self.read.append(found.tensor)
            self.part.reader.release(item.ref.tensor)
        async with aclosing(ScriptedEngine().generate(request)) as events:
            async for event in events:
                yield event
