"""Everything that can go wrong, by cause. The three roots are what a caller can act on.

TriptychError
├── RequestError                 the request is wrong: change it (4xx)
│   ├── InvalidRequest           a field has the wrong type, range or combination
│   ├── BodyTooLarge             the body has more bytes than the server takes
│   ├── UnknownModel             the model named is not served here
│   ├── PromptTooLong            prompt plus output exceed the context, or the KV pool
│   ├── UnsupportedModality      the model takes no such media
│   ├── InvalidHandle            a reference to an embedding or KV is forged, stale or does not fit its part
│   └── MediaError               one media item is to blame; the text names it ("image 2: ...")
│       ├── MediaSourceRefused   the URL is malformed, or its address, scheme or path is not allowed
│       ├── MediaFetchFailed     the source answered with a permanent failure, or not in time
│       ├── MediaInvalid         the bytes are not what they claim, or are damaged
│       └── MediaLimitExceeded   bytes, pixels, frames, seconds or item count exceed a limit
├── TryLater                     nothing wrong with the request: try again (429, 503)
│   ├── QueueFull                a bounded queue is full
│   ├── DeadlineExceeded         the request's own deadline passed
│   ├── WorkerUnavailable        no live worker of a role, or it died while serving this request
│   ├── EmbeddingUnavailable     an embedding that was announced cannot be had any more
│   └── KvUnavailable            a KV handoff that was announced cannot be had any more
├── InternalError                we broke (500); its text never reaches a user
└── StartupError                 a worker cannot start; never raised while serving
    ├── ConfigError              contradictory or unknown settings
    ├── CheckpointError          files missing, or parameters that no file accounts for
    └── UnsupportedModel         an architecture or layer type that Triptych does not serve
"""

from __future__ import annotations


class TriptychError(Exception):
    """Root of all our errors. `code` is stable and part of the public API."""

    code: str = "internal"
    retryable: bool = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestError(TriptychError):
    code = "invalid_request"


class InvalidRequest(RequestError):
    code = "invalid_request"


class BodyTooLarge(RequestError):
    code = "request_too_large"


class UnknownModel(RequestError):
    code = "model_not_found"


class PromptTooLong(RequestError):
    code = "context_length_exceeded"


class UnsupportedModality(RequestError):
    code = "unsupported_modality"


class InvalidHandle(RequestError):
    code = "invalid_handle"


class MediaError(RequestError):
    """`item` is the public name of the media item: modality and 1-based number, e.g. "image 2"."""

    code = "media_invalid"

    def __init__(self, message: str, *, item: str | None = None, param: str | None = None) -> None:
        super().__init__(f"{item}: {message}" if item else message, param=param)
        self.item = item
        self.reason = message

    def named(self, item: str) -> MediaError:
        """The same error with the item's name in front (media code below the request knows no names)."""
        return self if self.item else type(self)(self.reason, item=item, param=self.param)


class MediaSourceRefused(MediaError):
    code = "media_source_refused"


class MediaFetchFailed(MediaError):
    code = "media_fetch_failed"


class MediaInvalid(MediaError):
    code = "media_invalid"


class MediaLimitExceeded(MediaError):
    code = "media_limit_exceeded"


class TryLater(TriptychError):
    """`retry_after_seconds` becomes the Retry-After header."""

    code = "unavailable"
    retryable = True
    retry_after_seconds: int = 1


class QueueFull(TryLater):
    code = "queue_full"


class DeadlineExceeded(TryLater):
    code = "deadline_exceeded"


class WorkerUnavailable(TryLater):
    code = "worker_unavailable"


class EmbeddingUnavailable(TryLater):
    code = "embedding_unavailable"


class KvUnavailable(TryLater):
    code = "kv_unavailable"


class InternalError(TriptychError):
    code = "internal"


class StartupError(TriptychError):
    code = "startup"


class ConfigError(StartupError):
    code = "config"


class CheckpointError(StartupError):
    code = "checkpoint"


class UnsupportedModel(StartupError):
    code = "unsupported_model"


def all_error_classes() -> tuple[type[TriptychError], ...]:
    """Every class of the tree above, roots first."""
    found: list[type[TriptychError]] = [TriptychError]
    for cls in found:
        found.extend(c for c in cls.__subclasses__() if c.__module__ == __name__)
    return tuple(found)


def error_from_code(code: str, message: str) -> TriptychError:
    """Rebuild the error that another process reported as (code, message)."""
    for cls in reversed(all_error_classes()):
        if cls.code == code:
            return cls(message)
    return InternalError(message)
