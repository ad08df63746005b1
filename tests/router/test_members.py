from __future__ import annotations

import pytest

from triptych.errors import WorkerUnavailable
from triptych.router.members import Members


def members(*healthy: str) -> Members:
    found = Members(["http://e1/", "http://e2"], ["http://p1", "http://p2"])
    for worker in found.workers:
        worker.healthy = worker.url.removeprefix("http://") in healthy
    return found


def test_requests_go_to_the_least_busy_healthy_worker_of_the_role() -> None:
    found = members("e1", "p1", "p2")
    with found.using("prefill-decode") as first, found.using("prefill-decode") as second:
        assert {first.url, second.url} == {"http://p1", "http://p2"}
        assert (first.in_flight, second.in_flight) == (1, 1)
    assert (first.in_flight, second.in_flight) == (0, 0)
    with found.using("encode") as encode:
        assert encode.url == "http://e1"


def test_nobody_is_unavailable() -> None:
    found = members("p1")
    with pytest.raises(WorkerUnavailable, match="no encode worker is available"), found.using("encode"):
        pass
    with found.using("prefill-decode") as only:
        pass
    with pytest.raises(WorkerUnavailable), found.using("prefill-decode", avoid=[only]):
        pass


def test_missing_roles_are_named() -> None:
    assert members().missing_roles() == ("encode", "prefill-decode")
    assert members("e2", "p1").missing_roles() == ()
    assert Members([], []).missing_roles() == ("prefill-decode",)
