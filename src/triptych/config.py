"""One frozen config a component, composed in `WorkerConfig` and `RouterConfig`; environment is read here."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from triptych.errors import ConfigError

Role = Literal["encode", "prefill-decode", "all"]
"""`all` is encode + prefill-decode behind one address (layout `none`)."""
Layout = Literal["none", "e+pd"]
SECRET_VARIABLE = "TRIPTYCH_CLUSTER_SECRET"
MIN_SECRET_BYTES = 16


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """Limits and permissions of fetching media bytes."""

    allowed_hosts: tuple[str, ...] = ()
    """Host names allowed in URLs; empty: any public host."""
    allowed_networks: tuple[str, ...] = ()
    """CIDR networks that may be dialled although private, loopback or link-local."""
    file_root: Path | None = None
    """`file:` URLs are served from below this directory only; None: refused."""
    max_source_bytes: int = 256 * 1024 * 1024
    connect_seconds: float = 5.0
    total_seconds: float = 30.0
    max_attempts: int = 3
    backoff_seconds: float = 0.2
    max_redirects: int = 5
    max_concurrent: int = 64


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Limits of decoding, checked from headers before memory is taken."""

    max_image_pixels: int = 100_000_000
    max_video_pixels: int = 4096 * 2304
    max_video_frames: int = 768
    """Sampled frames kept in memory."""
    max_video_seconds: float = 3600.0
    max_audio_seconds: float = 600.0
    max_decoded_bytes: int = 2 * 1024**3
    """Of one item, decoded."""
    alpha_background: tuple[int, int, int] = (255, 255, 255)
    num_threads: int = field(default_factory=lambda: max(2, available_cores()))


@dataclass(frozen=True, slots=True)
class MediaConfig:
    fetch: FetchConfig = field(default_factory=FetchConfig)
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    max_items: int = 128
    """Media items in one request, all modalities together."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What to load and how. `path` is a local directory."""

    path: Path
    served_name: str
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    num_threads: int = 1
    """Intra-op threads of each process's forward passes. 1: several processes share the cores."""


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    max_batch_tokens: int = 512
    """Embedding rows of one forward pass (a larger item goes alone). A CPU gains nothing from larger batches,
    and every item of a batch waits for the last."""
    num_lanes: int = 0
    """Forward passes at a time; 0 is filled in by `resolve`."""
    batch_wait_seconds: float = 0.002
    """How long the batch former waits for company."""
    max_queue_items: int = 1024
    cache_bytes: int = 256 * 1024 * 1024
    """Local tier of the encoder cache; 0 switches it off."""


@dataclass(frozen=True, slots=True)
class LanguageConfig:
    max_context_tokens: int = 32_768
    """Prompt plus output of one request; the model's own limit if that is lower."""
    max_batch_tokens: int = 2048
    """Prefill chunk tokens plus decodes of one step."""
    max_running: int = 64
    max_waiting: int = 1024
    kv_page_tokens: int = 16
    kv_pool_bytes: int = 512 * 1024 * 1024
    max_embedding_bytes: int = 1024**3
    """Fetched embeddings held for requests that are not prefilled yet."""
    num_fetch_threads: int = 64
    """Fetches at a time; most of them wait for encoders, so that few would hold up what is ready."""


@dataclass(frozen=True, slots=True)
class TransportConfig:
    pool_bytes: int = 512 * 1024 * 1024
    lease_seconds: float = 30.0
    max_wait_seconds: float = 60.0
    """Upper bound of one fetch, whatever the request's deadline."""


@dataclass(frozen=True, slots=True)
class ServerConfig:
    host: str = "127.0.0.1"
    port: int = 8000
    max_body_bytes: int = 512 * 1024 * 1024
    max_requests: int = 1024
    """Requests in flight; more get 429."""
    drain_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    role: Role
    model: ModelConfig
    secret: bytes = field(repr=False)
    server: ServerConfig = field(default_factory=ServerConfig)
    media: MediaConfig = field(default_factory=MediaConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    language: LanguageConfig = field(default_factory=LanguageConfig)
    transport: TransportConfig = field(default_factory=TransportConfig)


@dataclass(frozen=True, slots=True)
class RouterConfig:
    encode_urls: tuple[str, ...]
    prefill_decode_urls: tuple[str, ...]
    server: ServerConfig = field(default_factory=ServerConfig)
    health_interval_seconds: float = 1.0
    health_timeout_seconds: float = 2.0
    encode_timeout_seconds: float = 120.0


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve(config: WorkerConfig, num_cores: int) -> WorkerConfig:
    """`config` with everything that depends on the machine filled in.

    On a CPU the encoder gets a lane for every core that one pass leaves free: passes of one thread each keep
    all cores busy without waiting for each other. A device runs one pass at a time.
    """
    if config.encoder.num_lanes:
        return config
    on_cpu = config.model.device == "cpu"
    num_lanes = max(1, num_cores // config.model.num_threads) if on_cpu else 1
    return replace(config, encoder=replace(config.encoder, num_lanes=num_lanes))


def cluster_secret(secret_file: Path | None = None) -> bytes | None:
    """The secret that signs handles: from a file, else from the environment; None if neither is given.

    Raises:
        ConfigError: the secret is shorter than 16 bytes, or the file cannot be read.
    """
    if secret_file is not None:
        try:
            value = secret_file.read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"cannot read the secret file {secret_file}: {error.strerror}") from error
    else:
        value = os.environ.get(SECRET_VARIABLE, "").encode()
        if not value:
            return None
    if len(value) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"the cluster secret has {len(value)} bytes; at least {MIN_SECRET_BYTES} are needed"
        )
    return value


def new_secret() -> bytes:
    """A secret for one start of one machine."""
    return secrets.token_hex(32).encode()
