from __future__ import annotations

import re

from triptych import errors
from triptych.errors import InternalError, MediaInvalid, all_error_classes, error_from_code


def test_the_tree_in_the_docstring_names_every_class() -> None:
    assert errors.__doc__ is not None
    drawn = set(re.findall(r"[├└]── (\w+)", errors.__doc__)) | {"TriptychError"}
    assert drawn == {cls.__name__ for cls in all_error_classes()}


def test_an_error_survives_being_reported_by_code() -> None:
    for cls in all_error_classes():
        rebuilt = error_from_code(cls.code, "why")
        assert rebuilt.code == cls.code
        assert rebuilt.message == "why"


def test_an_unknown_code_is_our_fault() -> None:
    assert isinstance(error_from_code("no such code", "why"), InternalError)


def test_a_media_error_gets_the_items_name_once() -> None:
    named = MediaInvalid("truncated").named("image 2")
    assert named.message == "image 2: truncated"
    assert named.named("image 3").message == "image 2: truncated"


def test_only_try_later_errors_are_retryable() -> None:
    for cls in all_error_classes():
        assert cls.retryable == issubclass(cls, errors.TryLater)
