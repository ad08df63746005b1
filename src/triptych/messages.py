"""Every struct that crosses a process. Read this first.

Who makes and who eats each:

    ChatRequest     api (from JSON)        → stages
    EmbeddingRef    stages/encode          → (signed, through any router) → stages/prefill_decode → engine
    EncodedItem     stages/encode          → api (to JSON) → router
    GenerateRequest stages/prefill_decode  → engine process
    StepOutput      engine process         → stages/prefill_decode
    ChatEvent       stages                 → api

Rules: frozen, tagged by class name, tuples not lists, units in names, no tensors (a tensor travels as a
`TensorRef`, its bytes through `transport/`), deadlines as remaining milliseconds. Values are checked in
`__post_init__`, which runs when a struct is built and when it is decoded.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from triptych.errors import InvalidRequest

Modality = Literal["image", "audio", "video"]
MODALITIES: tuple[Modality, ...] = ("image", "audio", "video")
FinishReason = Literal["stop", "length", "cancelled"]
DEFAULT_DEADLINE_MS = 600_000


class MetadataArray(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One named numeric array of an item's metadata, e.g. `image_grid_thw` with shape (1, 3).

    `values` is flat, row-major. Routers may flatten or nest the JSON form, so equality is over `values`.
    """

    name: str
    shape: tuple[int, ...]
    values: tuple[int | float, ...]

    def __post_init__(self) -> None:
        if math.prod(self.shape) != len(self.values):
            raise InvalidRequest(f"{self.name}: shape {self.shape} does not hold {len(self.values)} values")


Metadata = tuple[MetadataArray, ...]
"""What prefill needs to know of one item without its content, sorted by name."""


