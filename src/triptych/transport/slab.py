"""One piece of anonymous shared memory: written by its owner, mapped read-only by everyone else.

The file has no name, so nothing is left behind however its holders die.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from contextlib import suppress
from typing import Final

import numpy as np

from triptych.errors import ConfigError
from triptych.transport.tensors import Bytes

# Linux constants that Python does not name: linux/fcntl.h, asm-generic/mman-common.h.
_F_SEAL_FUTURE_WRITE: Final = 0x10
_MADV_POPULATE_READ: Final = 22
_MADV_POPULATE_WRITE: Final = 23


class Slab:
    """A mapping. `memory` is [size] uint8; views of it keep the mapping alive after `close`."""

    def __init__(self, mapping: mmap.mmap, fd: int | None) -> None:
        self._mapping = mapping
        self._fd = fd
        self.memory: Bytes = np.frombuffer(mapping, np.uint8)

    @property
    def fd(self) -> int:
        """What to send to readers; the owner's only."""
        assert self._fd is not None
        return self._fd

    def close(self) -> None:
        """Let go of the memory. Can be called twice."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        self.memory = np.empty(0, np.uint8)
        # BufferError: a view is still in use; the mapping goes with it.
        with suppress(BufferError):
            self._mapping.close()


def make_slab(size_bytes: int) -> Slab:
    """A new slab of `size_bytes`, rounded up to pages, all resident. Nobody else can write or resize it.

    Raises:
        ConfigError: there is not that much memory, or the kernel cannot seal it.
    """
    size_bytes = max(1, -(-size_bytes // mmap.PAGESIZE)) * mmap.PAGESIZE
    try:
        fd = os.memfd_create("triptych-slab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        raise ConfigError(f"no shared memory: {error.strerror}") from error
    try:
        os.ftruncate(fd, size_bytes)
        mapping = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        # FUTURE_WRITE after mapping: our mapping stays writable, no later one can be.
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | _F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except OSError as error:
        os.close(fd)
        raise ConfigError(f"cannot set up {size_bytes} bytes of shared memory: {error.strerror}") from error
    _populate(mapping, _MADV_POPULATE_WRITE)
    return Slab(mapping, fd)


def map_slab(fd: int, size_bytes: int) -> Slab:
    """Map somebody's slab for reading. The caller keeps, and may close, `fd`.

    Raises:
        OSError: not a file of that size.
    """
    if os.fstat(fd).st_size < size_bytes:
        raise OSError(f"the slab has fewer than {size_bytes} bytes")
    mapping = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
    _populate(mapping, _MADV_POPULATE_READ)
    return Slab(mapping, None)


def _populate(mapping: mmap.mmap, advice: int) -> None:
    # Page faults once, here, instead of during every first copy. Kernels before 5.14 fault later.
    with suppress(OSError, ValueError):
        mapping.madvise(advice)
