"""`ChatEvent`s → one `chat.completion` object, or the chunks of a stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field

import msgspec

from triptych.api.openai.logprobs import logprobs_json
from triptych.api.openai.parse import Delivery
from triptych.api.status import Problem
from triptych.errors import InternalError, WorkerUnavailable
from triptych.messages import ChatEvent, ChatRequest, Finished, StageTiming, TextDelta

JsonObject = dict[str, object]
DONE = b"data: [DONE]\n\n"


def event(value: Mapping[str, object]) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


def failure_events(problem: Problem) -> bytes:
    """What ends a stream whose status has already been sent."""
    return b"data: " + problem.body() + b"\n\n" + DONE


@dataclass(frozen=True, slots=True)
class Reply:
    """What all parts of one reply share."""

    request: ChatRequest
    delivery: Delivery
    created_unix_seconds: int = field(default_factory=lambda: int(time.time()))

    async def completion(self, events: AsyncIterator[ChatEvent]) -> bytes:
        """The whole reply as one JSON object.

        Raises:
            WorkerUnavailable: generation was cut off from our side.
            InternalError: the events end without `Finished`.
        """
        deltas: list[TextDelta] = []
        async for item in events:
            if isinstance(item, Finished):
                return msgspec.json.encode(self._completion_json(deltas, item))
            deltas.append(item)
        raise _unfinished()

    async def chunks(self, events: AsyncIterator[ChatEvent]) -> AsyncGenerator[bytes, None]:
        """Server-sent events from the role chunk, once there is a first event, to `[DONE]`.

        Raises:
            WorkerUnavailable: generation was cut off from our side.
            InternalError: the events end without `Finished`.
        """
        opened = False
        async for item in events:
            if not opened:
                yield event(self._chunk({"role": "assistant", "content": ""}))
                opened = True
            if isinstance(item, Finished):
                yield self._last_chunks(item)
                return
            if item.text or item.logprobs or (self.delivery.return_token_ids and item.token_ids):
                yield event(self._delta_chunk(item))
        raise _unfinished()

    def _completion_json(self, deltas: list[TextDelta], finished: Finished) -> JsonObject:
        choice: JsonObject = {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "".join(delta.text for delta in deltas),
                "refusal": None,
            },
            "logprobs": self._logprobs(*deltas),
            "finish_reason": _finish_reason(finished),
        }
        if self.delivery.return_token_ids:
            choice["token_ids"] = [token_id for delta in deltas for token_id in delta.token_ids]
        return self._head("chat.completion") | {"choices": [choice]} | self._tail(finished)

    def _delta_chunk(self, delta: TextDelta) -> JsonObject:
        extra: JsonObject = {}
        if self.delivery.return_token_ids:
            extra["token_ids"] = delta.token_ids
        return self._chunk({"content": delta.text}, self._logprobs(delta), extra=extra)

    def _last_chunks(self, finished: Finished) -> bytes:
        events = [event(self._chunk({}, finish_reason=_finish_reason(finished)))]
        if self.delivery.include_usage or self.delivery.include_timings:
            last = self._head("chat.completion.chunk") | {"choices": []} | self._tail(finished)
            events.append(event(last))
        return b"".join((*events, DONE))

    def _chunk(
        self,
        delta: JsonObject,
        logprobs: JsonObject | None = None,
        finish_reason: str | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> JsonObject:
        choice: JsonObject = {
            "index": 0,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        choice.update(extra or {})
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
        return chunk | {"usage": None} if self.delivery.include_usage else chunk

    def _head(self, kind: str) -> JsonObject:
        return {
            "id": f"chatcmpl-{self.request.request_id}",
            "object": kind,
            "created": self.created_unix_seconds,
            "model": self.request.model,
        }

    def _tail(self, finished: Finished) -> JsonObject:
        tail: JsonObject = {"usage": _usage(finished)}
        if self.delivery.include_timings:
            tail["timings_ms"] = timings_json(finished.timings)
        return tail

    def _logprobs(self, *deltas: TextDelta) -> JsonObject | None:
        if self.request.sampling.num_logprobs is None:
            return None
        return logprobs_json([token for delta in deltas for token in delta.logprobs])


def timings_json(timings: tuple[StageTiming, ...]) -> dict[str, float]:
    """{stage: milliseconds}; a stage that is listed twice is summed."""
    total: dict[str, float] = {}
    for timing in timings:
        total[timing.stage] = total.get(timing.stage, 0.0) + timing.milliseconds
    return {stage: round(milliseconds, 3) for stage, milliseconds in total.items()}


def _usage(finished: Finished) -> JsonObject:
    prompt, output = finished.num_prompt_tokens, finished.num_output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def _finish_reason(finished: Finished) -> str:
    """A client that is still here did not cancel: we cut it off, and it may try again."""
    if finished.finish_reason == "cancelled":
        raise WorkerUnavailable("generation was cut off by the server")
    return finished.finish_reason


def _unfinished() -> InternalError:
    return InternalError("the reply ended without a finish reason")
