"""A tokenizer of bytes and an engine that says what it is told, around the language stage."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from tests.api.serving import new_metrics
from tests.stages.encoding import SECRET, WIDTH, grid
from triptych.embeddings.handle import HandleSigner
from triptych.errors import TriptychError
from triptych.messages import (
    ChatEvent,
    ChatMessage,
    ChatRequest,
    EmbeddingRef,
    Finished,
    FinishReason,
    GenerateRequest,
    MediaItem,
    MediaPart,
    Metadata,
    Modality,
    SamplingParams,
    SignedHandle,
    StageTiming,
    TensorRef,
    TextDelta,
    TextPart,
    TokenEvent,
    TokenLogprobs,
)
from triptych.models.interface import PlacedItem, Prompt
from triptych.stages.prefill_decode import Generator, PrefillDecodeStage
from triptych.telemetry import Metrics

EOS = 256
PLACEHOLDER = 257
MAX_CONTEXT_TOKENS = 64


@dataclass
class ByteTokenizer:
    """Token n below 256 is byte n; an item takes as many placeholders as its grid is high.

    With `meeting`, each `render` waits there for others; it breaks where they are too few.
    """

    meeting: threading.Barrier | None = None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (EOS,)

    @property
    def max_token_chars(self) -> int:
        return 1

    def render(
        self, messages: Sequence[ChatMessage], items: Sequence[MediaItem], metadata: Sequence[Metadata]
    ) -> Prompt:
        if self.meeting is not None:
            self.meeting.wait()
        token_ids: list[int] = []
        placed: list[PlacedItem] = []
        for part in (part for message in messages for part in message.content):
            match part:
                case TextPart(text=text):
                    token_ids += text.encode()
                case MediaPart(item=index):
                    length = self.num_tokens(items[index], metadata[index])
                    placed.append(PlacedItem(index, ((len(token_ids), length),)))
                    token_ids += [PLACEHOLDER] * length
        return Prompt(tuple(token_ids), tuple(placed))

    def num_tokens(self, item: MediaItem, metadata: Metadata) -> int:
        return int(metadata[0].values[1])

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < EOS else b""

    def token_text(self, token_id: int) -> str:
        return chr(token_id) if token_id < EOS else f"<{token_id}>"


@dataclass
class ScriptedEngine:
    """Yields an event a token, the last with `finish_reason`, or raises `failure` after them.

    `num_open` counts generators that have not ended; `num_cancelled` those closed before their last event.
    """

    token_ids: Sequence[int] = (*b"Hello", EOS)
    finish_reason: FinishReason | None = "stop"
    timings: tuple[StageTiming, ...] = ()
    logprobs: TokenLogprobs | None = None
    failure: TriptychError | None = None
    hangs_after: int | None = None
    """Wait for ever after so many events."""
    requests: list[GenerateRequest] = field(default_factory=list[GenerateRequest])
    released: list[TensorRef] = field(default_factory=list[TensorRef])
    num_open: int = 0
    num_cancelled: int = 0

    def release(self, refs: tuple[TensorRef, ...]) -> None:
        self.released.extend(refs)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        self.num_open += 1
        done = False
        try:
            for at, token_id in enumerate(self.token_ids):
                if at == self.hangs_after:
                    await asyncio.Event().wait()
                last = at == len(self.token_ids) - 1 and self.failure is None
                done = last
                yield TokenEvent(
                    request_id=request.request_id,
                    token_id=token_id,
                    logprobs=self.logprobs,
                    finish_reason=self.finish_reason if last else None,
                    timings=self.timings if last else (),
                )
            if self.failure is not None:
                done = True
                raise self.failure
        finally:
            self.num_open -= 1
            self.num_cancelled += not done


def language_stage(
    engine: Generator, metrics: Metrics | None = None, tokenizer: ByteTokenizer | None = None
) -> PrefillDecodeStage:
    return PrefillDecodeStage(
        tokenizer or ByteTokenizer(),
        engine,
        HandleSigner(SECRET),
        metrics or new_metrics(),
        MAX_CONTEXT_TOKENS,
    )


@dataclass(frozen=True)
class Answer:
    deltas: tuple[TextDelta, ...]
    finished: Finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token_id for delta in self.deltas for token_id in delta.token_ids)


async def answered(events: AsyncGenerator[ChatEvent, None]) -> Answer:
    """All of a reply, which must end with the one `Finished`."""
    async with aclosing(events):
        *deltas, finished = [event async for event in events]
    assert isinstance(finished, Finished)
    return Answer(tuple(delta for delta in deltas if isinstance(delta, TextDelta)), finished)


def chat_request(
    *parts: str | MediaItem, sampling: SamplingParams | None = None, deadline_ms: int = 20_000
) -> ChatRequest:
    """One user message of texts and items, in this order."""
    items = tuple(part for part in parts if isinstance(part, MediaItem))
    places = iter(range(len(items)))
    content = tuple(
        TextPart(text=part) if isinstance(part, str) else MediaPart(item=next(places)) for part in parts
    )
    return ChatRequest(
        request_id="r1",
        model="m",
        messages=(ChatMessage(role="user", content=content),),
        items=items,
        sampling=sampling or SamplingParams(),
        deadline_ms=deadline_ms,
    )


def embedding_ref(num_tokens: int = 4, modality: Modality = "image") -> EmbeddingRef:
    tensor = TensorRef(
        key="k",
        namespace="corner",
        dtype="float32",
        shape=(num_tokens, WIDTH),
        size_bytes=num_tokens * WIDTH * 4,
        transport="inproc",
        address="a",
        lease_id="l",
        incarnation="i",
        generation=1,
    )
    return EmbeddingRef(
        key="k",
        modality=modality,
        num_tokens=num_tokens,
        width=WIDTH,
        metadata=grid(num_tokens, 1),
        tensor=tensor,
    )


def reference(
    ref: EmbeddingRef | None = None,
    index: int = 0,
    secret: bytes = SECRET,
    tenant: str = "",
    seconds: float = 86_400.0,
) -> MediaItem:
    """A metadata-only part whose handle was signed with `secret`, and is valid for `seconds`."""
    signed = ref or embedding_ref()
    handle = SignedHandle(
        ref=signed, tenant=tenant, peer_host="h", peer_port=1, expires_unix_seconds=time.time() + seconds
    )
    return MediaItem(
        modality=signed.modality,
        index=index,
        metadata=signed.metadata,
        handle=HandleSigner(secret).sign(handle),
    )
