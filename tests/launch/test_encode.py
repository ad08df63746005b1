"""A built encode stage encodes; its stack takes everything down again."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.api.serving import new_metrics
from tests.flow.served import left_of
from tests.media.make_image import solid_png
from tests.stages.encoding import asked
from tests.stages.preparing import RED, images_of, inline
from triptych.config import EncoderConfig, ModelConfig, ServerConfig, TransportConfig, WorkerConfig
from triptych.embeddings.handle import HandleSigner
from triptych.errors import CheckpointError, EmbeddingUnavailable
from triptych.launch.encode import build_encode_stage
from triptych.transport.shm import ShmConsumer

SECRET = b"0123456789abcdef"


def config(model: Path) -> WorkerConfig:
    return WorkerConfig(
        role="encode",
        model=ModelConfig(path=model, served_name="tiny"),
        secret=SECRET,
        server=ServerConfig(port=4321),
        encoder=EncoderConfig(batch_wait_seconds=0.0),
        transport=TransportConfig(pool_bytes=4 << 20),
    )


@pytest.mark.usefixtures("own_threads")
def test_a_picture_is_encoded_and_read_from_shared_memory(tiny_omni: Path) -> None:
    before = threading.active_count()

    async def main() -> None:
        signer = HandleSigner(SECRET)
        reader = ShmConsumer(TransportConfig(), SECRET)
        async with AsyncExitStack() as stack:
            stage = await build_encode_stage(config(tiny_omni), signer, new_metrics(), stack)
            request = asked(images_of(inline(solid_png(RED, 64, 64))))
            (item,) = await stage.encode(request)
            ref = signer.verify(item.handle, "", time.time()).ref
            found = await asyncio.to_thread(reader.fetch, ref.tensor, 20.0)
            assert found.tensor.shape == (ref.num_tokens, ref.width)
            assert bool(found.tensor.isfinite().all())
            assert (item.peer_host, item.peer_port) == ("127.0.0.1", 4321)
            assert left_of({f"@{ref.tensor.address}"})
        assert not left_of({f"@{ref.tensor.address}"})
        with pytest.raises(EmbeddingUnavailable):
            await asyncio.to_thread(reader.fetch, ref.tensor, 20.0)
        reader.close()

    asyncio.run(main())
    assert threading.active_count() == before


@pytest.mark.usefixtures("own_threads")
def test_a_directory_without_a_model_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    before = threading.active_count()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            with pytest.raises(CheckpointError, match=str(tmp_path)):
                await build_encode_stage(config(tmp_path), HandleSigner(SECRET), new_metrics(), stack)

    asyncio.run(main())
    assert threading.active_count() == before
