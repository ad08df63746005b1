from __future__ import annotations

import pytest

from tests.api.openai.bodies import parsed
from triptych.errors import InvalidRequest
from triptych.messages import SamplingParams


def test_nothing_given_means_the_defaults() -> None:
    assert parsed().request.sampling == SamplingParams()


def test_every_field_is_read() -> None:
    sampling = parsed(
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        top_k=4,
        seed=2**64 - 1,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
    ).request.sampling
    assert sampling == SamplingParams(
        max_tokens=9,
        temperature=0,
        top_p=0.5,
        top_k=4,
        seed=2**64 - 1,
        stop=("a", "b"),
        stop_token_ids=(1, 2),
        ignore_eos=True,
        num_logprobs=3,
    )


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"max_completion_tokens": 3, "max_tokens": 9}, "max_tokens", 3),
        ({"stop": "x"}, "stop", ("x",)),
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": 2**70}, "top_k", 2**31 - 1),
        ({"logprobs": True}, "num_logprobs", 0),
        ({"logprobs": False, "top_logprobs": 0}, "num_logprobs", None),
        ({"temperature": None, "seed": None, "stop": None}, "temperature", 1.0),
    ],
)
def test_other_spellings_mean_the_same(fields: dict[str, object], name: str, value: object) -> None:
    assert getattr(parsed(**fields).request.sampling, name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", True),
        ("max_tokens", 1.5),
        ("max_tokens", "9"),
        ("max_completion_tokens", -1),
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", "hot"),
        ("temperature", False),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.0),
        ("top_k", -(2**70)),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("seed", 10**100),
        ("stop", 5),
        ("stop", ""),
        ("stop", ["a"] * 17),
        ("stop_token_ids", 3),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", list(range(1025))),
        ("ignore_eos", 1),
        ("logprobs", 5),
        ("top_logprobs", 2),
        ("n", 2),
        ("n", True),
        ("best_of", 3),
        ("tools", [{}]),
        ("frequency_penalty", 0.5),
        ("presence_penalty", -1),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"1": 2}),
        ("response_format", {"type": "json_object"}),
        ("min_tokens", 4),
    ],
)
def test_a_wrong_field_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parsed(**{name: value})
    assert caught.value.param == name
    assert name in caught.value.message


def test_elements_are_refused_by_their_place() -> None:
    with pytest.raises(InvalidRequest, match=r"^stop\[1\] must be a string$"):
        parsed(stop=["a", 1])
    with pytest.raises(InvalidRequest, match=r"^stop_token_ids\[0\] must be an integer$"):
        parsed(stop_token_ids=[True])


def test_too_many_logprobs_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="top_logprobs must be between 0 and 20"):
        parsed(logprobs=True, top_logprobs=21)


def test_n_other_than_one_is_called_unsupported() -> None:
    with pytest.raises(InvalidRequest, match="n other than 1 is not supported"):
        parsed(n=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"frequency_penalty": 0.0},
        {"repetition_penalty": 1.0},
        {"tools": [], "tool_choice": "none"},
        {"logit_bias": {}},
        {"response_format": {"type": "text"}},
        {"min_tokens": 50, "max_tokens": 50, "ignore_eos": True},
        {"user": 5, "metadata": {"a": 1}, "separate_reasoning": True},
    ],
)
def test_what_changes_nothing_is_ignored(fields: dict[str, object]) -> None:
    assert parsed(**fields).request.sampling.temperature == 1.0
