from __future__ import annotations

import pytest
import torch

from triptych.config import TransportConfig
from triptych.errors import EmbeddingUnavailable
from triptych.transport.inproc import InprocConsumer, InprocExchange, InprocProducer
from triptych.transport.interface import Producer

CONFIG = TransportConfig(pool_bytes=4096)


def test_exchanges_know_nothing_of_each_other() -> None:
    producer: Producer = InprocProducer(CONFIG, InprocExchange(), address="here")
    ref = producer.reserve("key", "ns", torch.float32, (2,))
    producer.publish(ref, torch.zeros(2))

    with pytest.raises(EmbeddingUnavailable, match="here"):
        InprocConsumer(CONFIG, InprocExchange()).fetch(ref, 1)


def test_one_consumer_reads_from_several_producers() -> None:
    exchange = InprocExchange()
    consumer = InprocConsumer(CONFIG, exchange)
    producers = [InprocProducer(CONFIG, exchange) for _ in range(2)]

    for value, producer in enumerate(producers):
        ref = producer.reserve("key", "ns", torch.float32, (2,))
        producer.publish(ref, torch.full((2,), float(value)))
        assert consumer.fetch(ref, 1).tensor.tolist() == [value, value]


def test_closing_a_replaced_producer_leaves_its_successor() -> None:
    exchange = InprocExchange()
    first = InprocProducer(CONFIG, exchange, address="here")
    second = InprocProducer(CONFIG, exchange, address="here")
    ref = second.reserve("key", "ns", torch.float32, (2,))
    second.publish(ref, torch.ones(2))

    first.close()

    assert InprocConsumer(CONFIG, exchange).fetch(ref, 1).tensor.tolist() == [1, 1]


def test_what_is_published_is_a_copy() -> None:
    exchange = InprocExchange()
    producer = InprocProducer(CONFIG, exchange)
    tensor = torch.zeros(2)
    ref = producer.reserve("key", "ns", torch.float32, (2,))
    producer.publish(ref, tensor)

    tensor.fill_(9)

    assert InprocConsumer(CONFIG, exchange).fetch(ref, 1).tensor.tolist() == [0, 0]
