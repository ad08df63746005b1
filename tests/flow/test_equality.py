"""Layouts `none` and `e+pd`, in separate processes, give the monolithic model's tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.flow import reference
from tests.flow.media import Film, Picture, Sound, film, picture, sound
from tests.flow.reference import Part
from tests.flow.served import SECRET, Served, free_port, running
from tests.tiny_models import FAMILIES, MODALITIES, tiny_checkpoint

NO_MEDIA = Path(__file__).parent / "no_media"
URL_PARTS = {Picture: "image_url", Sound: "audio_url", Film: "video_url"}


@dataclass(frozen=True)
class Family:
    name: str
    reference: reference.Reference
    layouts: dict[str, Served]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Family]:
    """Both layouts of one family; e+pd by hand, with a language worker that cannot open any media."""
    path = tiny_checkpoint(request.param, tmp_path_factory.mktemp("models"))
    model = str(path)
    secret = {"TRIPTYCH_CLUSTER_SECRET": SECRET}
    ports = [free_port() for _ in range(4)]
    with ExitStack() as stack:
        options = ("--threads", "1")
        started = [
            (["serve", model, "--layout", "none", *options], ports[0], {}),
            (["worker", model, "--role", "encode", *options], ports[1], secret),
            (
                ["worker", model, "--role", "prefill-decode", *options],
                ports[2],
                {**secret, "PYTHONPATH": str(NO_MEDIA)},
            ),
        ]
        with ThreadPoolExecutor() as pool:

            def start(one: tuple[list[str], int, dict[str, str]]) -> Served:
                return stack.enter_context(running(*one))

            servers = list(pool.map(start, started))
        route = ["route", "--encode", servers[1].url, "--prefill-decode", servers[2].url]
        router = stack.enter_context(running(route, ports[3]))
        layouts = {"none": servers[0], "e+pd": router}
        yield Family(request.param, reference.load(request.param, path), layouts)


def test_every_layout_gives_the_monolithic_models_tokens(
    family: Family, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = cases(family.name)
    expected = [family.reference.answer(parts) for parts in prompts]
    assert any(len(answer) < reference.MAX_TOKENS for answer in expected), "no case reaches a stop token"
    near_ties = 0
    for layout, server in family.layouts.items():
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = list(pool.map(lambda parts, server=server: ask(server, family.name, parts), prompts))
        for parts, answer, wanted in zip(prompts, answers, expected, strict=True):
            if answer != wanted:
                common = _common(answer, wanted)
                assert family.reference.is_near_tie(parts, common), (layout, _shape(parts), answer, wanted)
                near_ties += 1
    with capsys.disabled():
        print(f"\n{family.name}: {2 * len(prompts)} answers compared, {near_ties} near-ties")


def cases(name: str) -> list[list[Part]]:
    """Each modality alone, every order of all, several of each interleaved with text, and text alone."""
    makers = {"image": picture, "audio": sound, "video": film}
    items = {modality: makers[modality](seed) for seed, modality in enumerate(MODALITIES[name])}
    found: list[list[Part]] = [["hello", item, " what is it?"] for item in items.values()]
    found += [
        [" then ".join(["first"]), *order, "describe"] for order in itertools.permutations(items.values())
    ]
    several: list[Part] = []
    for seed in (10, 20):
        for modality in MODALITIES[name]:
            several += [f"part {seed} {modality}: ", makers[modality](seed)]
    found.append([*several, picture(30, 96, 96), picture(31, 64, 180), "compare all of them"])
    found.append(["only text, no media at all"])
    return found


def ask(server: Served, model: str, parts: Sequence[Part]) -> list[int]:
    status, reply = server.post(
        {
            "model": model,
            "messages": [{"role": "user", "content": [_part(part) for part in parts]}],
            "temperature": 0,
            "max_tokens": reference.MAX_TOKENS,
            "return_token_ids": True,
        }
    )
    assert status == 200, reply
    return reply["choices"][0]["token_ids"]


def _part(part: Part) -> dict[str, object]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = URL_PARTS[type(part)]
    return {"type": kind, kind: {"url": part.url}}


def _common(a: Sequence[int], b: Sequence[int]) -> list[int]:
    return [x for x, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))]


def _shape(parts: Sequence[Part]) -> str:
    return " ".join("text" if isinstance(part, str) else type(part).__name__ for part in parts)
