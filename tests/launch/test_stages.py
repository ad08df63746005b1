"""Which stages a role gets."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.api.serving import new_metrics
from tests.launch.acting import SECONDS
from tests.media.make_image import solid_png
from tests.stages.generating import answered, chat_request
from tests.stages.preparing import RED, images_of, inline
from triptych.config import ModelConfig, Role, TransportConfig, WorkerConfig
from triptych.errors import InvalidRequest, StartupError
from triptych.launch.stages import WorkerStages, build_stages
from triptych.messages import MediaItem

SECRET = b"0123456789abcdef"
pytestmark = pytest.mark.usefixtures("stand_in", "own_threads")


def config(model: Path, role: Role, name: str = "tiny") -> WorkerConfig:
    return WorkerConfig(
        role=role,
        model=ModelConfig(path=model, served_name=name),
        secret=SECRET,
        transport=TransportConfig(pool_bytes=4 << 20),
    )


def picture() -> MediaItem:
    (image,) = images_of(inline(solid_png(RED, 64, 64)))
    return image


async def text_of(stages: WorkerStages, *parts: str | MediaItem) -> str:
    assert stages.chat is not None
    return (await answered(stages.chat(chat_request(*parts)))).text


def test_a_language_worker_chats_but_opens_no_media(tiny_omni: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            stages = await build_stages(config(tiny_omni, "prefill-decode"), new_metrics(), stack)
            assert stages.encode is None
            assert await text_of(stages, "hi") == "A"
            with pytest.raises(InvalidRequest, match="no raw media"):
                await text_of(stages, picture())

    asyncio.run(main())


def test_an_encode_worker_has_no_engine_that_could_die(tiny_omni: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            stages = await build_stages(config(tiny_omni, "encode"), new_metrics(), stack)
            assert (stages.chat, stages.engine) == (None, None)
            assert stages.encode is not None
            assert stages.alive
            waiting = asyncio.ensure_future(stages.until_dead())
            done, _ = await asyncio.wait([waiting], timeout=0.01)
            assert not done
            waiting.cancel()

    asyncio.run(main())


def test_a_server_of_all_roles_chats_about_media(tiny_omni: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            stages = await build_stages(config(tiny_omni, "all"), new_metrics(), stack)
            assert await text_of(stages, "hi", picture()) == "A"

    asyncio.run(main())


def test_an_engine_that_dies_is_noticed(tiny_omni: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            stages = await build_stages(config(tiny_omni, "prefill-decode"), new_metrics(), stack)
            assert stages.engine is not None
            assert stages.alive
            stages.engine.process.kill()
            async with asyncio.timeout(SECONDS):
                await stages.until_dead()
            assert not stages.alive

    asyncio.run(main())


@pytest.mark.parametrize("role", ["encode", "prefill-decode", "all"])
def test_a_role_that_cannot_be_built_leaves_nothing(tmp_path: Path, role: Role) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            with pytest.raises(StartupError):
                await build_stages(config(tmp_path, role, "mute"), new_metrics(), stack)

    asyncio.run(main())
