from __future__ import annotations

from triptych.router.headers import end_to_end


def test_only_end_to_end_headers_pass() -> None:
    passed = [("Authorization", "Bearer x"), ("x-request-id", "r"), ("retry-after", "1")]
    stopped = [("Host", "a"), ("content-length", "1"), ("Connection", "close"), ("te", "trailers")]
    assert end_to_end([*passed, *stopped]) == (("authorization", "Bearer x"), *passed[1:])
