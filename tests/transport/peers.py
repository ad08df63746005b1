"""Producers that a test drives, with a clock that it steps: in this process, or in one that it can kill."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec
import torch

from tests.transport import producer_program as program
from triptych.config import TransportConfig
from triptych.errors import error_from_code
from triptych.messages import TensorRef
from triptych.transport.inproc import InprocExchange, InprocProducer
from triptych.transport.interface import Consumer
from triptych.transport.slots import PoolUsage

T = TypeVar("T")
CONFIG = TransportConfig(pool_bytes=1024 * 1024, lease_seconds=30, max_wait_seconds=60)
TOKEN = b"a token of the tests"
PATIENCE_SECONDS = 30.0
"""Far above what anything here takes; reached only when a test fails."""


def eventually(condition: Callable[[], bool]) -> None:
    """Look again and again until it holds."""
    pause = threading.Event()
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, "it never came true"
        pause.wait(0.005)


def processes() -> ForkServerContext:
    """Children start from a process that has torch loaded and no threads, which takes milliseconds."""
    context = multiprocessing.get_context("forkserver")
    # pytest too: every child imports the main module of its parent.
    context.set_forkserver_preload(["triptych.transport.shm", "pytest"])
    return context


class Peer(Protocol):
    """A producer and its clock."""

    @property
    def address(self) -> str: ...

    def reserve(
        self, dtype: torch.dtype, shape: tuple[int, ...], key: str = "key", namespace: str = "ns"
    ) -> TensorRef: ...

    def publish(self, ref: TensorRef, tensor: torch.Tensor, note: bytes = b"") -> None: ...

    def fail(self, ref: TensorRef, code: str, message: str) -> None: ...

    def withdraw(self, ref: TensorRef) -> None: ...

    def usage(self) -> PoolUsage: ...

    def advance(self, seconds: float) -> None: ...

    def close_producer(self) -> None: ...

    def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Pair:
    """`restart` makes another producer at the same address, after the first has closed."""

    peer: Peer
    consumer: Consumer
    restart: Callable[[], Peer]


class InprocPeer:
    def __init__(self, exchange: InprocExchange, *, address: str | None = None) -> None:
        self._clock = program.SteppedClock()
        self._producer = InprocProducer(CONFIG, exchange, address=address, clock=self._clock)

    @property
    def address(self) -> str:
        return self._producer.address

    def reserve(
        self, dtype: torch.dtype, shape: tuple[int, ...], key: str = "key", namespace: str = "ns"
    ) -> TensorRef:
        return self._producer.reserve(key, namespace, dtype, shape)

    def publish(self, ref: TensorRef, tensor: torch.Tensor, note: bytes = b"") -> None:
        self._producer.publish(ref, tensor, note)

    def fail(self, ref: TensorRef, code: str, message: str) -> None:
        self._producer.fail(ref, code, message)

    def withdraw(self, ref: TensorRef) -> None:
        self._producer.withdraw(ref)

    def usage(self) -> PoolUsage:
        return self._producer.usage()

    def advance(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def close_producer(self) -> None:
        self._producer.close()

    def stop(self) -> None:
        self._producer.close()


class ShmPeer:
    """A `ShmProducer` in a process of its own."""

    def __init__(self, *, address: str | None = None, config: TransportConfig = CONFIG) -> None:
        context = processes()
        ours, theirs = context.Pipe()
        self._pipe: Connection = ours
        self._stopped = False
        self._process = context.Process(target=program.serve, args=(theirs, config, TOKEN, address))
        self._process.start()
        theirs.close()
        self._address = self._reply(program.Started).address

    @property
    def address(self) -> str:
        return self._address

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def reserve(
        self, dtype: torch.dtype, shape: tuple[int, ...], key: str = "key", namespace: str = "ns"
    ) -> TensorRef:
        name = str(dtype).removeprefix("torch.")
        self._send(program.Reserve(key=key, namespace=namespace, dtype=name, shape=shape))
        return self._reply(program.Reserved).ref

    def publish(self, ref: TensorRef, tensor: torch.Tensor, note: bytes = b"") -> None:
        self._do(program.publish_command(ref, tensor, note))

    def fail(self, ref: TensorRef, code: str, message: str) -> None:
        self._do(program.Fail(ref=ref, code=code, message=message))

    def withdraw(self, ref: TensorRef) -> None:
        self._do(program.Withdraw(ref=ref))

    def usage(self) -> PoolUsage:
        self._send(program.Usage())
        return self._reply(program.Used).usage

    def advance(self, seconds: float) -> None:
        self._do(program.Advance(seconds=seconds))

    def close_producer(self) -> None:
        self._do(program.Close())

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        eventually(lambda: process_state(self.pid) == "T")

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Kill it and keep no descriptor of it. Can be called twice."""
        if not self._stopped:
            self._stopped = True
            self.kill()
            self._process.close()
            self._pipe.close()

    def _do(self, command: program.Command) -> None:
        self._send(command)
        self._reply(program.Ok)

    def _send(self, command: program.Command) -> None:
        self._pipe.send_bytes(msgspec.msgpack.encode(command))

    def _reply(self, kind: type[T]) -> T:
        assert self._pipe.poll(PATIENCE_SECONDS), "the producer process does not answer"
        reply = msgspec.msgpack.decode(self._pipe.recv_bytes(), type=program.Reply)
        if isinstance(reply, program.Raised):
            if reply.code == "ValueError":
                raise ValueError(reply.message)
            raise error_from_code(reply.code, reply.message)
        assert isinstance(reply, kind)
        return reply


def process_state(pid: int) -> str:
    """One letter of /proc/<pid>/stat: R, S, T (stopped), ..."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def num_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def private_bytes(pid: int) -> int:
    """Resident anonymous memory: what a leak would grow (the slab is shared, so not counted)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")
