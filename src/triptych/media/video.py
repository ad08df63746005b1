"""Video bytes → the frames a sampler asks for, with their real times."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from av.container import InputContainer
from av.error import FFmpegError
from av.packet import Packet
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from triptych.config import DecodeConfig
from triptych.errors import InternalError, MediaInvalid, MediaLimitExceeded
from triptych.media.canvas import Canvas, upright_size
from triptych.media.container import check_codec, open_container
from triptych.media.frame_table import FrameTable, PacketFacts, Run, Timeline, frame_table
from triptych.media.types import DecodedVideo, FrameSampler, VideoInfo

_THREADED_FROM_FRAMES = 64
"""Fewer frames are decoded before a second thread has paid for itself."""
_MAX_CODEC_THREADS = 4
"""Of one video; several videos are decoded side by side anyway."""


def decode_video(data: bytes, sampler: FrameSampler, config: DecodeConfig) -> DecodedVideo:
    """Decode the frames that `sampler` asks for.

    Packets are counted first; then only what the wanted frames need is decoded, and only they become RGB. If
    packets and decoded frames disagree (damage, invisible frames, missing times), every packet is decoded by
    itself, the frames that come out are the video, and the sampler is asked again.

    Raises:
        MediaInvalid: no video stream, or the data is damaged beyond recovery.
        MediaLimitExceeded: size, duration, sampled frames or decoded bytes exceed `config`.
    """
    survey = _survey(data, config)
    if survey.table is not None:
        decoded = _decode_by_table(data, survey, survey.table, sampler, config)
        if decoded is not None:
            return decoded
    return _decode_by_counting(data, survey, sampler, config)


@dataclass(frozen=True, slots=True)
class _Survey:
    """One look at all packets and the first frame. `height` and `width` are those of the upright frame."""

    table: FrameTable | None
    num_packets: int
    height: int
    width: int


def _survey(data: bytes, config: DecodeConfig) -> _Survey:
    packets: list[PacketFacts] = []
    first: VideoFrame | None = None
    with open_container(data) as container:
        stream = _video_stream(container, config)
        for packet in container.demux(stream):
            if first is None:
                first = next(iter(_decode(packet)), None)
            if packet.size > 0 and not packet.is_discard:
                packets.append(PacketFacts(packet.pts, packet.is_keyframe))
        table = frame_table(packets, stream.time_base or Fraction(1), _announced_rate(stream))
    if first is None:
        raise MediaInvalid("decode error: no frame of the video can be decoded")
    height, width = upright_size(first)
    return _Survey(table, len(packets), height, width)


def _decode_by_table(
    data: bytes, survey: _Survey, table: FrameTable, sampler: FrameSampler, config: DecodeConfig
) -> DecodedVideo | None:
    """None: the frames that come out are not those that the packets announce."""
    info = table.timeline.info(survey.height, survey.width)
    indices = _sample(sampler, info, config)
    canvas = Canvas(info.height, info.width, [table.timeline.pts[i] for i in indices])
    runs = table.plan(indices)
    is_complete = _decode_runs(data, runs, canvas, config)
    if not is_complete and len(runs) > 1:  # a demuxer that cannot seek exactly
        is_complete = _decode_runs(data, table.decode_through(indices), canvas, config)
    return _decoded(canvas, indices, table.timeline, info) if is_complete else None


def _decode_runs(data: bytes, runs: Sequence[Run], canvas: Canvas, config: DecodeConfig) -> bool:
    with open_container(data) as container:
        stream = _video_stream(container, config)
        if sum(run.num_frames for run in runs) >= _THREADED_FROM_FRAMES:
            stream.thread_type = "AUTO"
            stream.thread_count = min(_MAX_CODEC_THREADS, config.num_threads)
        try:
            for number, run in enumerate(runs):
                if number > 0 or len(runs) > 1:
                    container.seek(run.start_pts, stream=stream)
                if not _decode_run(container.demux(stream), run, canvas):
                    return False
        except FFmpegError:
            return False
    return True


def _decode_run(packets: Iterable[Packet[VideoStream]], run: Run, canvas: Canvas) -> bool:
    num_shown = 0
    for packet in packets:
        for frame in packet.decode():
            if frame.pts is None or frame.is_corrupt:
                return False
            if frame.pts in run.wanted:
                canvas.put(frame.pts, frame)
            num_shown += run.start_pts <= frame.pts <= run.last_pts
            if frame.pts >= run.last_pts:
                return num_shown == run.num_frames and frame.pts == run.last_pts
    return False


def _decode_by_counting(
    data: bytes, survey: _Survey, sampler: FrameSampler, config: DecodeConfig
) -> DecodedVideo:
    """Decode all twice: once to learn which frames there are, once to keep those wanted."""
    timeline, num_damaged = _list_frames(data, config)
    if num_damaged > len(timeline.pts):
        raise MediaInvalid("decode error: most of the video is damaged")
    num_lost = max(num_damaged, survey.num_packets - len(timeline.pts)) if num_damaged else 0
    info = timeline.info(survey.height, survey.width, num_lost)
    indices = _sample(sampler, info, config)
    canvas = Canvas(info.height, info.width, indices)
    wanted = frozenset(indices)
    with open_container(data) as container:
        stream = _video_stream(container, config)
        for index, frame in enumerate(_good_frames(container, stream)):
            if index in wanted:
                canvas.put(index, frame)
            if index == indices[-1]:
                return _decoded(canvas, indices, timeline, info)
    raise MediaInvalid("decode error: the video cannot be decoded twice alike")


def _list_frames(data: bytes, config: DecodeConfig) -> tuple[Timeline, int]:
    """The times of all frames that come out, and how many packets are damaged."""
    with open_container(data) as container:
        stream = _video_stream(container, config)
        damaged: list[Packet[VideoStream]] = []
        times = [frame.pts for frame in _good_frames(container, stream, damaged)]
        rate = _announced_rate(stream)
        if not times:
            raise MediaInvalid("decode error: no frame of the video can be decoded")
        known = [time for time in times if time is not None]
        if len(known) == len(times) and all(a < b for a, b in itertools.pairwise(known)):
            return Timeline(tuple(known), stream.time_base or Fraction(1), rate), len(damaged)
    return Timeline(tuple(range(len(times))), 1 / (rate or Fraction(1)), rate), len(damaged)


def _good_frames(
    container: InputContainer, stream: VideoStream, damaged: list[Packet[VideoStream]] | None = None
) -> Iterator[VideoFrame]:
    """Every frame that can be decoded, in presentation order; packets that cannot are added to `damaged`."""
    for packet in container.demux(stream):
        for frame in _decode(packet, damaged):
            if not frame.is_corrupt:
                yield frame
            elif damaged is not None:
                damaged.append(packet)


def _decode(
    packet: Packet[VideoStream], damaged: list[Packet[VideoStream]] | None = None
) -> list[VideoFrame]:
    try:
        return packet.decode()
    except FFmpegError:
        if damaged is not None:
            damaged.append(packet)
        return []


def _video_stream(container: InputContainer, config: DecodeConfig) -> VideoStream:
    """The (best) video stream, its size checked; a cover picture is none."""
    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    best = container.streams.best("video")
    stream = best if isinstance(best, VideoStream) and best in streams else next(iter(streams), None)
    if stream is None:
        raise MediaInvalid("no video stream")
    check_codec(stream)
    if (num_pixels := stream.width * stream.height) > config.max_video_pixels:
        raise MediaLimitExceeded(
            f"the video's {num_pixels} pixels a frame exceed the maximum of {config.max_video_pixels}"
        )
    # Later frames may be larger than the header says.
    stream.codec_context.options = {"max_pixels": str(config.max_video_pixels)}
    return stream


def _announced_rate(stream: VideoStream) -> Fraction | None:
    return stream.average_rate or stream.guessed_rate or None


def _sample(sampler: FrameSampler, info: VideoInfo, config: DecodeConfig) -> tuple[int, ...]:
    if info.duration_seconds > config.max_video_seconds:
        raise MediaLimitExceeded(
            f"the video's duration exceeds the maximum of {config.max_video_seconds:g} seconds"
        )
    indices = sampler(info)
    if not indices or list(indices) != sorted(indices) or indices[0] < 0 or indices[-1] >= info.num_frames:
        raise InternalError(f"the sampler chose {indices[:8]} of {info.num_frames} frames")
    if len(indices) > config.max_video_frames:
        raise MediaLimitExceeded(
            f"{len(indices)} sampled frames exceed the maximum of {config.max_video_frames}"
        )
    if len(indices) * info.height * info.width * 3 > config.max_decoded_bytes:
        raise MediaLimitExceeded(f"the sampled frames exceed {config.max_decoded_bytes} bytes")
    return indices


def _decoded(canvas: Canvas, indices: tuple[int, ...], timeline: Timeline, info: VideoInfo) -> DecodedVideo:
    return DecodedVideo(canvas.frames, indices, tuple(timeline.seconds(i) for i in indices), info)
