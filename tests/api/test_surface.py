from __future__ import annotations

from tests.api.client import get
from tests.api.services import ScriptedChat
from tests.api.serving import chat_app, serving


def test_unknown_routes_and_methods_have_openais_error_body() -> None:
    with serving(chat_app(ScriptedChat())) as url:
        missing, wrong = get(url, "/v1/nothing"), get(url, "/v1/chat/completions")
    assert (missing.status, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
