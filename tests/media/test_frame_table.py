from __future__ import annotations

from fractions import Fraction

import pytest

from triptych.media.frame_table import FrameTable, PacketFacts, Timeline, frame_table

MILLISECOND = Fraction(1, 1000)


def table(packets: list[tuple[int, bool]]) -> FrameTable:
    found = frame_table([PacketFacts(pts, is_key) for pts, is_key in packets], MILLISECOND, Fraction(25))
    assert found is not None
    return found


def regular(num_frames: int, keyframe_every: int) -> FrameTable:
    return table([(i * 40, i % keyframe_every == 0) for i in range(num_frames)])


def test_times_are_in_presentation_order() -> None:
    found = table([(0, True), (120, False), (40, False), (80, False)])
    assert found.timeline.pts == (0, 40, 80, 120)
    assert found.timeline.seconds(3) == pytest.approx(0.12)


@pytest.mark.parametrize("pts", [[], [0, None, 80], [0, 40, 40]])
def test_packets_that_do_not_place_their_frames_give_no_table(pts: list[int | None]) -> None:
    assert frame_table([PacketFacts(time, True) for time in pts], MILLISECOND, None) is None


@pytest.mark.parametrize(
    ("pts", "announced", "expected"),
    [
        ((0, 33, 67, 100), Fraction(30), Fraction(30)),
        ((0, 100, 200, 2000), Fraction(30), Fraction(3, 2)),
        ((0, 500), None, Fraction(2)),
        ((7,), Fraction(24), Fraction(24)),
        ((7,), None, Fraction(1)),
    ],
)
def test_rate_is_the_announced_one_where_rounding_explains_the_times(
    pts: tuple[int, ...], announced: Fraction | None, expected: Fraction
) -> None:
    assert Timeline(pts, MILLISECOND, announced).rate == expected


def test_far_frames_are_reached_by_seeking() -> None:
    runs = regular(1000, 50).plan((10, 510, 999))
    assert [(run.start_pts, run.last_pts, run.num_frames) for run in runs] == [
        (0, 400, 11),
        (20_000, 20_400, 11),
        (38_000, 39_960, 50),
    ]
    assert [run.wanted for run in runs] == [{400}, {20_400}, {39_960}]


def test_neighbours_share_a_run() -> None:
    runs = regular(1000, 50).plan((500, 502, 549, 551, 990))
    assert [sorted(run.wanted) for run in runs] == [[20_000, 20_080, 21_960, 22_040], [39_600]]


@pytest.mark.parametrize(
    ("num_frames", "keyframe_every", "indices"),
    [(60, 10, (0, 59)), (1000, 1000, (0, 500, 999)), (1000, 50, tuple(range(0, 1000, 10)))],
)
def test_video_is_decoded_through_where_seeking_saves_little(
    num_frames: int, keyframe_every: int, indices: tuple[int, ...]
) -> None:
    runs = regular(num_frames, keyframe_every).plan(indices)
    assert len(runs) == 1
    assert (runs[0].start_pts, runs[0].num_frames) == (0, indices[-1] + 1)


def test_frame_shown_before_its_keyframe_starts_at_the_one_before() -> None:
    # decode order: 199 plain frames, then I(8000) B(7960): the B frame needs the pictures before the I frame
    packets = [(i * 40, i % 50 == 0) for i in range(199)] + [(8000, True), (7960, False)]
    packets += [(8000 + 40 * i, False) for i in range(1, 100)]
    (run,) = table(packets).plan((199,))
    assert (run.start_pts, run.num_frames) == (150 * 40, 50)
    (run,) = table(packets).plan((200,))
    assert (run.start_pts, run.num_frames) == (8000, 1)
