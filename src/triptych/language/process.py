"""The engine process: serves one front over a stream socket until that front goes away."""

from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from typing import Final

import msgspec

from triptych.errors import StartupError, TriptychError
from triptych.language.engine import Engine, failed_event
from triptych.language.link import FrameSplitter, frame
from triptych.messages import Cancel, EngineInbox, Failed, GenerateRequest, Release

logger = logging.getLogger(__name__)

MAX_INBOX_MESSAGES: Final = 4096
"""A front that sends more than the engine takes is held up by its socket."""
_MAX_IDLE_SECONDS: Final = 60.0
_READ_BYTES: Final = 1 << 16


def serve_engine(engine: Engine, sock: socket.socket, load_report: str = "") -> None:
    """Serve `sock` until its other end closes; then close the engine and the socket.

    Sends `EngineReady`, then one `StepOutput` a step. Steps while there is work, sleeps when there is none.
    """
    inbox = _Inbox(sock, engine.wakeup)
    reader = threading.Thread(target=inbox.read, name="inbox", daemon=True)
    try:
        sock.sendall(frame(engine.ready(load_report)))
        reader.start()
        while True:
            if not engine.busy:
                engine.wakeup.wait(_idle_seconds(engine))
            engine.wakeup.clear()
            messages = inbox.drain()
            if messages is None:
                return
            refused = _take(engine, messages)
            output = engine.step()
            if refused:
                output = msgspec.structs.replace(output, events=(*refused, *output.events))
            sock.sendall(frame(output))
    except (BrokenPipeError, ConnectionResetError):
        logger.info("the front is gone")
    finally:
        inbox.stop()
        if reader.ident is not None:
            reader.join(_MAX_IDLE_SECONDS)
        sock.close()
        engine.close()


def report_startup_failure(sock: socket.socket, error: StartupError) -> None:
    """Tell the front, instead of `EngineReady`, why there will be no engine; closes the socket."""
    with sock:
        sock.sendall(frame(failed_event("", error)))


def _idle_seconds(engine: Engine) -> float:
    deadline = engine.next_deadline
    if deadline is None:
        return _MAX_IDLE_SECONDS
    return min(_MAX_IDLE_SECONDS, max(0.0, deadline - time.monotonic()))


def _take(engine: Engine, messages: list[EngineInbox]) -> list[Failed]:
    refused: list[Failed] = []
    for message in messages:
        match message:
            case GenerateRequest():
                try:
                    engine.add(message)
                except TriptychError as error:
                    refused.append(failed_event(message.request_id, error))
            case Cancel():
                engine.cancel(message.request_id)
            case Release():
                engine.release(message.refs)
    return refused


class _Inbox:
    """Messages from the socket, read on a thread of their own, bounded."""

    def __init__(self, sock: socket.socket, wakeup: threading.Event) -> None:
        self._sock = sock
        self._wakeup = wakeup
        self._messages: queue.Queue[EngineInbox] = queue.Queue(MAX_INBOX_MESSAGES)
        self._ended = threading.Event()

    def read(self) -> None:
        """Until the other end closes, or speaks another language."""
        decoder = msgspec.msgpack.Decoder(EngineInbox)
        splitter = FrameSplitter()
        try:
            while data := self._sock.recv(_READ_BYTES):
                for body in splitter.feed(data):
                    self._put(decoder.decode(body))
        except OSError:
            logger.info("the front's connection broke")
        except (msgspec.MsgspecError, TriptychError):
            logger.exception("the front sent what is no message")
        finally:
            self._ended.set()
            self._wakeup.set()

    def drain(self) -> list[EngineInbox] | None:
        """What came since the last call; None once the front is gone."""
        if self._ended.is_set():
            return None
        messages: list[EngineInbox] = []
        while len(messages) < MAX_INBOX_MESSAGES:
            try:
                messages.append(self._messages.get_nowait())
            except queue.Empty:
                break
        return messages

    def stop(self) -> None:
        """End the reading thread."""
        self._ended.set()
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("the front had closed its end already")

    def _put(self, message: EngineInbox) -> None:
        while not self._ended.is_set():
            try:
                self._messages.put(message, timeout=1.0)
            except queue.Full:
                continue
            self._wakeup.set()
            return