class StageTiming(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How long one stage worked for one item or request; names are `telemetry.STAGES`."""

    stage: str
    milliseconds: float


class TensorRef(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Where one tensor is and what it is. Made by `Transport.reserve`, eaten by `Transport.fetch`.

    `address` is the transport's own (shm: abstract unix socket name; inproc: a registry name).
    `incarnation` names the producer's start, so that a restarted producer under the same address is noticed;
    `generation` names the use of the slot, so that a reused slot is noticed.
    """

    key: str
    namespace: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    transport: str
    address: str
    lease_id: str
    incarnation: str
    generation: int


class EmbeddingRef(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One encoded item, by reference. Tensor shape is [num_tokens, width].

    `width` is the packed width of this modality: hidden × (1 + number of DeepStack layers) for images and
    videos of DeepStack models, hidden otherwise.
    """

    key: str
    modality: Modality
    num_tokens: int
    width: int
    metadata: Metadata
    tensor: TensorRef


class SignedHandle(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the HMAC covers: the reference and who may use it until when. Travels as an opaque string.

    `expires_unix_seconds` is wall clock on purpose: it is a validity date, not a deadline.
    """

    ref: EmbeddingRef
    tenant: str
    peer_host: str
    peer_port: int
    expires_unix_seconds: float


class MediaItem(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One image, audio clip or video of a request.

    `index` counts within the modality from 0 in request order. Exactly one of `source` (a URL of any accepted
    scheme; inline audio becomes a data URL) and `metadata` (the part was replaced by its metadata: the bytes
    stay at the encode worker) is set.
    """

    modality: Modality
    index: int
    source: str | None = None
    metadata: Metadata | None = None
    uuid: str | None = None
    handle: str | None = None
    handle_key: str | None = None
    """The key under which the request gives `handle`: what the handle is signed for."""

    def __post_init__(self) -> None:
        if (self.source is None) == (self.metadata is None):
            raise InvalidRequest(f"{self.name}: needs either a source or metadata")

    @property
    def name(self) -> str:
        """What users see: "image 2" is the second image of the request."""
        return f"{self.modality} {self.index + 1}"


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    text: str


class MediaPart(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The place of `ChatRequest.items[item]` among the parts of a message."""

    item: int


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """`content` keeps parts in the order in which the client wrote them."""

    role: str
    content: tuple[TextPart | MediaPart, ...]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How one sequence is sampled. `top_k` 0 means all; `temperature` 0 means greedy.

    `max_tokens` None means: as many as the context allows.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None
    """None: no logprobs; 0: of the sampled token only; n: and of the n likeliest."""

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, must: str) -> None:
            if not ok:
                raise InvalidRequest(f"{name} must be {must}", param=name)

        check("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1")
        check("temperature", 0 <= self.temperature <= 2, "between 0 and 2")
        check("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        check("top_k", self.top_k >= 0, "at least 0")
        check("top_logprobs", self.num_logprobs is None or 0 <= self.num_logprobs <= 20, "between 0 and 20")
        check("stop", len(self.stop) <= 16 and all(self.stop), "at most 16 non-empty strings")


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One chat request as every stage sees it.

    `request_id` is made by the server (128 random bits, hex); `label` is the client's own id, only echoed.
    `items` are in request order over all modalities. `tenant` scopes keys and handles.
    """

    request_id: str
    model: str
    messages: tuple[ChatMessage, ...]
    items: tuple[MediaItem, ...] = ()
    sampling: SamplingParams = SamplingParams()
    tenant: str = ""
    label: str | None = None
    deadline_ms: int = DEFAULT_DEADLINE_MS
    item_timings: tuple[StageTiming, ...] = ()
    """What an encode worker already spent on this request's items (summed into the reply's timings)."""


class PromptItem(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One item in its place in the prompt.

    `runs` are (offset, length) of the prompt positions that its rows fill, in order; lengths sum to
    `ref.num_tokens`. Several runs: timestamps or frame markers stand between frames.
    """

    name: str
    ref: EmbeddingRef
    runs: tuple[tuple[int, int], ...]


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Prompt ids and references for the engine; stop strings are not its business (`language/text.py`)."""

    request_id: str
    token_ids: tuple[int, ...]
    items: tuple[PromptItem, ...]
    sampling: SamplingParams
    deadline_ms: int


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Idempotent: the client left, or a stop string matched. Frees pages and leases; no reply follows."""

    request_id: str


class Release(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """References of a request that never reached the engine: it was refused before. No reply follows."""

    refs: tuple[TensorRef, ...]


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Log-probabilities at one output position, of the unmodified distribution; `top` is likeliest first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One new token of one request. `finish_reason` set: it was the last one, `timings` are complete."""

    request_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    timings: tuple[StageTiming, ...] = ()


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A request ended without an answer; `code` is one of `errors`."""

    request_id: str
    code: str
    message: str
    retryable: bool = False


class StepOutput(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Everything one engine step produced, with the load that the front reports."""

    events: tuple[TokenEvent | Failed, ...]
    num_running: int
    num_waiting: int
    kv_usage: float
    """Share of KV pages in use, 0 to 1."""


class EngineReady(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message of an engine process: the model is loaded, the KV pool is allocated."""

    max_context_tokens: int
    kv_page_tokens: int
    num_kv_pages: int
    eos_token_ids: tuple[int, ...]
    load_report: str


EngineInbox = GenerateRequest | Cancel | Release
EngineOutbox = EngineReady | StepOutput | Failed


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """New text of a reply (may be empty) with the tokens it came from."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenText, ...] = ()


class TokenText(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A token as OpenAI's logprobs show it: its text, bytes and likeliest rivals."""

    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reply is complete."""

    finish_reason: FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    timings: tuple[StageTiming, ...] = ()


ChatEvent = TextDelta | Finished


class EncodedItem(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One entry of an encode worker's reply: `item_indices` are positions among the request's media parts."""

    ref: EmbeddingRef
    handle: str
    item_indices: tuple[int, ...]
    uuids: tuple[str, ...]
    peer_host: str
    peer_port: int
    timings: tuple[StageTiming, ...] = ()
