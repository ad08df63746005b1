"""Golden tests: prompt ids equal those of the model's own processor called with the media."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import transformers
from numpy.typing import NDArray

from tests.models.reference import FRAMES_PER_SECOND, Conversation, conversation, metadata_array, process
from tests.tiny_models import EOS_BYTES, FAMILIES, MODALITIES
from triptych.errors import InvalidHandle, InvalidRequest, UnsupportedModality
from triptych.media.types import Decoded, DecodedAudio, DecodedImage, DecodedVideo, VideoInfo
from triptych.messages import ChatMessage, MediaItem, MediaPart, TextPart
from triptych.models.chat import HFChatTokenizer
from triptych.models.interface import Prompt
from triptych.models.processor import HFMediaProcessor

Checkpoints = Callable[[str], Path]


@pytest.fixture(scope="module")
def tokenizers(checkpoints: Checkpoints) -> Callable[[str], HFChatTokenizer]:
    made: dict[str, HFChatTokenizer] = {}

    def make(family: str) -> HFChatTokenizer:
        if family not in made:
            made[family] = HFChatTokenizer(checkpoints(family))
        return made[family]

    return make


Tokenizers = Callable[[str], HFChatTokenizer]


def user(*parts: TextPart | MediaPart, role: str = "user") -> ChatMessage:
    return ChatMessage(role=role, content=parts)


def text(value: str) -> TextPart:
    return TextPart(text=value)


def check_same_ids(directory: Path, tokenizer: HFChatTokenizer, conv: Conversation) -> Prompt:
    reference = process(directory, conv)
    prompt = tokenizer.render(conv.messages, conv.items, reference.metadata)
    assert prompt.token_ids == reference.token_ids
    for placed in prompt.items:
        item, metadata = conv.items[placed.item_index], reference.metadata[placed.item_index]
        assert sum(length for _, length in placed.runs) == tokenizer.num_tokens(item, metadata)
    return prompt


@pytest.mark.parametrize("family", FAMILIES)
def test_every_order_of_items_is_placed_as_written(
    family: str, checkpoints: Checkpoints, tokenizers: Tokenizers
) -> None:
    parts = [f"<{modality}>" for modality in MODALITIES[family]]
    for order in itertools.permutations([*parts, parts[0]]):
        conv = conversation(("user", ["one ", *order, " two"]))
        prompt = check_same_ids(checkpoints(family), tokenizers(family), conv)
        assert [placed.item_index for placed in prompt.items] == list(range(len(order)))


@pytest.mark.parametrize("family", FAMILIES)
def test_random_conversations_have_the_processors_ids(
    family: str, checkpoints: Checkpoints, tokenizers: Tokenizers
) -> None:
    choose = random.Random(family)
    kinds = [f"<{modality}>" for modality in MODALITIES[family]]
    for _ in range(12):
        media = [kind for kind in kinds for _ in range(choose.randint(0, 3))]
        parts = [*media, *(choose.choice(["é", "two\nlines", " ", "日本語 🙂", "<b>"]) for _ in range(4))]
        choose.shuffle(parts)
        half = choose.randint(0, len(parts))
        conv = conversation(
            ("system", ["Be brief."]),
            ("user", parts[:half] or ["hello"]),
            ("assistant", ["I see."]),
            ("user", parts[half:] or ["go on"]),
            even_videos=True,
        )
        check_same_ids(checkpoints(family), tokenizers(family), conv)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_alone_has_the_processors_ids(
    family: str, checkpoints: Checkpoints, tokenizers: Tokenizers
) -> None:
    conv = conversation(
        ("system", ["Be brief."]), ("user", ["Hello", " there"]), ("assistant", ["Hi <|im_end|>"])
    )
    assert check_same_ids(checkpoints(family), tokenizers(family), conv).items == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_metadata_of_the_encode_half_gives_the_processors_ids(
    family: str, checkpoints: Checkpoints, tokenizers: Tokenizers
) -> None:
    parts = [f"<{modality}>" for modality in MODALITIES[family]]
    conv = conversation(("user", ["a", *parts, "b", *parts]), even_videos=True)
    media = HFMediaProcessor(checkpoints(family))
    processed = [media.process(i.modality, decoded(m)) for i, m in zip(conv.items, conv.media, strict=True)]
    prompt = tokenizers(family).render(conv.messages, conv.items, [one.metadata for one in processed])
    assert prompt.token_ids == process(checkpoints(family), conv).token_ids
    assert [sum(n for _, n in placed.runs) for placed in prompt.items] == [
        one.num_tokens for one in processed
    ]


def decoded(medium: NDArray[np.generic]) -> Decoded:
    if medium.ndim == 1:
        return DecodedAudio(samples=medium.astype(np.float32), sample_rate_hz=16_000)
    if medium.ndim == 3:
        return DecodedImage(pixels=medium.astype(np.uint8))
    n, height, width, _ = medium.shape
    info = VideoInfo(n, FRAMES_PER_SECOND, n / FRAMES_PER_SECOND, height, width)
    times = tuple(i / FRAMES_PER_SECOND for i in range(n))
    return DecodedVideo(medium.astype(np.uint8), tuple(range(n)), times, info)


def test_frames_with_timestamps_between_them_are_runs_of_one_video(
    checkpoints: Checkpoints, tokenizers: Tokenizers
) -> None:
    prompt = check_same_ids(
        checkpoints("qwen3_vl"), tokenizers("qwen3_vl"), conversation(("user", ["<video>", "<image>"]))
    )
    assert [len(placed.runs) for placed in prompt.items] == [4, 1]


def test_images_and_videos_that_share_a_token_keep_their_own_runs(
    checkpoints: Checkpoints, tokenizers: Tokenizers
) -> None:
    conv = conversation(("user", ["<video>", "<image>", "<video>"]), even_videos=True)
    prompt = check_same_ids(checkpoints("internvl"), tokenizers("internvl"), conv)
    assert [len(placed.runs) for placed in prompt.items] == [8, 1, 8]
    offsets = [offset for placed in prompt.items for offset, _ in placed.runs]
    assert offsets == sorted(offsets)


@pytest.mark.parametrize(
    ("family", "token"),
    [
        ("qwen3_omni", "<|image_pad|>"),
        ("qwen3_omni", "<|vision_start|>"),
        ("qwen3_omni", "<|audio_end|>"),
        ("qwen2_5_vl", "<|video_pad|>"),
        ("qwen2_5_vl", "<|vision_start|>"),
        ("qwen3_vl", "<|vision_end|>"),
        ("internvl", "<video>"),
        ("internvl", "<IMG_CONTEXT>"),
    ],
)
def test_media_tokens_in_text_are_refused_with_their_place(
    family: str, token: str, tokenizers: Tokenizers
) -> None:
    cut = len(token) // 2
    for parts in ([text(f"a{token}b")], [text(token[:cut]), text(token[cut:])]):
        with pytest.raises(InvalidRequest) as caught:
            tokenizers(family).render((user(text("fine"), role="system"), user(*parts)), (), ())
        assert "message 2" in str(caught.value)
        assert token in str(caught.value)


def test_media_tokens_in_a_role_are_refused(tokenizers: Tokenizers) -> None:
    with pytest.raises(InvalidRequest, match="image_pad"):
        tokenizers("qwen3_vl").render((user(text("hi"), role="<|image_pad|>"),), (), ())


def test_tokens_that_mean_media_in_other_models_are_text(tokenizers: Tokenizers) -> None:
    prompt = tokenizers("internvl").render((user(text("<|image_pad|> <|im_start|> <image>")),), (), ())
    assert prompt.items == ()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "internvl"])
def test_media_of_a_modality_that_the_model_lacks_is_refused_by_name(
    family: str, tokenizers: Tokenizers
) -> None:
    items = tuple(MediaItem(modality="audio", index=i, source="x") for i in range(2))
    metadata = (metadata_array("num_audio_tokens", np.asarray([3])),)
    with pytest.raises(UnsupportedModality, match="audio 1: this model takes no audio"):
        tokenizers(family).render((user(MediaPart(item=0), MediaPart(item=1)),), items, (metadata,) * 2)
    with pytest.raises(UnsupportedModality, match="audio 2: this model takes no audio"):
        tokenizers(family).num_tokens(items[1], metadata)


def test_an_item_without_metadata_is_an_invalid_handle(tokenizers: Tokenizers) -> None:
    item = MediaItem(modality="image", index=2, source="x")
    with pytest.raises(InvalidHandle, match="image 3: the metadata lacks image_grid_thw"):
        tokenizers("qwen3_omni").render((user(MediaPart(item=0)),), (item,), ((),))


def test_no_message_is_refused(tokenizers: Tokenizers) -> None:
    with pytest.raises(InvalidRequest, match="no message"):
        tokenizers("qwen3_vl").render((), (), ())


def test_threads_render_the_same_prompts(checkpoints: Checkpoints, tokenizers: Tokenizers) -> None:
    conversations = [conversation(("user", ["<image>", f"text {i} " * i, "<audio>"])) for i in range(1, 9)]
    references = [process(checkpoints("qwen3_omni"), conv) for conv in conversations]
    tokenizer = tokenizers("qwen3_omni")

    def render(i: int) -> Sequence[int]:
        return tokenizer.render(
            conversations[i].messages, conversations[i].items, references[i].metadata
        ).token_ids

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(render, [*range(8)] * 8, timeout=60))
    assert results == [reference.token_ids for reference in references] * 8


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_of_tokens_are_the_bytes_of_the_text(
    family: str, checkpoints: Checkpoints, tokenizers: Tokenizers
) -> None:
    written = "naïve 日本語 🙂\n\ttabs  and   spaces"
    ids = transformers.AutoTokenizer.from_pretrained(checkpoints(family))(written)["input_ids"]
    assert b"".join(tokenizers(family).token_bytes(i) for i in ids) == written.encode()


@pytest.mark.parametrize("family", FAMILIES)
def test_no_token_stands_for_more_characters_than_stated(family: str, tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers(family)
    written = "<|im_start|>" * 20 + "日本語 🙂 the the the"
    prompt = tokenizer.render((user(text(written)),), (), ())
    assert len(written) <= len(prompt.token_ids) * tokenizer.max_token_chars


def test_special_tokens_have_a_name_but_no_bytes(tokenizers: Tokenizers) -> None:
    tokenizer = tokenizers("qwen3_vl")
    end = tokenizer.eos_token_ids[0]
    assert (tokenizer.token_bytes(end), tokenizer.token_text(end)) == (b"", "<|im_end|>")
    unused = 287
    assert (tokenizer.token_bytes(unused), tokenizer.token_text(unused)) == (b"", "")
    half_a_character = "é".encode()[:1]
    token = next(i for i in range(256) if tokenizer.token_bytes(i) == half_a_character)
    assert tokenizer.token_text(token) == "\N{REPLACEMENT CHARACTER}"


def test_every_token_of_the_generation_config_ends_a_reply(tokenizers: Tokenizers) -> None:
    assert tokenizers("internvl").eos_token_ids == (256, *EOS_BYTES)
