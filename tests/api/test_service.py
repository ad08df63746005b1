"""The stages and the services of these tests fit the seam: the type checker is the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.api.services import EndlessChat, EndlessEncode, FakeEncode, ScriptedChat
from triptych.api.service import ChatService, EncodeService

if TYPE_CHECKING:
    from triptych.stages.combined import CombinedStage
    from triptych.stages.encode import EncodeStage
    from triptych.stages.prefill_decode import PrefillDecodeStage

    def stages(
        combined: CombinedStage, language: PrefillDecodeStage, encode: EncodeStage
    ) -> tuple[ChatService, ChatService, EncodeService]:
        return combined, language, encode


def test_the_services_of_these_tests_fit_the_seam() -> None:
    chats: list[ChatService] = [ScriptedChat(), EndlessChat()]
    encodes: list[EncodeService] = [FakeEncode(), EndlessEncode()]
    assert all(hasattr(service, "chat") for service in chats)
    assert all(hasattr(service, "encode") for service in encodes)
