"""Pictures in prompts: texts of transformers, whatever the company, and each fault by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.tiny_vision import KINDS, pixels_of, save_mmproj, talking

import paceline
from paceline.engine import hearing
from paceline.engine.engine import Completion, Engine
from paceline.errors import (
    ContextExceeded,
    InvalidOption,
    ModelError,
    OutOfMemory,
    PacelineError,
    PromptError,
    RuntimeUnavailable,
)
from paceline.models.pictures import Picture

Messages = list[dict[str, Any]]
SAMPLED = {"temperature": 1.0, "seed": 5, "max_new_tokens": 24, "ignore_eos": True}


@cache
def picture(seed: int) -> Picture:
    rng = np.random.default_rng(seed)
    return Picture(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8))


def shown(*seeds: int, text: str = "what is it?") -> Messages:
    parts: list[Any] = [{"type": "image", "image": picture(seed)} for seed in seeds]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


CHAT = [*shown(0, text="see <image> it"), {"role": "assistant", "content": "a fox"}, *shown(1, 2)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Any]]:
    @cache
    def make(kind: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(kind)
        return folder, talking(kind, folder)

    return make


@pytest.fixture
def load(folders: Callable[[str], tuple[Path, Any]]) -> Callable[..., Engine]:
    def make(kind: str = "smolvlm", **options: Any) -> Engine:
        given = {"precision": "fp32", "runtime": "cpu", "drafter": "none", **options}
        return paceline.load(str(folders(kind)[0]), **given)

    return make


def finished(engine: Engine, count: int) -> dict[int, Completion]:
    done: dict[int, Completion] = {}
    while len(done) < count:
        for event in engine.checked_step():
            if event.completion is not None:
                done[event.request] = event.completion
    return done


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_of_transformers(
    load: Callable[..., Engine], folders: Callable[[str], tuple[Path, Any]], kind: str
) -> None:
    engine, theirs = load(kind), folders(kind)[1]
    assert engine.looking is not None
    assert engine.tokenizer.pictures is not None
    vision, size = engine.looking.reader.vision, 20
    ids = engine.tokenizer.chat(CHAT)
    row = engine.tokenizer.special_ids[engine.tokenizer.pictures.row]
    assert ids.count(row) == 3 * vision.rows  # and none where a user spells one
    patches = [picture(seed).patches(vision) for seed in (0, 1, 2)]
    pixels = torch.cat([pixels_of(e, vision.tower.grid, vision.tower.patch) for e in patches])
    given: dict[str, Any] = {"input_ids": torch.tensor([ids])}
    given["pixel_values"] = pixels[None] if kind in ("smolvlm", "idefics3") else pixels
    if kind == "gemma3":
        given["token_type_ids"] = (given["input_ids"] == row).long()
    with torch.no_grad():
        made = theirs.generate(
            **given,
            max_new_tokens=size,
            min_new_tokens=size,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    found = engine.generate(CHAT, max_new_tokens=size, ignore_eos=True, logprobs=0)
    assert list(found.token_ids) == made.sequences[0, len(ids) :].tolist()
    expected = torch.stack(made.logits)[:, 0].log_softmax(-1)
    ours = np.array([each.logprob for each in found.logprobs])
    theirs_of = expected[range(size), list(found.token_ids)]
    np.testing.assert_allclose(ours, theirs_of, atol=1e-4)
    again = engine.generate(CHAT, max_new_tokens=size, ignore_eos=True, logprobs=0)
    assert again.logprobs == found.logprobs
    assert again.cached_tokens >= max(at for at, token in enumerate(ids) if token == row) // 32 * 32
    assert (engine.looking.read, engine.looking.known) == (3, 3)
    swapped = [CHAT[0], CHAT[1], *shown(2, 1)]
    other = engine.generate(swapped, max_new_tokens=size, ignore_eos=True, logprobs=0)
    assert np.abs(np.array([each.logprob for each in other.logprobs]) - ours).max() > 1e-3


@pytest.mark.parametrize("kind", ["smolvlm", "gemma3"])
def test_runtimes_agree(load: Callable[..., Engine], kind: str) -> None:
    texts = [
        load(kind, runtime=runtime).generate(CHAT, **SAMPLED).token_ids
        for runtime in ("cpu", "reference", "torch")
    ]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("kind", ["smolvlm", "gemma3"])
@pytest.mark.parametrize("kv_tokens", [None, 256])
def test_eight_at_once_are_each_alone(
    load: Callable[..., Engine], kind: str, kv_tokens: int | None
) -> None:
    asked = [
        *(shown(seed, seed + 1, text="what is it? " * 3) for seed in range(4)),
        shown(0, 1),
        *(shown(text=f"the quick brown fox {each}") for each in range(3)),
    ]
    params = SAMPLED | {"max_new_tokens": 60}
    alone = [load(kind).generate(each, **params).token_ids for each in asked]
    assert len(set(alone)) > 5
    engine = load(kind, drafter="suffix-automaton+recycling", max_batch=8, kv_tokens=kv_tokens)
    requests = [engine.add(each, **params) for each in asked]
    done = finished(engine, 8)
    assert [done[each].token_ids for each in requests] == alone
    assert bool(kv_tokens) == bool(engine.scheduler.preemptions)  # between pictures too
    assert not any(run.users for run in engine.decoder.target.rows._runs.values())  # type: ignore[attr-defined]


def test_samples_of_a_picture_are_their_own(load: Callable[..., Engine]) -> None:
    engine, asked = load(), shown(0)
    alone = [load().generate(asked, sample=each, **SAMPLED).token_ids for each in range(3)]
    requests = [engine.add(asked, sample=each, **SAMPLED) for each in range(3)]
    done = finished(engine, 3)
    assert [done[each].token_ids for each in requests] == alone
    assert engine.looking is not None
    assert engine.looking.read == 1


def test_penalties_count_no_rows(load: Callable[..., Engine]) -> None:
    params = {**SAMPLED, "repetition_penalty": 1.5, "dry_multiplier": 1.0, "presence_penalty": 1.0}
    texts = {load().generate(shown(seed), **params).token_ids for seed in range(2)}
    assert len(texts) == 2


def test_others_go_on_while_one_is_read(
    load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hearing, "SLOWER", 1.0)  # a piece a step
    engine = load()
    talker = engine.add(shown(text="go on"), max_new_tokens=80, ignore_eos=True)
    while not any(event.token_ids for event in engine.step()):
        pass
    seer = engine.add(shown(0), max_new_tokens=2, ignore_eos=True)
    assert engine.looking is not None
    steps = 0
    while not engine.looking.read:
        assert [each.request for each in engine.step()] == [talker]  # a token each
        steps += 1
    assert steps > 10
    assert set(finished(engine, 2)) == {talker, seer}


def test_a_request_that_leaves_lets_its_rows_go(load: Callable[..., Engine]) -> None:
    engine = load()
    rows: Any = engine.decoder.target.rows  # type: ignore[attr-defined]
    talker = engine.add(shown(text="go on"), **SAMPLED)
    engine.step()
    first, second = (engine.add(shown(0, 1), **SAMPLED) for _ in range(2))
    engine.step()  # the first picture is begun
    engine.cancel(first)
    assert len(rows) == 2
    assert {run.users for run in rows._runs.values()} == {1}
    done = finished(engine, 2)
    assert done[second].token_ids == load().generate(shown(0, 1), **SAMPLED).token_ids
    assert set(done) == {talker, second}
    third = engine.add(shown(2), **SAMPLED)
    engine.cancel(third)
    assert len(rows) == 2  # what was never read is gone, what was read stays


def test_a_picture_that_cannot_be_read_ends_its_own_request(load: Callable[..., Engine]) -> None:
    engine, sound = load(), load()
    looking: Any = engine.looking
    tower = looking.reader.reading

    def reading(patches: np.ndarray) -> Iterator[Any]:
        broken = np.array_equal(patches, picture(1).patches(looking.reader.vision))
        for each in tower(patches):
            yield each if each is None or not broken else each * np.nan

    looking.reader = replace(looking.reader, reading=reading)
    good, bad, text = (
        engine.add(each, **SAMPLED) for each in (shown(0), shown(1), shown(text="hello"))
    )
    events = {}
    while len(events) < 3:
        events |= {e.request: e for e in engine.step() if e.completion or e.error}
    assert isinstance(events[bad].error, InvalidOption)
    for request, asked in ((good, shown(0)), (text, shown(text="hello"))):
        completion = events[request].completion
        assert completion is not None
        assert completion.token_ids == sound.generate(asked, **SAMPLED).token_ids


def test_rows_without_room_are_told(load: Callable[..., Engine]) -> None:
    engine = load()
    rows: Any = engine.decoder.target.rows  # type: ignore[attr-defined]
    rows._free = rows._free[:8]  # two pictures
    first = engine.add(shown(0, 1), **SAMPLED)
    with pytest.raises(OutOfMemory, match="finish or cancel some"):
        engine.add(shown(0, 2), **SAMPLED)
    assert [run.users for run in rows._runs.values()] == [1, 1]
    assert set(finished(engine, 1)) == {first}
    assert engine.generate(shown(0, 2), **SAMPLED).token_ids  # what is idle goes
    rows.capacity = 8
    with pytest.raises(ContextExceeded, match="3 pictures have 12 rows"):
        engine.prepare(shown(0, 1, 2))


def wrong(messages: Messages, match: str, **options: Any) -> tuple[Messages, str, dict[str, Any]]:
    return messages, match, options


@pytest.mark.parametrize(
    ("messages", "match", "options"),
    [
        wrong(shown(0), "pictures are for answers", prompt_logprobs=0),
        wrong(shown(0), "pictures are for answers", pooling="mean"),
        wrong(shown(0), "pictures are for answers", open=True),
        wrong(shown(0), "pictures are for answers", endless=True),
        wrong([{"role": "user", "content": [{"type": "image", "image": "a.png"}]}], "a Picture"),
        wrong([{"role": "user", "content": [{"type": "image"}]}], "must be a Picture"),
        wrong([{"role": "user", "content": [{"type": "video"}]}], "type 'video' are not read"),
    ],
)
def test_what_does_not_go_with_pictures_is_refused(
    load: Callable[..., Engine], messages: Messages, match: str, options: dict[str, Any]
) -> None:
    with pytest.raises(PacelineError, match=match):
        load().prepare(messages, **options)


def test_a_client_names_no_rows(load: Callable[..., Engine]) -> None:
    engine = load()
    engine.generate(shown(0), **SAMPLED)
    [run] = engine.decoder.target.rows._runs.values()  # type: ignore[attr-defined]
    with pytest.raises(PromptError, match="ids 0 to 335"):
        engine.prepare([40, *run.ids, 41])
    ids = engine.tokenizer.chat(shown(0))
    engine.prepare(ids, pictures=[picture(0)])
    for given in (ids[:8] + ids[9:], ids + ids, [40, 41]):
        with pytest.raises(PromptError, match="for 1 pictures of 4 rows"):
            engine.prepare(given, pictures=[picture(0)])
    row = next(each for each in ids if ids.count(each) == 4)
    with pytest.raises(PromptError, match="must end with another"):
        engine.prepare([40, row, row, row, row], pictures=[picture(0)])


def test_models_without_sight_say_so(
    folders: Callable[[str], tuple[Path, Any]], load: Callable[..., Engine], tmp_path: Path
) -> None:
    blind = load()
    blind.tokenizer.pictures = blind.looking = None
    with pytest.raises(PromptError, match=r"messages\[0\]: a content part is a picture"):
        blind.prepare(shown(0))
    with pytest.raises(PromptError, match="--mmproj FILE"):
        blind.prepare([40, 41], pictures=[picture(0)])
    folder = str(folders("smolvlm")[0])
    with pytest.raises(RuntimeUnavailable, match="reads no pictures"):
        paceline.load(folder, runtime="transformers", mmproj="x.gguf")
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    for name in ("none.gguf", "x.gguf"):
        with pytest.raises(ModelError):
            paceline.load(folder, mmproj=str(tmp_path / name))


def test_an_mmproj_beside_a_model_reads_its_pictures(
    folders: Callable[[str], tuple[Path, Any]], load: Callable[..., Engine], tmp_path: Path
) -> None:
    file = save_mmproj(folders("smolvlm")[0], tmp_path / "mmproj.gguf")
    expected = load().generate(CHAT, **SAMPLED)
    engine = load(mmproj=str(file))
    assert engine.generate(CHAT, **SAMPLED).token_ids == expected.token_ids
    assert engine.looking is not None
    assert b"mmproj" not in engine.looking.reader.settings  # nor is a path part of a key
    other = save_mmproj(folders("smolvlm")[0], tmp_path / "other.gguf", projection_dim=96)
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(file.read_bytes()[:-5000])
    model = folders("smolvlm")[0] / "model.safetensors"
    for wrong, match in (
        (other, "rows of width 96"),
        (damaged, "damaged"),
        (model, "is not a GGUF file"),
        (tmp_path / "none.gguf", "none.gguf"),
    ):
        with pytest.raises(ModelError, match=match) as caught:
            load(mmproj=str(wrong))
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("template", ["text", "parts"])
def test_templates_that_know_no_pictures_show_them(
    load: Callable[..., Engine], template: str
) -> None:
    engine = load()
    tokenizer = engine.tokenizer
    ids = tokenizer.chat(shown(0, text=" see"))
    said = {
        "text": "{{ message.content | trim }}",
        "parts": "{% for part in message.content %}{{ part.text }}{% endfor %}",
    }[template]
    tokenizer.chat_template = (
        "{% for message in messages %}{{ '<|im_start|>' + message.role + ':' }}"
        + said
        + "{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant:' }}"
    )
    found = tokenizer.chat(shown(0, text=" see"))
    joined = tokenizer.encode("\n") if template == "text" else []
    at = ids.index(tokenizer.encode(" see")[0])
    assert found == ids[:at] + joined + ids[at:]
    tokenizer.chat_template = "{% for message in messages %}{{ message.role }}{% endfor %}"
    with pytest.raises(PromptError, match="shows 0 pictures of 1"):
        tokenizer.chat(shown(0))


def test_settings_are_part_of_a_key(load: Callable[..., Engine]) -> None:
    settings = {load(precision=each).looking.reader.settings for each in ("fp32", "int8")}  # type: ignore[union-attr]
    assert len(settings) == 2
    assert picture(0).key(b"a") != picture(0).key(b"b")
