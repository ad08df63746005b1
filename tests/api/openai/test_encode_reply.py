from __future__ import annotations

import json

from tests.api.openai.bodies import MODEL, image, with_parts
from tests.api.services import encoded
from triptych.api.openai.encode_reply import encode_reply
from triptych.api.openai.parse import parse_chat, parse_encode

REQUEST = parse_encode(with_parts(image("data:,1", uuid="a"), image("data:,1", uuid="b")), MODEL)


def test_a_handle_says_what_prefill_and_routers_read() -> None:
    reply = json.loads(encode_reply([encoded(REQUEST.items, (0, 1))]))
    assert reply == {
        "ec_transfer_params": {
            "key-image-0": {
                "metadata": {"image_grid_thw": [[1, 4, 4]]},
                "item_indices": [0, 1],
                "modality": "image",
                "num_tokens": 4,
                "shape": [4, 8],
                "dtype": "float32",
                "size_bytes": 128,
                "peer_host": "127.0.0.1",
                "peer_port": 9,
                "uuids": ["a", "b"],
                "handle": "signed:key-image-0",
                "state": "pending",
                "timings_ms": {"fetch": 1.5, "process": 2.0},
            }
        }
    }


def test_a_reply_binds_the_parts_that_it_was_made_for() -> None:
    item = encoded(REQUEST.items, (0, 1))
    params = json.loads(encode_reply([item]))["ec_transfer_params"]
    part = {"type": "image_embeds", "image_embeds": params["key-image-0"]["metadata"], "uuid": "b"}
    request = parse_chat(with_parts(part, ec_transfer_params=params), MODEL).request
    assert request.items[0].handle == "signed:key-image-0"
    assert request.items[0].metadata == item.ref.metadata
    assert {timing.stage: timing.milliseconds for timing in request.item_timings} == {
        "fetch": 1.5,
        "process": 2.0,
    }
