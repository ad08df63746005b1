"""What runs in a producer's process of its own: commands come through a pipe, one reply each."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection

import msgspec
import torch

from triptych.config import TransportConfig
from triptych.errors import TriptychError
from triptych.messages import TensorRef
from triptych.transport.shm import ShmProducer
from triptych.transport.slots import PoolUsage


class Reserve(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    key: str
    namespace: str
    dtype: str
    shape: tuple[int, ...]


class Publish(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    ref: TensorRef
    dtype: str
    shape: tuple[int, ...]
    data: bytes
    note: bytes


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    ref: TensorRef
    code: str
    message: str


class Withdraw(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    ref: TensorRef


class Usage(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Advance(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    seconds: float


class Close(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    address: str


class Reserved(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    ref: TensorRef


class Used(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    usage: PoolUsage


class Ok(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    pass


class Raised(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    code: str
    message: str


Command = Reserve | Publish | Fail | Withdraw | Usage | Advance | Close
Reply = Started | Reserved | Used | Ok | Raised


class SteppedClock:
    """Monotonic time that a test can move forward."""

    def __init__(self) -> None:
        self._ahead_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self._ahead_seconds

    def advance(self, seconds: float) -> None:
        self._ahead_seconds += seconds


def publish_command(ref: TensorRef, tensor: torch.Tensor, note: bytes) -> Publish:
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return Publish(
        ref=ref,
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=tuple(tensor.shape),
        data=flat.numpy().tobytes(),
        note=note,
    )


def serve(pipe: Connection, config: TransportConfig, token: bytes, address: str | None) -> None:
    """Until the pipe ends."""
    torch.set_num_threads(1)
    clock = SteppedClock()
    producer = ShmProducer(config, token, address=address, clock=clock)
    pipe.send_bytes(msgspec.msgpack.encode(Started(address=producer.address)))
    try:
        while True:
            command = msgspec.msgpack.decode(pipe.recv_bytes(), type=Command)
            pipe.send_bytes(msgspec.msgpack.encode(_answer(producer, clock, command)))
    except EOFError:
        producer.close()


def _answer(producer: ShmProducer, clock: SteppedClock, command: Command) -> Reply:
    try:
        return _run(producer, clock, command)
    except TriptychError as error:
        return Raised(code=error.code, message=error.message)
    except ValueError as error:
        return Raised(code="ValueError", message=str(error))


def _run(producer: ShmProducer, clock: SteppedClock, command: Command) -> Reply:
    match command:
        case Reserve():
            dtype: torch.dtype = getattr(torch, command.dtype)
            return Reserved(ref=producer.reserve(command.key, command.namespace, dtype, command.shape))
        case Publish():
            producer.publish(command.ref, _tensor(command), command.note)
        case Fail():
            producer.fail(command.ref, command.code, command.message)
        case Withdraw():
            producer.withdraw(command.ref)
        case Usage():
            return Used(usage=producer.usage())
        case Advance():
            clock.advance(command.seconds)
        case Close():
            producer.close()
    return Ok()


def _tensor(command: Publish) -> torch.Tensor:
    dtype: torch.dtype = getattr(torch, command.dtype)
    if not command.data:
        return torch.empty(command.shape, dtype=dtype)
    return torch.frombuffer(bytearray(command.data), dtype=dtype).reshape(command.shape)
