from __future__ import annotations

import io

import av
import numpy as np
import pytest

from tests.media.make_audio import muxed, peak_hz, sine, sound
from tests.media.make_video import video, with_packets_filled
from triptych.config import DecodeConfig
from triptych.errors import MediaInvalid, MediaLimitExceeded
from triptych.media.audio import decode_audio

CONFIG = DecodeConfig()


def constant(value: float, num_samples: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.full(num_samples, value, np.float32)


@pytest.mark.parametrize(
    ("kind", "subtype"), [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("WAV", "FLOAT"), ("FLAC", "PCM_16")]
)
def test_stereo_becomes_mono_by_mean(kind: str, subtype: str) -> None:
    data = sound([constant(0.5, 48_000), constant(-0.25, 48_000)], 48_000, kind, subtype)
    audio = decode_audio(data, 48_000, CONFIG)
    assert audio.samples.shape == (48_000,)
    assert audio.samples.dtype == np.float32
    np.testing.assert_allclose(audio.samples, 0.125, atol=1e-4)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "PCM_U8"])
def test_integers_are_scaled_to_one(subtype: str) -> None:
    audio = decode_audio(sound([sine(16_000)], 16_000, subtype=subtype), 16_000, CONFIG)
    tolerance = 1e-2 if subtype == "PCM_U8" else 1e-3
    assert abs(np.abs(audio.samples).max() - 0.5) < tolerance
    assert abs(audio.samples.mean()) < tolerance


@pytest.mark.parametrize("container", ["wav", "ipod", "mp4"])
def test_downmix_is_the_mean_in_every_container(container: str) -> None:
    channels = [sine(48_000, 0.5), sine(48_000, 0.25)]
    data = sound(channels, 48_000) if container == "wav" else muxed(np.stack(channels), 48_000, container)
    audio = decode_audio(data, 16_000, CONFIG)
    assert audio.sample_rate_hz == 16_000
    assert abs(len(audio.samples) - 16_000) <= (400 if container == "mp4" else 0)
    middle = audio.samples[2000:14_000]
    assert peak_hz(middle, 16_000) == pytest.approx(1000, abs=2)
    amplitude = np.sqrt(2 * np.mean(middle**2))  # the peak of a lossy codec's sine wavers
    assert amplitude == pytest.approx(0.375, abs=0.01)


def test_resampled_sine_matches_the_sine_of_that_rate() -> None:
    audio = decode_audio(sound([sine(44_100)], 44_100), 16_000, CONFIG)
    assert len(audio.samples) == 16_000
    np.testing.assert_allclose(audio.samples[500:-500], sine(16_000)[500:-500], atol=2e-3)


@pytest.mark.parametrize("container", ["mp3", "mp4", "ipod", "ogg", "webm"])
def test_every_container_decodes(container: str) -> None:
    audio = decode_audio(muxed(sine(48_000)[None], 48_000, container), 48_000, CONFIG)
    assert len(audio.samples) == pytest.approx(48_000, abs=1400)
    assert peak_hz(audio.samples, 48_000) == pytest.approx(1000, abs=2)
    assert 0.45 < np.abs(audio.samples[4000:-4000]).max() < 0.55


def test_file_without_samples_is_refused() -> None:
    with pytest.raises(MediaInvalid, match="empty audio"):
        decode_audio(sound([constant(0, 0)], 16_000), 16_000, CONFIG)


@pytest.mark.parametrize(("kind", "subtype", "seconds"), [("FLAC", "PCM_16", 600), ("OGG", "OPUS", 30)])
def test_long_silence_is_refused_by_its_duration(kind: str, subtype: str, seconds: int) -> None:
    data = sound([constant(0, (seconds + 60) * 16_000)], 16_000, kind, subtype)
    assert len(data) < 100_000
    with pytest.raises(MediaLimitExceeded, match="duration"):
        decode_audio(data, 16_000, DecodeConfig(max_audio_seconds=seconds))


def test_duration_is_checked_while_decoding_when_the_header_is_silent() -> None:
    data = muxed(np.zeros((1, 5 * 48_000), np.float32), 48_000, "webm", is_live=True)
    with av.open(io.BytesIO(data), "r") as container:
        assert container.duration is None
    with pytest.raises(MediaLimitExceeded, match="duration"):
        decode_audio(data, 16_000, DecodeConfig(max_audio_seconds=2))


def test_decoded_bytes_are_bounded() -> None:
    with pytest.raises(MediaLimitExceeded, match="bytes"):
        decode_audio(sound([sine(16_000)], 16_000), 16_000, DecodeConfig(max_decoded_bytes=10_000))


def test_video_without_sound_is_refused() -> None:
    with pytest.raises(MediaInvalid, match="no audio stream"):
        decode_audio(video(3), 16_000, CONFIG)


@pytest.mark.parametrize(
    "data", [b"", b"not audio", b"RIFF\0\0\0\0WAVE", b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n"]
)
def test_bytes_that_are_no_audio_are_refused(data: bytes) -> None:
    with pytest.raises(MediaInvalid):
        decode_audio(data, 16_000, CONFIG)


def test_samples_that_are_no_numbers_are_refused() -> None:
    samples = sine(16_000)
    samples[100] = np.nan
    with pytest.raises(MediaInvalid, match="no numbers"):
        decode_audio(sound([samples], 16_000, subtype="FLOAT"), 16_000, CONFIG)


def test_one_damaged_packet_is_left_out() -> None:
    whole = muxed(sine(48_000)[None], 48_000, "mp4")
    num_whole = len(decode_audio(whole, 48_000, CONFIG).samples)
    damaged = with_packets_filled(whole, [20], 0xFF)
    assert num_whole - 3 * 1024 <= len(decode_audio(damaged, 48_000, CONFIG).samples) < num_whole


def test_audio_with_many_damaged_packets_is_refused() -> None:
    data = bytearray(muxed(sine(48_000)[None], 48_000, "mp3"))
    middle = len(data) // 2
    data[middle : middle + 300] = bytes(300)
    with pytest.raises(MediaInvalid, match="decode error"):
        decode_audio(bytes(data), 48_000, CONFIG)
