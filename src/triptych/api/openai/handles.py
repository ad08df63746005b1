"""`ec_transfer_params`: binds each metadata-only part of a request to the handle of its embedding.

A handle is found by `ec_items[i].mm_hash` (i counts the request's media parts), else by a uuid that is a key,
else by being the only handle that lists the part's uuid. What is inside the signed string is checked where it
is used, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from triptych.api.openai.fields import Fields, as_object, as_text
from triptych.errors import InvalidHandle, InvalidRequest
from triptych.messages import MediaItem, StageTiming
from triptych.telemetry import STAGES, TOGETHER

ITEMS = "ec_items"


@dataclass(frozen=True, slots=True)
class Handle:
    """One entry of `ec_transfer_params`, as far as it is read here."""

    key: str
    token: str
    """Opaque and signed."""
    uuids: tuple[str, ...]
    timings_ms: Mapping[str, float]


def bind_handles(
    items: Sequence[MediaItem], params: Fields | None
) -> tuple[tuple[MediaItem, ...], tuple[StageTiming, ...]]:
    """Items with their handles, and what the encode workers spent on them.

    Raises:
        InvalidHandle: a metadata-only part has no handle, or more than one that could be its own.
        InvalidRequest: a field has the wrong type.
    """
    if all(item.metadata is None for item in items):
        return tuple(items), ()
    if params is None:
        name = next(item.name for item in items if item.metadata is not None)
        raise InvalidHandle(f"{name}: metadata without ec_transfer_params", param="ec_transfer_params")
    try:
        handles = {key: _handle(key, params) for key in params.values if key != ITEMS}
        hashes = _hashes(params)
    except InvalidRequest as error:
        raise InvalidHandle(error.message, param=error.param) from error
    found = [_find(item, at, handles, hashes) for at, item in enumerate(items)]
    bound = tuple(
        item if handle is None else msgspec.structs.replace(item, handle=handle.token, handle_key=handle.key)
        for item, handle in zip(items, found, strict=True)
    )
    used = {handle.key: handle for handle in found if handle is not None}
    return bound, _timings(tuple(used.values()))


def _handle(key: str, params: Fields) -> Handle:
    fields = as_object(params.values[key], params.at(key))
    uuids = tuple(as_text(uuid, path) for path, uuid in fields.elements("uuids"))
    stated = fields.object("timings_ms")
    timings = {} if stated is None else {stage: stated.number(stage) or 0.0 for stage in STAGES}
    return Handle(key, fields.required_text("handle"), uuids, timings)


def _hashes(params: Fields) -> tuple[str | None, ...]:
    """`mm_hash` of each media part, None where it is not stated."""
    return tuple(as_object(element, path).text("mm_hash") for path, element in params.elements(ITEMS))


def _find(
    item: MediaItem, at: int, handles: Mapping[str, Handle], hashes: tuple[str | None, ...]
) -> Handle | None:
    if item.metadata is None:
        return None
    stated = hashes[at] if at < len(hashes) else None
    if stated is not None and stated in handles:
        return handles[stated]
    if item.uuid is not None:
        if item.uuid in handles:
            return handles[item.uuid]
        listing = [handle for handle in handles.values() if item.uuid in handle.uuids]
        if len(listing) == 1:
            return listing[0]
        if listing:
            raise InvalidHandle(f"{item.name}: {len(listing)} handles list uuid {item.uuid!r}", param=ITEMS)
    raise InvalidHandle(
        f"{item.name}: no handle in ec_transfer_params belongs to it", param="ec_transfer_params"
    )


def _timings(handles: tuple[Handle, ...]) -> tuple[StageTiming, ...]:
    """Only stages that took time, in the order of `STAGES`."""
    spent = {
        stage: (max if stage in TOGETHER else sum)(handle.timings_ms.get(stage, 0.0) for handle in handles)
        for stage in STAGES
    }
    return tuple(StageTiming(stage=stage, milliseconds=ms) for stage, ms in spent.items() if ms > 0)
