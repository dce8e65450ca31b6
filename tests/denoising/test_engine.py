"""Canvases behind engine and server, on tiny random models: the text is the same anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.serving import TEXT, Client, events, run
from tests.helpers.tiny_model import save_directory, tiny_config

import paceline
from paceline.core.types import CanvasParams, Speculation
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption

MASK = 319
PROMPTS = ["the quick", "dog", "12 34 567", "def f(x): return", "lazy lazy lazy dog", "fox"]
# What a client asks for, and what it is told: files are the operator's, and all has a bound.
WRONG = {
    '{"sampler": "threshold:tau=-3"}': "tau must be",
    '{"sampler": "filter:weights=/etc/hostname"}': "names a file",
    '{"sampler": "freedave>filter:weights=/nowhere,tau=0.5"}': "names a file",
    '{"sampler": "filter:tau=nan"}': "tau must be 0 or more, and below 1",
    '{"sampler": "dream:steps=1000000000"}': "steps must be from 1 to 1024",
    '{"sampler": "counts:steps=1000000000"}': "steps must be",
    '{"sampler": "remask:rounds=100000>counts"}': "rounds must be from 0 to 64",
    '{"sampler": "tidar:width=100000"}': "width must be from 1 to 32",
    '{"sampler": "freedave:width=100000>counts"}': "width must be",
    '{"sampler": "credit>credit>counts"}': "stands twice",
    '{"sampler": "speculative>guided"}': "use freedave>guided",
    '{"cache": "dual:every=inf"}': "every of cache 'dual' must be a whole number",
    '{"samplr": "counts"}': "samplr",
    '{"block": 0}': "block",
}
OPTIONS = (
    CanvasParams("counts"),
    CanvasParams("threshold:tau=0.02", block=4),
    CanvasParams("counts:per_step=2,by=random", ending="cut"),
    CanvasParams("counts:by=entropy", block=2, cache="none"),
)


def save(path: Path, attention: str = "block", **facts: Any) -> Path:
    save_directory(path, tiny_config())
    config = json.loads((path / "config.json").read_text())
    config["denoiser"] = {"mask_token_id": MASK, "attention": attention} | facts
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("denoisers")
    kinds = {"block": {"autoregressive": True, "block_size": None}}
    kinds |= {"full": {}, "shifted": {"shift": True, "block_size": 4}}
    return {
        name: save(root / name, "full" if name == "full" else "block", **facts)
        for name, facts in kinds.items()
    }


def load(path: Path, **options: Any) -> Engine:
    return paceline.load(str(path), max_context=128, **options)


def asked(index: int) -> dict[str, Any]:
    return {
        "raw": True,
        "max_new_tokens": 80,
        "temperature": 0.9 * (index % 2),
        "seed": index,
        "presence_penalty": 0.4 * (index % 3),
        "logprobs": 1,
        "ignore_eos": index % 2 == 0,
        "denoising": OPTIONS[index % len(OPTIONS)],
    }


@pytest.mark.parametrize("name", ["block", "full", "shifted"])
def test_mixed_requests_have_the_same_text_alone_batched_and_preempted(models, name):
    alone = load(models[name])
    expected = [alone.generate(PROMPTS[i % 6], **asked(i)) for i in range(8)]
    batched = load(models[name], max_batch=8)
    crowded = load(models[name], max_batch=8, kv_tokens=128)
    for engine in (batched, crowded):
        ids = [engine.add(PROMPTS[i % 6], **asked(i)) for i in range(8)]
        found = {}
        while engine.pending:
            for event in engine.step():
                assert event.error is None
                if event.completion is not None:
                    found[event.request] = event.completion
        for request, wanted in zip(ids, expected, strict=True):
            assert found[request].token_ids == wanted.token_ids
            assert found[request].logprobs == wanted.logprobs
    assert crowded.scheduler.preemptions > 0
    memory = crowded.decoder.memory
    assert memory.free == memory.blocks


def test_torch_fills_the_same_canvas(models):
    torch = load(models["block"], runtime="torch")
    native = load(models["block"], precision="fp32", kv_precision="fp32")
    for index in range(6):
        options = asked(index)
        wanted = torch.generate(PROMPTS[index], **options)
        assert native.generate(PROMPTS[index], **options).token_ids == wanted.token_ids


def test_an_answer_is_resumed_from_its_tokens(models):
    engine = load(models["block"])
    whole = engine.generate("the quick", **asked(3))
    for kept in (1, 5, 9):
        first = whole.token_ids[:kept]
        rest = engine.generate("the quick", resume=first, **asked(3))
        assert rest.token_ids == whole.token_ids


def test_autoregressive_decoding_in_the_same_weights_with_drafts(models):
    plain = load(models["block"], sampler="autoregressive", drafter="none")
    drafted = load(models["block"], drafter="suffix-automaton")
    for prompt in PROMPTS:
        one = plain.generate(prompt, max_new_tokens=20, ignore_eos=True)
        assert (
            drafted.generate(prompt, max_new_tokens=20, ignore_eos=True).token_ids == one.token_ids
        )
    with pytest.raises(InvalidOption, match="cannot decode from left to right"):
        load(models["full"], drafter="none")


def test_stop_strings_end_a_canvas_and_its_stream(models):
    engine = load(models["block"])
    options = {"raw": True, "max_new_tokens": 24, "ignore_eos": True}
    text = engine.generate("dog", **options).text
    stop = text[len(text) // 2 :][:2]
    assert engine.generate("dog", stop=(stop,), **options).text == text[: text.index(stop)]
    assert "".join(engine.stream("dog", **options)) == text


def test_a_constraint_holds_at_any_number_of_places_a_step(models):
    engine = load(models["block"])
    made = engine.grammar.regex(r"(the|dog) [0-9]{2,4}")
    for index, sampler in enumerate(["counts", "counts:per_step=4", "threshold:tau=0"]):
        for temperature in (0.0, 1.0):
            text = engine.generate(
                "the quick",
                raw=True,
                constraint=made,
                max_new_tokens=24,
                temperature=temperature,
                seed=index,
                denoising=CanvasParams(sampler),
            ).text
            assert (
                engine.grammar.regex(r"(the|dog) [0-9]{2,4}")
                .start()
                .valid(engine.tokenizer.encode(text))
            ), text


def test_requests_that_make_no_sense_are_refused(models):
    engine = load(models["block"])
    with pytest.raises(InvalidOption, match="prompt_logprobs have no meaning"):
        engine.prepare("dog", prompt_logprobs=1)
    with pytest.raises(InvalidOption, match="a prediction is for models that predict the next"):
        engine.prepare("dog", prediction="the dog")
    with pytest.raises(InvalidOption, match="a draft is for models that predict the next token"):
        engine.prepare("dog", speculation=Speculation(draft=(1, 2)))
    with pytest.raises(InvalidOption, match="sampler 'x' is unknown"):
        engine.prepare("dog", denoising=CanvasParams("x"))
    with pytest.raises(InvalidOption, match="forced_tokens holds the mask, token 319"):
        engine.prepare("dog", forced_tokens={0: MASK})
    with pytest.raises(InvalidOption, match="denoising must be CanvasParams"):
        engine.prepare("dog", denoising={"sampler": "counts"})
    for wrong in ({"sampler": 5}, {"cache": 5}, {"block": "4"}, {"block": True}, {"block": 2**31}):
        with pytest.raises(InvalidOption, match=f"{next(iter(wrong))} must be"):
            CanvasParams(**wrong)
    for left in ({"drafter": "recycling"}, {"nodes": 4}, {"depth": 2}, {"pool": 8}):
        with pytest.raises(InvalidOption, match="drafter, verifier, controller, nodes, depth"):
            load(models["block"], sampler="counts", **left)
    for sampler in ("filter:tau=2", "counts>counts", "credit>guided"):
        with pytest.raises(InvalidOption):  # before anything is loaded
            paceline.load("/nowhere", sampler=sampler)
    # Before decoding: by a constraint, and by the size of the canvas.
    full, rule = load(models["full"]), load(models["full"]).grammar.regex("a+")
    for sampler, match in (
        ("remask>counts", "a constraint cannot follow"),
        ("speculative>counts", "use freedave>counts"),
        ("freedave>remask>counts", "a constraint cannot follow"),
    ):
        asked: dict[str, Any] = {"temperature": 1.0, "constraint": rule}
        with pytest.raises(InvalidOption, match=match):
            full.prepare("dog", denoising=CanvasParams(sampler), **asked)
    for sampler in ("filter", "freedave>filter", "credit>filter"):
        with pytest.raises(InvalidOption, match="blocks of 20 places, not 32: set block"):
            full.prepare("dog", max_new_tokens=32, denoising=CanvasParams(sampler))


def test_per_request_samplers_and_steps_over_http(models):
    engine = load(models["block"], max_batch=4)
    params = {"raw": True, "max_new_tokens": 12, "ignore_eos": True}
    wanted = engine.generate("the quick", denoising=CanvasParams("threshold:tau=0.02"), **params)

    async def ask(client: Client) -> None:
        body = TEXT | {"prompt": "the quick", "max_tokens": 12, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True}
        chosen = {"denoising": {"sampler": "threshold:tau=0.02", "steps": True}}
        answer = (await client.post("/v1/completions", body | chosen)).json()
        assert answer["choices"][0]["text"] == wanted.text
        streamed = await client.post("/v1/completions", body | chosen | {"stream": True})
        places: dict[int, str | None] = {}
        for event in events(streamed.text):
            for fill in event.get("paceline", {}).get("fills", ()):
                places[fill["at"]] = fill["text"]
        assert sorted(places) == list(range(12))
        for asked, told in WRONG.items():
            wrong = {"denoising": json.loads(asked)}
            error = await client.refused("/v1/completions", body | wrong)
            assert told in error["message"], asked

    run(ask, engine)
