"""The contract's fixture: a producer and a consumer of every implementation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.transport.peers import CONFIG, TOKEN, InprocPeer, Pair, Peer, ShmPeer
from triptych.transport.inproc import InprocConsumer, InprocExchange
from triptych.transport.interface import Consumer
from triptych.transport.shm import ShmConsumer


@pytest.fixture(params=["inproc", "shm"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    started: list[Peer] = []
    exchange = InprocExchange()

    def start(address: str | None = None) -> Peer:
        shm = request.param == "shm"
        started.append(ShmPeer(address=address) if shm else InprocPeer(exchange, address=address))
        return started[-1]

    peer = start()
    consumer: Consumer = (
        ShmConsumer(CONFIG, TOKEN) if request.param == "shm" else InprocConsumer(CONFIG, exchange)
    )
    yield Pair(peer, consumer, lambda: start(peer.address))
    consumer.close()
    for each in started:
        each.stop()
