from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from triptych.errors import ConfigError
from triptych.transport.slab import Slab, make_slab, map_slab


@pytest.fixture
def slab() -> Iterator[Slab]:
    slab = make_slab(100_000)
    yield slab
    slab.close()


def test_size_is_rounded_up_to_pages(slab: Slab) -> None:
    assert slab.memory.nbytes == -(-100_000 // mmap.PAGESIZE) * mmap.PAGESIZE


def test_reader_sees_what_the_owner_writes(slab: Slab) -> None:
    view = map_slab(slab.fd, slab.memory.nbytes)

    slab.memory[:] = 7

    assert (view.memory == 7).all()
    view.close()


def test_reader_cannot_write(slab: Slab) -> None:
    view = map_slab(slab.fd, slab.memory.nbytes)

    with pytest.raises(ValueError, match="read-only"):
        view.memory[0] = 1

    view.close()


def test_nobody_can_map_for_writing_write_resize_or_unseal(slab: Slab) -> None:
    with pytest.raises(PermissionError):
        mmap.mmap(slab.fd, slab.memory.nbytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.write(slab.fd, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(slab.fd, 0)
    with pytest.raises(PermissionError):
        os.ftruncate(slab.fd, slab.memory.nbytes * 2)
    with pytest.raises(PermissionError):
        fcntl.fcntl(slab.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_mapping_outlives_its_owner(slab: Slab) -> None:
    view = map_slab(slab.fd, slab.memory.nbytes)
    slab.memory[:] = 7

    slab.close()
    slab.close()

    assert (view.memory == 7).all()
    view.close()


def test_closing_under_a_view_leaves_the_view_alone(slab: Slab) -> None:
    part = slab.memory[:10]
    part[:] = 3

    slab.close()

    assert part.tolist() == [3] * 10
    assert slab.memory.nbytes == 0


def test_slab_smaller_than_announced_is_not_mapped(slab: Slab) -> None:
    with pytest.raises(OSError, match="fewer"):
        map_slab(slab.fd, slab.memory.nbytes + 1)


def test_memory_starts_as_zeros(slab: Slab) -> None:
    assert not np.any(slab.memory)


def test_more_memory_than_an_address_space_has_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="shared memory"):
        make_slab(2**62)
