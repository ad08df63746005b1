"""What an HTTP worker serves: the seam between `api` and `stages`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Literal, Protocol

from triptych.messages import ChatEvent, ChatRequest, EncodedItem

ReadyState = Literal["starting", "ready", "draining", "failed"]
Readiness = Callable[[], ReadyState]
"""Asked for every request and health probe, so it must not wait."""


class ChatService(Protocol):
    def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Deltas, then exactly one `Finished`. Closing the iterator, or cancelling the task that awaits it,
        cancels the request in every stage.

        Raises:
            TriptychError: while iterating; before the first event it becomes the HTTP status.
        """
        ...


class EncodeService(Protocol):
    async def encode(self, request: ChatRequest) -> tuple[EncodedItem, ...]:
        """One entry a distinct key, as soon as metadata is fixed; cancelling the task cancels the items.

        Raises:
            TriptychError: the first failure in request order.
        """
        ...
