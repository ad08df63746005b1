"""`EncodedItem`s → the `ec_transfer_params` that a router passes on to prefill."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from triptych.api.openai.metadata import nested_metadata
from triptych.api.openai.reply import timings_json
from triptych.messages import EncodedItem


def encode_reply(items: Sequence[EncodedItem]) -> bytes:
    """`{"ec_transfer_params": {key: handle}}`. Keys are distinct: equal items of a request are one entry."""
    return msgspec.json.encode({"ec_transfer_params": {item.ref.key: _handle_json(item) for item in items}})


def _handle_json(item: EncodedItem) -> dict[str, object]:
    ref = item.ref
    return {
        "metadata": nested_metadata(ref.metadata),
        "item_indices": item.item_indices,
        "modality": ref.modality,
        "num_tokens": ref.num_tokens,
        "shape": ref.tensor.shape,
        "dtype": ref.tensor.dtype,
        "size_bytes": ref.tensor.size_bytes,
        "peer_host": item.peer_host,
        "peer_port": item.peer_port,
        "uuids": item.uuids,
        "handle": item.handle,
        "state": "pending",
        "timings_ms": timings_json(item.timings),
    }
