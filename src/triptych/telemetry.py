"""Every metric name with its unit and meaning, and the names of the stages that timings use."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from triptych.messages import StageTiming

FETCH: Final = "fetch"
MEDIA_DECODE: Final = "media_decode"
PROCESS: Final = "process"
ENCODE: Final = "encode"
TRANSFER: Final = "transfer"
QUEUE: Final = "queue"
PREFILL: Final = "prefill"
DECODE: Final = "decode"
RESPONSE: Final = "response"

STAGES: Final = (FETCH, MEDIA_DECODE, PROCESS, ENCODE, TRANSFER, QUEUE, PREFILL, DECODE, RESPONSE)
"""In the order in which a request meets them:

fetch         bytes of the media items (wall time over all items, they run together)
media_decode  bytes → pixels, frames, samples
process       resize, normalise, patchify, mel
encode        encoder forward, its queue included
transfer      from admission in the engine until the embeddings are there, less what the encoder still worked
queue         from having everything until the first prefill chunk runs
prefill       first chunk → first token
decode        first token → last token
response      the rest: HTTP, templates, tokenising, routing
"""

TOGETHER: Final = frozenset((FETCH, MEDIA_DECODE, ENCODE))
"""Stages in which a request's items run side by side: the longest counts. In the others they add up."""

STAGE_SECONDS: Final = "triptych_stage_seconds"  # histogram, label stage: time of one request in one stage
REQUESTS: Final = "triptych_requests"  # counter, labels role, code ("ok" or an error code)
ENCODED_ITEMS: Final = "triptych_encoded_items"  # counter, label modality: encoder outputs made
ENCODER_CACHE_HITS: Final = "triptych_encoder_cache_hits"  # counter, label modality
PUBLISHED_BYTES: Final = "triptych_published_bytes"  # counter: embedding bytes published
OUTPUT_TOKENS: Final = "triptych_output_tokens"  # counter: tokens generated
REQUESTS_RUNNING: Final = "vllm:num_requests_running"  # gauge, the name that existing routers read
REQUESTS_WAITING: Final = "vllm:num_requests_waiting"  # gauge
KV_USAGE: Final = "vllm:kv_cache_usage_perc"  # gauge, 0 to 1
KV_CONFIG: Final = "vllm:cache_config_info"  # gauge 1 with labels block_size, num_gpu_blocks


class Metrics:
    """The Prometheus collectors of one process. Thread-safe, as the client library is."""

    def __init__(self, registry: CollectorRegistry, role: str = "all") -> None:
        """`role` is a worker's, or "router": series that it never writes are not exposed as zeros."""
        self.registry = registry
        unseen = CollectorRegistry()
        encoding = registry if role in ("all", "encode") else unseen
        generating = registry if role in ("all", "prefill-decode") else unseen
        working = unseen if role == "router" else registry
        self._stage = Histogram(
            STAGE_SECONDS,
            "Time of one request in one stage, seconds",
            ["stage"],
            registry=working,
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100),
        )
        self._requests = Counter(REQUESTS, "Requests ended", ["role", "code"], registry=registry)
        self._encoded = Counter(ENCODED_ITEMS, "Items encoded", ["modality"], registry=encoding)
        self._hits = Counter(
            ENCODER_CACHE_HITS, "Items found in the encoder cache", ["modality"], registry=encoding
        )
        self._published = Counter(PUBLISHED_BYTES, "Embedding bytes published", registry=encoding)
        self._tokens = Counter(OUTPUT_TOKENS, "Tokens generated", registry=generating)
        self._running = Gauge(REQUESTS_RUNNING, "Requests in the running batch", registry=generating)
        self._waiting = Gauge(REQUESTS_WAITING, "Requests waiting for the engine", registry=generating)
        self._kv_usage = Gauge(KV_USAGE, "Share of KV pages in use", registry=generating)
        self._kv_config = Gauge(
            KV_CONFIG, "KV cache layout", ["block_size", "num_gpu_blocks"], registry=generating
        )

    def observe(self, timings: tuple[StageTiming, ...]) -> None:
        for timing in timings:
            self._stage.labels(timing.stage).observe(timing.milliseconds / 1000)

    def request_ended(self, role: str, code: str) -> None:
        self._requests.labels(role, code).inc()

    def item_encoded(self, modality: str, size_bytes: int) -> None:
        self._encoded.labels(modality).inc()
        self._published.inc(size_bytes)

    def item_cached(self, modality: str) -> None:
        self._hits.labels(modality).inc()

    def engine_step(self, num_tokens: int, num_running: int, num_waiting: int, kv_usage: float) -> None:
        self._tokens.inc(num_tokens)
        self._running.set(num_running)
        self._waiting.set(num_waiting)
        self._kv_usage.set(kv_usage)

    def kv_layout(self, page_tokens: int, num_pages: int) -> None:
        self._kv_config.labels(str(page_tokens), str(num_pages)).set(1)
