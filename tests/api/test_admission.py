from __future__ import annotations

import pytest

from triptych.api.admission import Admission
from triptych.errors import QueueFull


def test_places_are_limited_and_given_back() -> None:
    admission = Admission(1)
    with admission.place():
        with pytest.raises(QueueFull, match="1 requests are in flight already"), admission.place():
            pass
        assert admission.num_requests == 1
    with pytest.raises(ValueError), admission.place():
        raise ValueError
    assert admission.num_requests == 0
