from __future__ import annotations

import json
import logging

import pytest

from triptych import errors
from triptych.api.status import INTERNAL_TEXT, TABLE, problem, status_of
from triptych.errors import TriptychError, all_error_classes


def test_every_error_class_has_a_row() -> None:
    assert set(TABLE) == set(all_error_classes())


@pytest.mark.parametrize(
    ("error_class", "http", "grpc"),
    [
        (errors.InvalidRequest, 400, "INVALID_ARGUMENT"),
        (errors.BodyTooLarge, 413, "INVALID_ARGUMENT"),
        (errors.UnknownModel, 404, "NOT_FOUND"),
        (errors.PromptTooLong, 400, "INVALID_ARGUMENT"),
        (errors.MediaFetchFailed, 422, "FAILED_PRECONDITION"),
        (errors.MediaInvalid, 400, "INVALID_ARGUMENT"),
        (errors.MediaLimitExceeded, 400, "INVALID_ARGUMENT"),
        (errors.MediaSourceRefused, 400, "INVALID_ARGUMENT"),
        (errors.QueueFull, 429, "RESOURCE_EXHAUSTED"),
        (errors.DeadlineExceeded, 503, "DEADLINE_EXCEEDED"),
        (errors.WorkerUnavailable, 503, "UNAVAILABLE"),
        (errors.EmbeddingUnavailable, 503, "UNAVAILABLE"),
        (errors.KvUnavailable, 503, "UNAVAILABLE"),
        (errors.InternalError, 500, "INTERNAL"),
    ],
)
def test_statuses_are_the_documented_ones(error_class: type[TriptychError], http: int, grpc: str) -> None:
    assert (status_of(error_class).http, status_of(error_class).grpc) == (http, grpc)


def test_a_kind_of_error_decides_its_family_of_statuses() -> None:
    for cls in all_error_classes():
        http = status_of(cls).http
        if issubclass(cls, errors.RequestError):
            assert 400 <= http < 500
            assert http != 429
        elif issubclass(cls, errors.TryLater):
            assert http in (429, 503)
        else:
            assert http == 500


def test_a_class_without_a_row_takes_its_ancestors() -> None:
    class Fresh(errors.QueueFull):
        pass

    assert status_of(Fresh).http == 429


def test_wrong_request_is_told_what_is_wrong() -> None:
    found = problem(errors.MediaInvalid("truncated", item="image 2", param="messages"))
    assert json.loads(found.body()) == {
        "error": {
            "message": "image 2: truncated",
            "type": "invalid_request_error",
            "code": "media_invalid",
            "param": "messages",
        }
    }
    assert found.headers == ()


def test_try_later_says_when() -> None:
    assert problem(errors.QueueFull("busy")).headers == (("retry-after", "1"),)


@pytest.mark.parametrize(
    "error",
    [ValueError("/secret/path"), errors.InternalError("/secret/path"), errors.ConfigError("/secret/path")],
)
def test_our_own_failures_are_logged_and_their_text_withheld(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        found = problem(error)
    assert (found.status.http, found.code, found.message) == (500, "internal", INTERNAL_TEXT)
    assert "/secret/path" in caplog.text
