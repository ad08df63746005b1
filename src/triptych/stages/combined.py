"""Encode, prefill and decode behind one address: the layout `none`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from triptych.errors import InvalidRequest
from triptych.messages import ChatEvent, ChatRequest, EmbeddingRef, StageTiming
from triptych.stages.encode import EncodeStage, Encoding
from triptych.stages.prefill_decode import PrefillDecodeStage
from triptych.stages.timings import merged


class CombinedStage:
    """Opens the media itself and hands references to its own language stage."""

    def __init__(self, encode: EncodeStage, language: PrefillDecodeStage) -> None:
        self._encode = encode
        self._language = language

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """As `PrefillDecodeStage.chat`, for raw media. What was not read is withdrawn when the reply ends."""
        if any(item.source is None for item in request.items):
            # Metadata-only parts and raw ones do not mix: a router sends the one or the other.
            if any(item.source is not None for item in request.items):
                raise InvalidRequest("raw media and references cannot be mixed in one request")
            async with aclosing(self._language.chat(request)) as events:
                async for event in events:
                    yield event
            return
        begun = time.monotonic()
        encodings = await self._encode.encode_items(request) if request.items else ()
        try:
            spent_ms = (time.monotonic() - begun) * 1000
            timed = msgspec.structs.replace(
                request,
                item_timings=_timings(encodings),
                deadline_ms=max(1, int(request.deadline_ms - spent_ms)),
            )
            async with aclosing(
                self._language.generate(timed, _refs(encodings, len(request.items)))
            ) as events:
                async for event in events:
                    yield event
        finally:
            self._encode.withdraw(encodings)


def _refs(encodings: Sequence[Encoding], num_items: int) -> list[EmbeddingRef]:
    by_index = {index: encoding.ref for encoding in encodings for index in encoding.item_indices}
    return [by_index[index] for index in range(num_items)]


def _timings(encodings: Sequence[Encoding]) -> tuple[StageTiming, ...]:
    return merged(timing for encoding in encodings for timing in encoding.timings)
