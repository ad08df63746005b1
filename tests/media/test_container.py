from __future__ import annotations

from pathlib import Path

import pytest

from tests.media.make_video import video
from triptych.errors import MediaInvalid
from triptych.media.container import open_container


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi", "mpegts", "asf"])
def test_file_in_memory_opens(container: str) -> None:
    with open_container(video(20, container=container)) as opened:
        assert len(opened.streams.video) == 1


def test_playlists_open_no_other_file(tmp_path: Path) -> None:
    inner = tmp_path / "inner.ts"
    inner.write_bytes(video(20, container="mpegts"))
    playlists = (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile://{inner}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {inner}\n",
        f"<?xml version='1.0'?><MPD><BaseURL>file://{inner}</BaseURL></MPD>",
    )
    for playlist in playlists:
        with pytest.raises(MediaInvalid, match="invalid data"), open_container(playlist.encode()):
            pass


def test_errors_inside_the_block_become_ours() -> None:
    with pytest.raises(MediaInvalid, match="invalid data"), open_container(video(3)) as opened:
        opened.seek(2**62, backward=False)
