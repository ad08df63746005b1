"""Audio and video files as FFmpeg opens them: from memory only, and with its errors made ours."""

from __future__ import annotations

import io
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import av
from av.codec.context import CodecContext
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Stream

from triptych.errors import MediaInvalid

_CONTAINERS: Final = (
    "aac,ac3,aiff,amr,ape,apng,asf,au,avi,caf,dv,eac3,flac,flv,gif,h264,hevc,ivf,loas,m4v,matroska,mov,mp3,mpeg,"
    "mpegts,mpegvideo,nut,obu,ogg,rm,tta,voc,w64,wav,webm,wv"
)
"""Demuxers that read one self-contained file. Playlists and scripts (hls, concat, dash) would open others."""

_OPTIONS: Final = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}


@contextmanager
def open_container(data: bytes) -> Generator[InputContainer]:
    """Open a file held in memory.

    Raises:
        MediaInvalid: not a container that is accepted, or damaged; also for FFmpeg errors inside the block.
    """
    try:
        with av.open(io.BytesIO(data), mode="r", options=_OPTIONS, metadata_errors="replace") as container:
            yield container
    except FFmpegError as error:
        raise MediaInvalid("invalid data: the file is damaged, truncated or of an unknown format") from error


def check_codec(stream: Stream) -> None:
    """
    Raises:
        MediaInvalid: there is no decoder for the stream.
    """
    # The type denies it, but a stream without a decoder has no context.
    if not isinstance(stream.codec_context, CodecContext):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise MediaInvalid(f"the {stream.type} has a codec that is not supported")
