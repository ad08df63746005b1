from __future__ import annotations

import asyncio
import base64
import hashlib
from dataclasses import replace

import numpy as np
import pytest

from tests.media.make_audio import sine, sound
from tests.media.make_image import gradient, noise_jpeg, png, solid_png
from tests.media.make_server import answer, by_path, serve
from tests.media.make_video import shown_indices, video
from tests.stages.preparing import (
    CONFIG,
    DEADLINE_SECONDS,
    GREEN,
    POLICY,
    RED,
    corner,
    held_sampler,
    images_of,
    inline,
    items_of,
    preparer,
    run,
    videos_of,
)
from triptych.errors import (
    InvalidRequest,
    MediaInvalid,
    MediaLimitExceeded,
)
from triptych.media.types import (
    DecodedAudio,
    DecodedImage,
    DecodedVideo,
    PreparedItem,
    SkippedItem,
)
from triptych.messages import MediaItem, Modality
from triptych.telemetry import FETCH, MEDIA_DECODE


def test_items_of_all_modalities_are_fetched_together_and_return_in_order() -> None:
    bodies = {
        "/i0": solid_png(RED),
        "/a0": sound([sine(16_000)], 16_000),
        "/v0": video(10),
        "/i1": solid_png(GREEN),
        "/a1": sound([sine(16_000, seconds=2)], 16_000),
        "/v1": video(20),
    }
    barrier = asyncio.Barrier(len(bodies))

    async def respond(path: str, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(5):
            await barrier.wait()
        writer.write(answer(200, bodies[path]))
        await writer.drain()

    async def test() -> None:
        async with serve(respond) as server, preparer() as stage:
            kinds: dict[str, Modality] = {"i": "image", "a": "audio", "v": "video"}
            sources: list[tuple[Modality, str]] = [(kinds[path[1]], server.url(path)) for path in bodies]
            items = items_of(*sources)
            prepared = await stage.prepare(items, POLICY, DEADLINE_SECONDS)
        assert [one.item for one in prepared] == items
        assert [one.source_digest for one in prepared] == [
            hashlib.sha256(b).hexdigest() for b in bodies.values()
        ]
        decoded = [one.decoded for one in prepared if isinstance(one, PreparedItem)]
        assert [corner(prepared[0]), corner(prepared[3])] == [list(RED), list(GREEN)]
        assert [len(d.samples) for d in decoded if isinstance(d, DecodedAudio)] == [16_000, 32_000]
        shown = [shown_indices(d.frames) for d in decoded if isinstance(d, DecodedVideo)]
        assert shown == [[0, 3, 6, 9], [0, 6, 12, 19]]

    run(test)


def test_every_prepared_item_says_how_long_it_took() -> None:
    async def test() -> None:
        async with preparer() as stage:
            (prepared,) = await stage.prepare(
                items_of(("image", inline(png(gradient())))), POLICY, DEADLINE_SECONDS
            )
        assert [timing.stage for timing in prepared.timings] == [FETCH, MEDIA_DECODE]
        assert all(timing.milliseconds >= 0 for timing in prepared.timings)

    run(test)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (inline(b""), "failed to load"),
        (inline(noise_jpeg()[:-128]), "truncated"),
        ("/etc/passwd", "not a URL"),
        ("file:///etc/passwd", "file root"),
        ("data:image/png;base64", "missing ','"),
        ("http://169.254.169.254/x.png", "blocked address"),
    ],
)
def test_bad_item_is_named_and_the_next_request_is_served(bad: str, words: str) -> None:
    good = inline(solid_png(RED))

    async def test() -> None:
        async with preparer() as stage:
            items = items_of(
                ("audio", inline(sound([sine(16_000)], 16_000))), ("image", good), ("image", bad)
            )
            with pytest.raises(Exception, match=f"^image 2: .*{words}"):
                await stage.prepare(items, POLICY, DEADLINE_SECONDS)
            (again,) = await stage.prepare(items_of(("image", good)), POLICY, DEADLINE_SECONDS)
            assert corner(again) == list(RED)

    run(test)


def test_web_page_in_place_of_an_image_is_refused_without_echo() -> None:
    page = answer(200, b"<!doctype html>private words", Content_Type="image/png")

    async def test() -> None:
        async with serve(by_path({"/x.png": page})) as server, preparer() as stage:
            with pytest.raises(MediaInvalid, match=r"^image 1: ") as caught:
                await stage.prepare(items_of(("image", server.url("/x.png"))), POLICY, DEADLINE_SECONDS)
            assert "private" not in str(caught.value)

    run(test)


