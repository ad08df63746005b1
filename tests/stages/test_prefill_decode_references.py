"""References that the language stage must not believe."""

from __future__ import annotations

import msgspec
import pytest

from tests.stages.encoding import grid
from tests.stages.generating import (
    ScriptedEngine,
    answered,
    chat_request,
    embedding_ref,
    language_stage,
    reference,
)
from tests.stages.preparing import run
from triptych.errors import EmbeddingUnavailable, InvalidHandle, InvalidRequest, TriptychError
from triptych.messages import MediaItem, MetadataArray

GOOD = reference()
FORGED = reference(secret=b"fedcba9876543210")


def refused(bad: MediaItem) -> TriptychError:
    """Of a request whose second item is `bad`; the engine must not hear of it."""
    caught: list[TriptychError] = []

    async def test() -> None:
        engine = ScriptedEngine()
        with pytest.raises(TriptychError) as refusal:
            await answered(language_stage(engine).chat(chat_request("a", GOOD, bad)))
        assert engine.requests == []
        caught.append(refusal.value)

    run(test)
    return caught[0]


def changed(**fields: object) -> MediaItem:
    return msgspec.structs.replace(reference(index=1), **fields)


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (changed(metadata=None, source="data:,"), InvalidRequest, "no raw media"),
        (changed(handle=None), InvalidHandle, "ec_transfer_params"),
        (changed(handle="AAAA"), InvalidHandle, "not signed by this cluster"),
        (changed(handle="no base64!"), InvalidHandle, "not one of ours"),
        (changed(handle=FORGED.handle), InvalidHandle, "same secret"),
        (changed(metadata=grid(5, 1)), InvalidHandle, "metadata differ"),
        (changed(metadata=()), InvalidHandle, "metadata differ"),
        (reference(index=1, tenant="other"), InvalidHandle, "another tenant"),
        (changed(handle_key="another"), InvalidHandle, "another item's key"),
    ],
)
def test_a_reference_that_does_not_hold_is_refused_by_name(
    bad: MediaItem, error: type[TriptychError], says: str
) -> None:
    found = refused(bad)
    assert type(found) is error
    assert found.message.startswith("image 2: ")
    assert says in found.message


def test_a_reference_of_another_modality_is_refused() -> None:
    found = refused(msgspec.structs.replace(reference(index=0), modality="video"))
    assert isinstance(found, InvalidHandle)
    assert found.message.startswith("video 1: ")


def test_a_reference_whose_lease_is_over_may_be_encoded_again() -> None:
    found = refused(reference(index=1, seconds=-1.0))
    assert isinstance(found, EmbeddingUnavailable)
    assert found.retryable
    assert found.message.startswith("image 2: ")


def test_metadata_may_be_flattened_on_the_way() -> None:
    async def test() -> None:
        flat = MetadataArray(name="image_grid_thw", shape=(3,), values=(1, 4, 1))
        item = msgspec.structs.replace(reference(embedding_ref(4)), metadata=(flat,))
        engine = ScriptedEngine()
        await answered(language_stage(engine).chat(chat_request(item)))
        assert engine.requests[0].items[0].ref == embedding_ref(4)

    run(test)
