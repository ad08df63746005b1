"""Prefill and decode behind one address: messages and references in, text out. Opens no media."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

from triptych.embeddings.handle import HandleSigner, same_metadata
from triptych.errors import (
    EmbeddingUnavailable,
    InternalError,
    InvalidHandle,
    InvalidRequest,
    PromptTooLong,
)
from triptych.language.text import TextStream
from triptych.messages import (
    ChatEvent,
    ChatRequest,
    EmbeddingRef,
    Finished,
    FinishReason,
    GenerateRequest,
    MediaItem,
    PromptItem,
    StageTiming,
    TensorRef,
    TextDelta,
    TextPart,
    TokenEvent,
    TokenText,
)
from triptych.models.interface import ChatTokenizer, Prompt
from triptych.stages.timings import merged
from triptych.telemetry import Metrics

_MAX_RENDERING = 2
"""Prompts rendered at a time. Templates are Python: more threads would only keep the event loop waiting."""


class Generator(Protocol):
    """The engine as this stage sees it. Closing the iterator cancels the request."""

    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenEvent, None]: ...

    def release(self, refs: tuple[TensorRef, ...]) -> None:
        """Give back the references of a request that will not be generated."""
        ...


class PrefillDecodeStage:
    """Serves chat requests whose media are references. One event loop; tokenising runs in a thread."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        engine: Generator,
        signer: HandleSigner,
        metrics: Metrics,
        max_context_tokens: int,
    ) -> None:
        self._tokenizer = tokenizer
        self._engine = engine
        self._signer = signer
        self._metrics = metrics
        self._max_context_tokens = max_context_tokens
        self._rendering = asyncio.Semaphore(_MAX_RENDERING)

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Text as it is generated, then `Finished`.

        Raises:
            InvalidRequest: raw media, which this stage does not open.
            InvalidHandle: a reference is forged, or does not fit its metadata.
            PromptTooLong: the expanded prompt leaves no room for a token.
            TryLater: an embedding is lost, the engine died, the deadline passed.
        """
        refs = [self._verified(item, request.tenant) for item in request.items]
        async with aclosing(self.generate(request, refs)) as events:
            async for event in events:
                yield event

    async def generate(
        self, request: ChatRequest, refs: Sequence[EmbeddingRef]
    ) -> AsyncGenerator[ChatEvent, None]:
        """The same for references that need no signature: `refs[i]` belongs to `request.items[i]`."""
        begun = time.monotonic()
        try:
            self._check_text(request)
            async with self._rendering:
                prompt = await asyncio.to_thread(
                    self._tokenizer.render, request.messages, request.items, [ref.metadata for ref in refs]
                )
            self._check_length(prompt)
        except BaseException:
            # Nobody will read them: the encode worker need not keep them for a whole lease.
            self._engine.release(tuple(ref.tensor for ref in refs))
            raise
        spent_ms = (time.monotonic() - begun) * 1000
        wanted = GenerateRequest(
            request_id=request.request_id,
            token_ids=prompt.token_ids,
            items=_prompt_items(prompt, request.items, refs),
            sampling=request.sampling,
            deadline_ms=max(1, int(request.deadline_ms - spent_ms)),
        )
        reply = _Reply(self._tokenizer, request, len(prompt.token_ids))
        async with aclosing(self._engine.generate(wanted)) as tokens:
            async for event in tokens:
                yield reply.delta(event)
                if reply.finish_reason is not None:
                    break
        self._metrics.observe(reply.own_timings())
        yield reply.finished()

    def _verified(self, item: MediaItem, tenant: str) -> EmbeddingRef:
        if item.metadata is None:
            raise InvalidRequest(
                f"{item.name}: this worker takes no raw media; send the request to the router, "
                "or encode the item first"
            )
        if item.handle is None:
            raise InvalidHandle(f"{item.name}: no reference in ec_transfer_params belongs to this part")
        try:
            ref = self._signer.verify(item.handle, tenant, time.time()).ref
        except InvalidHandle as error:
            raise InvalidHandle(f"{item.name}: {error.message}") from error
        except EmbeddingUnavailable as error:
            raise EmbeddingUnavailable(f"{item.name}: {error.message}") from error
        if ref.modality != item.modality or not same_metadata(ref.metadata, item.metadata):
            raise InvalidHandle(f"{item.name}: the metadata differ from what the encode worker signed")
        if item.handle_key is not None and item.handle_key != ref.key:
            raise InvalidHandle(f"{item.name}: its handle stands under another item's key")
        return ref

    def _check_text(self, request: ChatRequest) -> None:
        """What cannot fit is refused before it is tokenised, which would take seconds and gigabytes."""
        parts = (part for message in request.messages for part in message.content)
        length = sum(len(part.text) for part in parts if isinstance(part, TextPart))
        if length > self._max_context_tokens * self._tokenizer.max_token_chars:
            raise PromptTooLong(
                f"the text has {length} characters, more than the {self._max_context_tokens} tokens of the "
                "context can hold: shorten it",
                param="messages",
            )

    def _check_length(self, prompt: Prompt) -> None:
        length = len(prompt.token_ids)
        if length + 1 > self._max_context_tokens:
            media = sum(size for item in prompt.items for _, size in item.runs)
            raise PromptTooLong(
                f"the prompt has {length} tokens ({media} of them media), the context holds "
                f"{self._max_context_tokens}: shorten the text or send fewer or smaller media",
                param="messages",
            )


class _Reply:
    """The state of one reply while its tokens arrive."""

    def __init__(self, tokenizer: ChatTokenizer, request: ChatRequest, num_prompt_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._request = request
        self._text = TextStream(request.sampling.stop)
        self._num_prompt_tokens = num_prompt_tokens
        self._num_output_tokens = 0
        self._timings: tuple[StageTiming, ...] = ()
        self.finish_reason: FinishReason | None = None

    def delta(self, event: TokenEvent) -> TextDelta:
        self._num_output_tokens += 1
        # The token that ends a reply is no part of its text.
        ends = event.finish_reason == "stop"
        text, stopped = self._text.feed(b"" if ends else self._tokenizer.token_bytes(event.token_id))
        if stopped:
            self.finish_reason = "stop"
        elif event.finish_reason is not None:
            self.finish_reason = event.finish_reason
            text += self._text.flush()
        self._timings += event.timings
        logprobs = () if event.logprobs is None else (self._token_text(event),)
        return TextDelta(text=text, token_ids=(event.token_id,), logprobs=logprobs)

    def finished(self) -> Finished:
        if self.finish_reason is None:
            raise InternalError("the engine ended a reply without a reason")
        return Finished(
            finish_reason=self.finish_reason,
            num_prompt_tokens=self._num_prompt_tokens,
            num_output_tokens=self._num_output_tokens,
            timings=merged((*self._request.item_timings, *self._timings)),
        )

    def own_timings(self) -> tuple[StageTiming, ...]:
        """Without what the request says of its items: the stage that prepared them counts that."""
        return merged(self._timings)

    def _token_text(self, event: TokenEvent) -> TokenText:
        assert event.logprobs is not None
        text, data = self._tokenizer.token_text, self._tokenizer.token_bytes
        return TokenText(
            token=text(event.token_id),
            token_bytes=data(event.token_id),
            logprob=event.logprobs.logprob,
            top=tuple((text(token), data(token), logprob) for token, logprob in event.logprobs.top),
        )


def _prompt_items(
    prompt: Prompt, items: Sequence[MediaItem], refs: Sequence[EmbeddingRef]
) -> tuple[PromptItem, ...]:
    return tuple(
        PromptItem(name=items[placed.item_index].name, ref=refs[placed.item_index], runs=placed.runs)
        for placed in prompt.items
    )
