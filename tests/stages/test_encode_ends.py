"""How an encode request can go wrong, and that nothing of it stays behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.media.make_image import solid_png
from tests.media.make_server import serve, until
from tests.stages.encoding import ITEM_BYTES, Encoding, asked, encoding, grid
from tests.stages.preparing import GREEN, RED, images_of, inline, run, videos_of
from triptych.errors import (
    DeadlineExceeded,
    InternalError,
    MediaInvalid,
    MediaLimitExceeded,
    QueueFull,
    TriptychError,
    UnsupportedModality,
)
from triptych.messages import MediaItem

RED_URL, GREEN_URL = inline(solid_png(RED)), inline(solid_png(GREEN))
BLUE_URL = inline(solid_png((0, 0, 255)))


async def never(path: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def refusal(part: Encoding, *urls: str, deadline_ms: int = 20_000) -> TriptychError:
    with pytest.raises(TriptychError) as caught:
        await part.stage.encode(asked(images_of(*urls), deadline_ms))
    assert part.num_slots == 0
    assert part.runner.load.num_queued == 0
    return caught.value


def test_the_first_item_that_cannot_be_processed_is_named() -> None:
    async def test() -> None:
        async with encoding() as part:
            part.processor.refused = {GREEN, (0, 0, 255)}
            error = await refusal(part, RED_URL, GREEN_URL, BLUE_URL)
            assert isinstance(error, MediaInvalid)
            assert error.message.startswith("image 2: ")
            assert part.processor.num_calls == 3
            assert part.encoder.corners == []

    run(test)


def test_an_item_that_cannot_be_decoded_is_named() -> None:
    async def test() -> None:
        async with encoding() as part:
            error = await refusal(part, RED_URL, inline(b"no image"))
            assert isinstance(error, MediaInvalid)
            assert error.message.startswith("image 2: ")
            assert part.processor.num_calls == 0

    run(test)


def test_a_modality_that_the_model_lacks_is_refused_by_name() -> None:
    async def test() -> None:
        async with encoding() as part:
            items = (*images_of(RED_URL), *videos_of("data:,"))
            with pytest.raises(UnsupportedModality, match=r"^video 1: "):
                await part.stage.encode(asked(items))

    run(test)


def test_an_item_without_its_media_is_refused() -> None:
    async def test() -> None:
        async with encoding() as part:
            item = MediaItem(modality="image", index=0, metadata=grid(1, 1))
            with pytest.raises(UnsupportedModality, match=r"^image 1: "):
                await part.stage.encode(asked([item]))

    run(test)


def test_a_full_pool_is_try_later_and_keeps_nothing() -> None:
    async def test() -> None:
        async with encoding(pool_bytes=2 * ITEM_BYTES) as part:
            held = await part.stage.encode_items(asked(images_of(BLUE_URL)))
            with pytest.raises(QueueFull):
                await part.stage.encode(asked(images_of(RED_URL, GREEN_URL)))
            assert part.num_slots == len(held)
            await part.stage.encode(asked(images_of(GREEN_URL)))

    run(test)


def test_what_never_fits_into_the_pool_is_not_told_to_try_again() -> None:
    async def test() -> None:
        async with encoding(pool_bytes=ITEM_BYTES + ITEM_BYTES // 2) as part:
            error = await refusal(part, RED_URL, GREEN_URL)
            assert isinstance(error, MediaLimitExceeded)
            assert error.message.startswith("image 2: ")
            await part.stage.encode(asked(images_of(GREEN_URL)))

    run(test)


def test_an_item_whose_reader_gave_up_is_not_encoded() -> None:
    async def test() -> None:
        async with encoding() as part:
            part.encoder.gate.close()
            await part.stage.encode_items(asked(images_of(BLUE_URL)))
            assert await asyncio.to_thread(part.encoder.gate.reached.wait, 20)
            (left,) = await part.stage.encode_items(asked(images_of(RED_URL)))
            (kept,) = await part.stage.encode_items(asked(images_of(GREEN_URL)))
            part.reader.release(left.ref.tensor)
            part.encoder.gate.opened.set()
            await asyncio.to_thread(part.reader.fetch, kept.ref.tensor, 20.0)
            assert part.runner.load.num_items == 2

    run(test)


def test_a_full_queue_is_try_later_and_keeps_nothing() -> None:
    async def test() -> None:
        async with encoding(max_queue_items=1) as part:
            part.encoder.gate.close()
            running = await part.stage.encode_items(asked(images_of(BLUE_URL)))
            assert await asyncio.to_thread(part.encoder.gate.reached.wait, 20)
            with pytest.raises(QueueFull):
                await part.stage.encode(asked(images_of(RED_URL, GREEN_URL)))
            assert part.runner.load.num_queued == 0
            assert part.num_slots == len(running)

    run(test)


def test_a_cancel_while_fetching_leaves_nothing() -> None:
    async def test() -> None:
        async with encoding() as part, serve(never) as server:
            task = asyncio.create_task(part.stage.encode(asked(images_of(server.url("/a"), RED_URL))))
            await until(lambda: server.paths != [])
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled()
            assert part.num_slots == 0
            assert part.processor.num_calls == 0

    run(test)


def test_a_cancel_while_processing_leaves_nothing() -> None:
    async def test() -> None:
        async with encoding() as part:
            part.processor.gate.close()
            task = asyncio.create_task(part.stage.encode(asked(images_of(RED_URL, GREEN_URL))))
            assert await asyncio.to_thread(part.processor.gate.reached.wait, 20)
            task.cancel()
            await asyncio.wait([task])
            part.processor.gate.opened.set()
            assert task.cancelled()
            assert part.num_slots == 0

    run(test)


def test_a_cancel_while_a_cached_item_is_published_leaves_nothing() -> None:
    async def test() -> None:
        async with encoding() as part:
            first = await part.stage.encode_items(asked(images_of(RED_URL)))
            await until(lambda: part.store.usage().num_entries == 1)
            part.stage.withdraw(first)
            part.producer.gate.close()
            task = asyncio.create_task(part.stage.encode(asked(images_of(RED_URL))))
            assert await asyncio.to_thread(part.producer.gate.reached.wait, 20)
            task.cancel()
            await asyncio.wait([task])
            part.producer.gate.opened.set()
            assert task.cancelled()
            assert part.num_slots == 0

    run(test)


@pytest.mark.parametrize("slow", ["fetch", "process"])
def test_the_deadline_holds_wherever_the_time_goes(slow: str) -> None:
    async def test() -> None:
        async with encoding() as part, serve(never) as server:
            if slow == "process":
                part.processor.gate.close()
            url = server.url("/a") if slow == "fetch" else RED_URL
            assert isinstance(await refusal(part, url, deadline_ms=100), DeadlineExceeded)
            part.processor.gate.opened.set()

    run(test)


@pytest.mark.parametrize(
    ("failure", "seen"),
    [(MediaInvalid("too odd"), MediaInvalid), (RuntimeError("secret detail"), InternalError)],
)
def test_readers_get_what_the_encoder_raised(failure: Exception, seen: type[TriptychError]) -> None:
    async def test() -> None:
        async with encoding() as part:
            part.encoder.failure = failure
            (item,) = await part.stage.encode(asked(images_of(RED_URL)))
            with pytest.raises(seen):
                await asyncio.to_thread(part.reader.fetch, item.ref.tensor, 20.0)
            assert part.store.usage().num_entries == 0

    run(test)


def test_readers_do_not_wait_for_rows_that_differ_from_the_metadata(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with encoding() as part:
            part.encoder.num_missing_rows = 1
            (item,) = await part.stage.encode(asked(images_of(RED_URL)))
            with pytest.raises(InternalError):
                await asyncio.to_thread(part.reader.fetch, item.ref.tensor, 20.0)
            assert part.store.usage().num_entries == 0

    run(test)
    assert "delivering an embedding failed" in caplog.text
