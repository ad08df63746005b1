"""Audio files made on the spot."""

from __future__ import annotations

import io
from collections.abc import Sequence

import av
import numpy as np
import soundfile
from av.audio.frame import AudioFrame
from av.audio.stream import AudioStream
from numpy.typing import NDArray

CODEC_OF = {"mp3": "libmp3lame", "mp4": "aac", "ipod": "alac", "ogg": "libopus", "webm": "libopus"}
"""Container as FFmpeg names it → the codec to put in it."""


def sine(
    rate_hz: int, amplitude: float = 0.5, seconds: float = 1.0, frequency_hz: float = 1000
) -> NDArray[np.float32]:
    time = np.arange(round(rate_hz * seconds)) / rate_hz
    return (amplitude * np.sin(2 * np.pi * frequency_hz * time)).astype(np.float32)


def sound(
    channels: Sequence[NDArray[np.float32]], rate_hz: int, kind: str = "WAV", subtype: str = "PCM_16"
) -> bytes:
    """A WAV, FLAC or OGG file of these channels."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.stack(channels, axis=1), rate_hz, format=kind, subtype=subtype)
    return buffer.getvalue()


def muxed(samples: NDArray[np.float32], rate_hz: int, container: str, *, is_live: bool = False) -> bytes:
    """Channels [num_channels, num_samples] in a container of `CODEC_OF`; live WebM states no duration."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options={"live": "1"} if is_live else {}) as output:
        stream = output.add_stream(CODEC_OF[container], rate=rate_hz)
        assert isinstance(stream, AudioStream)
        layout = "mono" if len(samples) == 1 else "stereo"
        stream.layout = layout
        frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
        frame.sample_rate = rate_hz
        for packet in (*stream.encode(frame), *stream.encode(None)):
            output.mux(packet)
    return buffer.getvalue()


def peak_hz(samples: NDArray[np.float32], rate_hz: int) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * rate_hz / len(samples))
