"""Error class → HTTP status and gRPC status, in one table; and the body that OpenAI clients expect."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from triptych import errors
from triptych.errors import TriptychError

LOGGER = logging.getLogger(__name__)
INTERNAL_TEXT = "the server failed to answer this request"


@dataclass(frozen=True, slots=True)
class Status:
    """`http` is a status code, `grpc` the name of a `grpc.StatusCode`, `type` the `error.type` of OpenAI."""

    http: int
    grpc: str
    type: str


WRONG = Status(400, "INVALID_ARGUMENT", "invalid_request_error")
BROKEN = Status(500, "INTERNAL", "server_error")
LATER = Status(503, "UNAVAILABLE", "unavailable_error")

TABLE: dict[type[TriptychError], Status] = {
    errors.TriptychError: BROKEN,
    errors.RequestError: WRONG,
    errors.InvalidRequest: WRONG,
    errors.BodyTooLarge: Status(413, "INVALID_ARGUMENT", "invalid_request_error"),
    errors.UnknownModel: Status(404, "NOT_FOUND", "invalid_request_error"),
    errors.PromptTooLong: WRONG,
    errors.UnsupportedModality: WRONG,
    errors.InvalidHandle: WRONG,
    errors.MediaError: WRONG,
    errors.MediaSourceRefused: WRONG,
    errors.MediaFetchFailed: Status(422, "FAILED_PRECONDITION", "invalid_request_error"),
    errors.MediaInvalid: WRONG,
    errors.MediaLimitExceeded: WRONG,
    errors.TryLater: LATER,
    errors.QueueFull: Status(429, "RESOURCE_EXHAUSTED", "rate_limit_error"),
    errors.DeadlineExceeded: Status(503, "DEADLINE_EXCEEDED", "unavailable_error"),
    errors.WorkerUnavailable: LATER,
    errors.EmbeddingUnavailable: LATER,
    errors.KvUnavailable: LATER,
    errors.InternalError: BROKEN,
    errors.StartupError: BROKEN,
    errors.ConfigError: BROKEN,
    errors.CheckpointError: BROKEN,
    errors.UnsupportedModel: BROKEN,
}


@dataclass(frozen=True, slots=True)
class Problem:
    """What a client is told of an error. `retry_after_seconds` None: no Retry-After header."""

    status: Status
    code: str
    message: str
    param: str | None = None
    retry_after_seconds: int | None = None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        seconds = self.retry_after_seconds
        return () if seconds is None else (("retry-after", str(seconds)),)

    def body(self) -> bytes:
        """`{"error": {"message", "type", "code", "param"}}`."""
        error = {"message": self.message, "type": self.status.type, "code": self.code, "param": self.param}
        return msgspec.json.encode({"error": error})


def status_of(error_class: type[TriptychError]) -> Status:
    """The row of a class, or of its nearest ancestor that has one."""
    return next(TABLE[cls] for cls in error_class.__mro__ if cls in TABLE)


def problem(error: Exception) -> Problem:
    """What to tell the client; an error that is our own fault is logged here and its text is withheld."""
    if isinstance(error, errors.RequestError):
        return Problem(status_of(type(error)), error.code, str(error), error.param)
    if isinstance(error, errors.TryLater):
        retry_after = error.retry_after_seconds
        return Problem(status_of(type(error)), error.code, str(error), error.param, retry_after)
    LOGGER.error("a request failed: %s", error, exc_info=error)
    return Problem(BROKEN, errors.InternalError.code, INTERNAL_TEXT)
