"""Audio of any container → mono samples at the model's rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import soxr
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from numpy.typing import NDArray

from triptych.config import DecodeConfig
from triptych.errors import MediaInvalid, MediaLimitExceeded
from triptych.media.container import check_codec, open_container
from triptych.media.types import DecodedAudio

_SAMPLE_BYTES: Final = 4
_DURATION_UNIT: Final = 1_000_000
"""Of a container's duration, per second."""
_MAX_DAMAGED_SHARE: Final = 0.05
_MAX_DAMAGED_PACKETS: Final = 2
"""Of a short file. Streams that were cut out of longer ones begin with packets that cannot be decoded."""


def decode_audio(data: bytes, target_rate_hz: int, config: DecodeConfig) -> DecodedAudio:
    """Decode the (best) audio stream of a file, mix to mono by mean, then resample.

    A few damaged packets are left out, as players do; more are an error, not silence.

    Raises:
        MediaInvalid: no audio stream, no samples, or the data is damaged.
        MediaLimitExceeded: longer than `config.max_audio_seconds`, by its header or while it is decoded.
    """
    with open_container(data) as container:
        stream = container.streams.best("audio")
        if not isinstance(stream, AudioStream):
            raise MediaInvalid("no audio stream")
        check_codec(stream)
        if (container.duration or 0) > config.max_audio_seconds * _DURATION_UNIT:
            raise _too_long(config)
        samples, rate_hz = _mono_samples(container, stream, config)
    if not np.isfinite(samples).all():
        raise MediaInvalid("decode error: the audio has samples that are no numbers")
    if rate_hz != target_rate_hz:
        samples = soxr.resample(samples, rate_hz, target_rate_hz, quality="HQ")
    if len(samples) == 0:
        raise MediaInvalid("empty audio: it has no samples")
    return DecodedAudio(np.ascontiguousarray(samples, dtype=np.float32), target_rate_hz)


def _mono_samples(
    container: InputContainer, stream: AudioStream, config: DecodeConfig
) -> tuple[NDArray[np.float32], int]:
    chunks: list[NDArray[np.float32]] = []
    num_samples = 0
    rate_hz = 0
    for frame in _frames(container, stream):
        if rate_hz not in (0, frame.sample_rate):
            raise MediaInvalid("the sample rate changes within the audio")
        rate_hz = frame.sample_rate
        num_samples += frame.samples
        _check_length(num_samples, rate_hz, config)
        chunks.append(_mono(frame))
    if num_samples == 0:
        raise MediaInvalid("empty audio: it has no samples")
    return np.concatenate(chunks), rate_hz


def _check_length(num_samples: int, rate_hz: int, config: DecodeConfig) -> None:
    if num_samples > config.max_audio_seconds * rate_hz:
        raise _too_long(config)
    if num_samples * _SAMPLE_BYTES > config.max_decoded_bytes:
        raise MediaLimitExceeded(f"the audio has more than {config.max_decoded_bytes} bytes decoded")


def _too_long(config: DecodeConfig) -> MediaLimitExceeded:
    return MediaLimitExceeded(
        f"the audio's duration exceeds the maximum of {config.max_audio_seconds:g} seconds"
    )


def _frames(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    num_good = num_damaged = 0
    for packet in container.demux(stream):
        try:
            frames = packet.decode()
            num_good += 1
        except FFmpegError:
            num_damaged += 1
            continue
        yield from frames
    if num_damaged > max(_MAX_DAMAGED_PACKETS, _MAX_DAMAGED_SHARE * num_good):
        raise MediaInvalid(f"decode error: {num_damaged} packets of the audio are damaged")


def _mono(frame: AudioFrame) -> NDArray[np.float32]:
    """[samples], float32, the mean over channels; integers scaled to -1 to 1."""
    samples = frame.to_ndarray()
    if not frame.format.is_planar:
        samples = samples.reshape(-1, frame.layout.nb_channels).T
    mean = samples[0].astype(np.float64)
    for channel in samples[1:]:  # few and long: faster than a reduction over the short axis
        mean += channel
    mean /= len(samples)
    if samples.dtype == np.uint8:
        mean = mean / 128 - 1
    elif samples.dtype.kind == "i":
        mean = mean / 2 ** (8 * samples.dtype.itemsize - 1)
    return mean.astype(np.float32)
