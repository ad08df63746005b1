"""What an encode worker does with a request's items: once per distinct item, or not at all."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from tests.media.make_image import solid_png
from tests.media.make_server import until
from tests.stages.encoding import ITEM_BYTES, PEER, SIDE, WIDTH, Encoding, asked, encoding, grid
from tests.stages.preparing import GREEN, RED, images_of, inline, run
from triptych.errors import EmbeddingUnavailable, InvalidHandle
from triptych.messages import EncodedItem

RED_PNG, GREEN_PNG = solid_png(RED), solid_png(GREEN)
RED_URL, GREEN_URL = inline(RED_PNG), inline(GREEN_PNG)


async def fetched(part: Encoding, item: EncodedItem) -> torch.Tensor:
    found = await asyncio.to_thread(part.reader.fetch, item.ref.tensor, 20.0)
    return found.tensor


async def cached(part: Encoding, url: str) -> torch.Tensor:
    """Encode once, read it, and wait until it is in the cache."""
    (item,) = await part.stage.encode(asked(images_of(url)))
    rows = await fetched(part, item)
    part.reader.release(item.ref.tensor)
    await until(lambda: part.store.usage().num_entries > 0)
    return rows


def test_the_same_image_three_times_is_encoded_once() -> None:
    async def test() -> None:
        async with encoding() as part:
            (item,) = await part.stage.encode(asked(images_of(RED_URL, RED_URL, RED_URL)))
            assert torch.equal(await fetched(part, item), torch.full((SIDE, WIDTH), 255.0))
            assert item.item_indices == (0, 1, 2)
            assert item.uuids == ("uuid-0", "uuid-1", "uuid-2")
            assert part.processor.num_calls == 1
            assert part.encoder.corners == [list(RED)]
            assert part.num_slots == 1

    run(test)


def test_the_same_bytes_from_different_sources_are_encoded_once() -> None:
    async def test() -> None:
        async with encoding() as part:
            other = RED_URL.replace("data:;", "data:image/png;")
            items = images_of(RED_URL, GREEN_URL, other)
            red, green = await part.stage.encode(asked(items))
            assert red.item_indices == (0, 2)
            assert green.item_indices == (1,)
            assert torch.equal(await fetched(part, green), torch.full((SIDE, WIDTH), 255.0))
            assert part.processor.num_calls == 2

    run(test)


def test_the_reply_describes_the_item_and_where_it_is() -> None:
    async def test() -> None:
        async with encoding() as part:
            (item,) = await part.stage.encode(asked(images_of(RED_URL)))
            assert (item.peer_host, item.peer_port) == PEER
            assert item.ref.metadata == grid(SIDE, SIDE)
            assert (item.ref.num_tokens, item.ref.width) == (SIDE, WIDTH)
            assert item.ref.tensor.shape == (SIDE, WIDTH)
            assert item.ref.tensor.size_bytes == ITEM_BYTES
            assert [timing.stage for timing in item.timings] == ["fetch", "media_decode", "process"]

    run(test)


def test_the_reply_does_not_wait_for_the_encoder() -> None:
    async def test() -> None:
        async with encoding() as part:
            part.encoder.gate.close()
            (item,) = await part.stage.encode(asked(images_of(RED_URL)))
            assert part.encoder.corners == []
            part.encoder.gate.opened.set()
            await fetched(part, item)
            assert part.encoder.corners == [list(RED)]

    run(test)


def test_a_cached_item_skips_decode_process_and_encode() -> None:
    async def test() -> None:
        async with encoding() as part:
            first = await cached(part, RED_URL)
            (again,) = await part.stage.encode(asked(images_of(RED_URL)))
            assert torch.equal(await fetched(part, again), first)
            assert [timing.stage for timing in again.timings] == ["fetch"]
            assert again.ref.metadata == grid(SIDE, SIDE)
            assert part.processor.num_calls == 1
            assert part.encoder.corners == [list(RED)]
            value = part.metrics.registry.get_sample_value
            assert value("triptych_encoder_cache_hits_total", {"modality": "image"}) == 1
            assert value("triptych_encoded_items_total", {"modality": "image"}) == 1

    run(test)


def test_a_request_mixes_cached_and_new_items() -> None:
    async def test() -> None:
        async with encoding() as part:
            await cached(part, GREEN_URL)
            red, green = await part.stage.encode(asked(images_of(RED_URL, GREEN_URL, RED_URL)))
            assert (red.item_indices, green.item_indices) == ((0, 2), (1,))
            for item in (red, green):
                assert torch.equal(await fetched(part, item), torch.full((SIDE, WIDTH), 255.0))
            assert part.encoder.corners == [list(GREEN), list(RED)]

    run(test)


def test_an_evicted_embedding_is_encoded_again() -> None:
    async def test() -> None:
        async with encoding(cache_bytes=ITEM_BYTES) as part:
            await cached(part, RED_URL)
            (green,) = await part.stage.encode(asked(images_of(GREEN_URL)))
            await fetched(part, green)
            await until(lambda: part.store.usage().num_evictions == 1)
            await part.stage.encode(asked(images_of(RED_URL)))
            assert part.processor.num_calls == 3

    run(test)


def test_another_tenant_shares_nothing() -> None:
    async def test() -> None:
        async with encoding() as part:
            await cached(part, RED_URL)
            (item,) = await part.stage.encode(asked(images_of(RED_URL), tenant="other"))
            assert part.processor.num_calls == 2
            with pytest.raises(InvalidHandle):
                part.signer.verify(item.handle, "", time.time())

    run(test)


def test_handles_are_signed_for_as_long_as_the_slot_may_live() -> None:
    async def test() -> None:
        async with encoding() as part:
            (item,) = await part.stage.encode(asked(images_of(RED_URL), tenant="t"))
            handle = part.signer.verify(item.handle, "t", time.time() + 30)
            assert handle.ref == item.ref
            assert (handle.peer_host, handle.peer_port) == PEER
            with pytest.raises(EmbeddingUnavailable):
                part.signer.verify(item.handle, "t", time.time() + 3600)

    run(test)


def test_withdrawn_items_leave_the_queue_and_the_pool() -> None:
    async def test() -> None:
        async with encoding() as part:
            part.encoder.gate.close()
            running = await part.stage.encode_items(asked(images_of(RED_URL)))
            assert await asyncio.to_thread(part.encoder.gate.reached.wait, 20)
            queued = await part.stage.encode_items(asked(images_of(GREEN_URL)))
            assert (part.runner.load.num_queued, part.num_slots) == (1, 2)
            part.stage.withdraw(queued)
            part.stage.withdraw(queued)
            assert (part.runner.load.num_queued, part.num_slots) == (0, 1)
            part.stage.withdraw(running)
            assert part.num_slots == 0
            part.encoder.gate.opened.set()
            await until(lambda: part.runner.load.num_items == 1)
            assert part.encoder.corners == [list(RED)]

    run(test)