def test_type_is_told_by_the_bytes_not_by_the_label() -> None:
    data = solid_png(RED)
    reply = answer(200, data, Content_Type="image/jpeg")

    async def test() -> None:
        async with serve(by_path({"/x.jpg": reply})) as server, preparer() as stage:
            labelled = "data:image/jpeg;base64," + base64.b64encode(data).decode()
            items = items_of(("image", server.url("/x.jpg")), ("image", labelled))
            prepared = await stage.prepare(items, POLICY, DEADLINE_SECONDS)
            assert [corner(one) for one in prepared] == [list(RED)] * 2

    run(test)


def test_images_with_equal_pixels_and_different_shapes_have_different_digests() -> None:
    async def test() -> None:
        async with preparer() as stage:
            wide, tall = (inline(solid_png((0, 0, 0), *size)) for size in ((100, 30), (30, 100)))
            first, second = await stage.prepare(
                items_of(("image", wide), ("image", tall)), POLICY, DEADLINE_SECONDS
            )
            assert first.source_digest != second.source_digest

    run(test)


def test_one_source_several_times_is_fetched_and_decoded_once() -> None:
    sampler = held_sampler()
    sampler.release.set()

    async def test() -> None:
        async with serve(by_path({"/v": answer(200, video(10))})) as server, preparer() as stage:
            items = videos_of(*[server.url("/v")] * 3)
            prepared = await stage.prepare(items, replace(POLICY, sample_frames=sampler), DEADLINE_SECONDS)
            assert [one.item.uuid for one in prepared] == ["uuid-0", "uuid-1", "uuid-2"]
            assert len({one.source_digest for one in prepared}) == 1
            assert server.paths == ["/v"]
        assert sampler.num_calls == 1

    run(test)


def test_what_the_caller_does_not_want_is_not_decoded() -> None:
    undecodable = b"known bytes, no image"
    known = hashlib.sha256(undecodable).hexdigest()
    asked: list[str] = []

    def wanted(item: MediaItem, digest: str) -> bool:
        asked.append(item.name)
        return digest != known

    async def test() -> None:
        async with preparer() as stage:
            sources = (inline(undecodable), inline(solid_png(RED)), inline(undecodable))
            items = images_of(*(source for source in sources))
            prepared = await stage.prepare(items, POLICY, DEADLINE_SECONDS, wanted)
        assert [type(one) for one in prepared] == [SkippedItem, PreparedItem, SkippedItem]
        assert [one.item for one in prepared] == items
        assert prepared[0].source_digest == known
        assert [timing.stage for timing in prepared[0].timings] == [FETCH]

    run(test)
    assert sorted(asked) == ["image 1", "image 2", "image 3"]


def test_too_many_items_are_refused() -> None:
    async def test() -> None:
        async with preparer(replace(CONFIG, max_items=2)) as stage:
            items = images_of(*[inline(solid_png(RED))] * 3)
            with pytest.raises(MediaLimitExceeded, match="3 media items; at most 2"):
                await stage.prepare(items, POLICY, DEADLINE_SECONDS)
            assert len(await stage.prepare(items[:2], POLICY, DEADLINE_SECONDS)) == 2
            assert await stage.prepare([], POLICY, DEADLINE_SECONDS) == ()

    run(test)


def test_item_without_source_is_refused_by_name() -> None:
    async def test() -> None:
        async with preparer() as stage:
            with pytest.raises(InvalidRequest, match=r"^video 1: "):
                await stage.prepare(
                    [MediaItem(modality="video", index=0, metadata=())], POLICY, DEADLINE_SECONDS
                )

    run(test)


def test_many_requests_at_once_get_their_own_media() -> None:
    colors = [(10 * n, 5, 5) for n in range(24)]
    bodies = {f"/{n}": answer(200, solid_png(color)) for n, color in enumerate(colors)}

    async def test() -> None:
        async with serve(by_path(bodies)) as server, preparer() as stage:

            async def request(number: int) -> bool:
                picks = [(number + step) % 24 for step in range(12)]
                items = images_of(*(server.url(f"/{pick}") for pick in picks))
                prepared = await stage.prepare(items, POLICY, DEADLINE_SECONDS)
                return [corner(one) for one in prepared] == [list(colors[pick]) for pick in picks]

            assert all(await asyncio.gather(*(request(number) for number in range(24))))

    run(test)


def test_decoded_media_are_plain_arrays() -> None:
    async def test() -> None:
        async with preparer() as stage:
            (one,) = await stage.prepare(
                items_of(("image", inline(png(gradient())))), POLICY, DEADLINE_SECONDS
            )
            assert isinstance(one, PreparedItem)
            assert isinstance(one.decoded, DecodedImage)
            assert one.decoded.pixels.dtype == np.uint8
            assert one.decoded.pixels.shape == (16, 24, 3)

    run(test)
