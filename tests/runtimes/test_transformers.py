"""The transformers runtime, and the torch runtime against it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tests.helpers.target_contract as contract
import torch
import transformers
from tests.helpers.decoding_loop import decode
from tests.helpers.table_engines import TOKENIZER
from tests.helpers.tiny_model import FAMILIES, save_directory, save_gguf, tiny_config

from paceline.core import tree
from paceline.core.target import Rows, Target
from paceline.core.types import Budget, SamplingParams, TokenTree
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, ModelError, RuntimeUnavailable
from paceline.models.config import ModelConfig
from paceline.models.source import DirectorySource, GGUFSource, resolve
from paceline.policy.controller import Fixed
from paceline.registry.loading import load_model, make_engine
from paceline.runtimes import transformers as runtime
from paceline.runtimes.torch.target import TorchTarget
from paceline.runtimes.transformers import Buffers, Shape, TransformersTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

TOLERANCE = 1e-4  # float32: kernels with and without a mask add up in different orders


def load(path: Path, family: Any = "llama") -> TransformersTarget:
    return TransformersTarget.load(DirectorySource(save_directory(path, tiny_config(family))))


@pytest.fixture(scope="module", params=Shape)
def target(request: pytest.FixtureRequest, tmp_path_factory: Any) -> TransformersTarget:
    loaded = load(tmp_path_factory.mktemp("llama"))
    assert loaded.shape is Shape.TREES
    loaded.shape = request.param
    return loaded


def test_nodes_equal_their_paths(target: TransformersTarget) -> None:
    contract.check_nodes_equal_their_paths(target, TOLERANCE, contract.DRAFT)


@pytest.mark.parametrize("path", [(), (0,), (0, 2, 6), (1, 3), contract.ACROSS])
def test_keep_equals_recomputation(target: TransformersTarget, path: tuple[int, ...]) -> None:
    contract.check_keep(target, path, TOLERANCE)


def test_cache_operations(target: TransformersTarget) -> None:
    contract.check_forward_alone_changes_nothing(target, TOLERANCE)
    contract.check_truncate(target, TOLERANCE)
    contract.check_fork(target, TOLERANCE)
    contract.check_ragged_batches(target, TOLERANCE)
    contract.check_most_probable(target)
    contract.check_long_prefill(target, TOLERANCE)


def test_layers_and_blocks_are_refused(target: TransformersTarget) -> None:
    cache, sees = target.open(), np.tri(2, dtype=np.bool_)
    block = Rows.block(cache, [1, 2], np.arange(2), sees)
    given = Rows.draft(cache, [1], inputs=np.zeros((1, 8), np.float32))
    for rows, layers in ((block, None), (given, None), (Rows.draft(cache, [1]), [0])):
        with pytest.raises(InvalidOption, match="no layers or blocks: use cpu or torch"):
            target.forward([rows], layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_torch_agrees_with_transformers(family: Any, tmp_path: Path) -> None:
    theirs = load(tmp_path, family)
    ours = TorchTarget.load(DirectorySource(tmp_path))
    for field in ("vocab_size", "max_context", "hidden_size"):
        assert getattr(ours.capabilities, field) == getattr(theirs.capabilities, field)
    outputs = [
        target.forward([Rows.draft(target.open(), contract.PROMPT, contract.DRAFT, hidden=True)])[0]
        for target in (ours, theirs)
    ]
    assert outputs[0].hidden is not None
    assert outputs[1].hidden is not None
    contract.close(outputs[0].logits, outputs[1].logits, TOLERANCE)
    contract.close(outputs[0].hidden, outputs[1].hidden, TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_models_agree_too(family: Any, tmp_path: Path) -> None:
    source = GGUFSource(save_gguf(tmp_path / "m.gguf", tiny_config(family)))
    contract.close(
        contract.logits_of(TransformersTarget.load(source), contract.PROMPT),
        contract.logits_of(TorchTarget.load(source), contract.PROMPT),
        TOLERANCE,
    )


def test_the_library_s_own_gguf_reader_agrees(tmp_path: Path) -> None:
    """It is what reads GGUF files of architectures that paceline does not know."""
    source = GGUFSource(save_gguf(tmp_path / "m.gguf", tiny_config()))

    class Unknown(GGUFSource):
        @property
        def config(self) -> ModelConfig:
            raise ModelError("not of a known family")

    contract.close(
        contract.logits_of(TransformersTarget.load(Unknown(source.path)), contract.PROMPT),
        contract.logits_of(TorchTarget.load(source), contract.PROMPT),
        TOLERANCE,
    )


SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
WINDOW = {**SIZES, "head_dim": 8, "sliding_window": 4}  # shorter than the sequences
# What each can do: positions from rotations, from a learned table, from slots, windows per layer.
MODELS: dict[str, tuple[Shape, dict[str, Any]]] = {
    "llama": (Shape.TREES, SIZES),
    "qwen2": (Shape.TREES, SIZES),
    "phi3": (Shape.TREES, {**SIZES, "pad_token_id": 0, "eos_token_id": 2}),
    "mistral": (Shape.TREES, WINDOW),
    "gemma3_text": (
        Shape.TREES,
        {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": (Shape.TREES, {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "opt": (
        Shape.TREES,
        {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 128},
    ),
    "bloom": (Shape.PATHS, {"hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": (
        Shape.LENGTHS,
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
        },
    ),
}


def other(kind: str, dtype: Any = torch.float32, **sizes: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "tie_word_embeddings": False, **sizes}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with torch.no_grad():
        for weights in model.parameters():
            if weights.ndim > 1:
                weights *= 8  # else all say the same token for ever
    return model


@cache
def tiny(kind: str, dtype: Any = torch.float64) -> TransformersTarget:
    shape, sizes = MODELS[kind]
    target = TransformersTarget(other(kind, dtype, **sizes))
    assert target.shape is shape
    return target


@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_keeps_the_contract(kind: str) -> None:
    target = tiny(kind)
    contract.check_nodes_equal_their_paths(target, TOLERANCE, contract.DRAFT)
    contract.check_keep(target, contract.ACROSS, TOLERANCE)
    contract.check_keep(target, (), TOLERANCE)
    contract.check_ragged_batches(target, TOLERANCE)
    contract.check_fork(target, TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
        ("lfm2", {**SIZES, "layer_types": ["conv", "full_attention"]}),
    ],
)
def test_models_with_a_state_are_refused_by_name(kind: str, sizes: dict[str, Any]) -> None:
    with pytest.raises(RuntimeUnavailable, match=rf"cannot run {kind} models: .*; choose") as error:
        TransformersTarget(other(kind, **sizes))
    assert "\n" not in str(error.value)


def test_rotations_that_depend_on_the_batch_keep_sequences_apart() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    model = other("llama", **SIZES, max_position_embeddings=16, rope_parameters=rope)
    target = TransformersTarget(model)
    short, long = ([5, 9, 17], [3] * 15)
    passes = [
        Rows.draft(contract.cache_with(target, text), [7], contract.DRAFT) for text in (short, long)
    ]
    with_it = target.forward(passes)[0].logits.copy()
    np.testing.assert_array_equal(with_it, target.forward(passes[:1])[0].logits)


# EQSPEC's invariant: a batch with drafts says what each request says alone, without.

TEXTS = [[5], [9, 17, 5, 9], list(range(10, 31)), [40, 41, 40, 41, 40, 41, 40]]
COUNT = 20
GREEDY = SamplingParams(max_new_tokens=COUNT, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.0, top_p=0.95, seed=9)


def without_cache(model: Any, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(COUNT):
            ids = torch.tensor([tokens])
            tokens.append(int(model(input_ids=ids, use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


class Knowing(Drafter):
    """Drafts trees whose right path has 0 to 4 nodes, never the first ones; the rest is wrong."""

    def __init__(self, answers: dict[tuple[int, ...], list[int]]) -> None:
        self.answers = answers
        self.right: list[int] = []

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        return [self._draft(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def _draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        done = len(sequence.generated)
        answer = self.answers[tuple(sequence.tokens[: sequence.prompt_length])][done:]
        rng = np.random.default_rng([sequence.prompt_length, done])
        right = answer[: rng.integers(0, 5)]
        wrong = (answer[0] + 1) % 64
        draft = tree.chain([wrong, 3]) if len(answer) > 1 else tree.EMPTY
        for count in range(len(right)):
            path = [*right[:count], (right[count] + 1) % 64]
            draft = tree.merge(tree.merge(draft, tree.chain(path)), tree.chain(right))
        self.right.append(min(len(right), budget.depth))
        return tree.limit(draft, budget.nodes, budget.depth)


def run(
    target: Target, prompts: Sequence[list[int]], params: SamplingParams, drafter: Drafter
) -> list[list[int]]:
    stops = StopRules((), 2048)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(16, 4), stops)
    return [sequence.generated for sequence in decode(decoder, list(prompts), params)]


def one_by_one(target: Target, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [run(target, [prompt], params, NoDrafter())[0] for prompt in TEXTS]


def knowing(answers: list[list[int]]) -> Knowing:
    return Knowing({tuple(p): a for p, a in zip(TEXTS, answers, strict=True)})


@pytest.mark.parametrize("kind", MODELS)
def test_a_drafted_batch_equals_plain_requests_one_by_one(kind: str) -> None:
    target = tiny(kind)
    expected = one_by_one(target)
    assert expected == [without_cache(target._model, prompt) for prompt in TEXTS]
    assert len({token for answer in expected for token in answer}) > 8
    drafter = knowing(expected)
    assert run(target, TEXTS, GREEDY, drafter) == expected
    assert set(drafter.right) == {0, 1, 2, 3, 4}  # accepted by turns, so lengths part
    assert len(drafter.right) < 0.6 * len(TEXTS) * COUNT
    assert run(target, TEXTS, GREEDY, NoDrafter()) == expected
    sampled = one_by_one(target, SAMPLED)
    assert sampled != expected
    assert run(target, TEXTS, SAMPLED, knowing(sampled)) == sampled


@pytest.mark.parametrize("kind", ["llama", "mistral", "gpt2", "bloom"])
def test_in_float32_a_batch_parts_at_near_ties_alone(kind: str) -> None:
    target = tiny(kind, torch.float32)
    expected = one_by_one(target)
    found = run(target, TEXTS, GREEDY, knowing(expected))
    gaps = []
    for prompt, mine, theirs in zip(TEXTS, found, expected, strict=True):
        at = next((i for i in range(COUNT) if mine[i] != theirs[i]), None)
        if at is not None:
            logits = contract.logits_of(target, prompt + theirs[:at])
            gaps.append(float(abs(logits[mine[at]] - logits[theirs[at]])))
    print(f"{kind}: {len(gaps)} of {len(TEXTS)} part at a near-tie: {gaps}")
    assert all(gap < 1e-3 for gap in gaps)
    assert len(gaps) < len(TEXTS)


def test_a_batch_is_one_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after rejections: rows stay where they are, and nothing is copied."""
    target = tiny("llama")
    calls: list[int] = []
    copies: list[int] = []
    inner, copy = target._model.forward, Buffers.copy

    def watched(**options: Any) -> Any:
        calls.append(len(options["input_ids"]))
        return inner(**options)

    def copied(self: Buffers, row: int, *rest: Any) -> None:
        copies.append(row)
        copy(self, row, *rest)

    monkeypatch.setattr(target._model, "forward", watched)
    monkeypatch.setattr(Buffers, "copy", copied)
    caches = [contract.cache_with(target, text) for text in TEXTS]
    calls.clear()
    for path in ((), contract.ACROSS, (0,)):
        copies.clear()
        target.forward([Rows.draft(each, [7], contract.DRAFT) for each in caches])
        for count, each in enumerate(caches):
            target.keep(each, 1, path if count % 2 else ())
    assert calls == [len(TEXTS)] * 3
    assert not copies


def padded_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions count from the longest sequence, as columns of a left-padded batch do."""
    longest, forward, right = [0], TransformersTarget.forward, runtime.row_positions

    def watched(self: TransformersTarget, every: Any, layers: Any = None) -> Any:
        longest[0] = max((p.cache.length for p in every), default=0)
        outputs = forward(self, every, layers)
        longest[0] = 0
        return outputs

    monkeypatch.setattr(TransformersTarget, "forward", watched)
    monkeypatch.setattr(
        runtime, "row_positions", lambda p: right(p) + max(0, longest[0] - p.cache.length)
    )


def padding_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TransformersTarget._visible

    def seen(self: Any, lanes: Any, positions: Any, end: int) -> Any:
        visible = right(self, lanes, positions, end)
        real = np.array([lane.cache.length + len(lane.tokens) for lane in lanes])
        beyond = torch.from_numpy(np.arange(end) >= real[:, None])[:, None, None]
        return replace(
            visible, seen=visible.seen | beyond, keys=visible.keys.masked_fill(beyond, 0)
        )

    monkeypatch.setattr(TransformersTarget, "_visible", seen)


def rejected_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    right = TransformersTarget.keep

    def keep(self: Any, cache: Any, num_new: int, path: Any) -> None:
        right(self, cache, num_new, path)
        cache.length += 1

    monkeypatch.setattr(TransformersTarget, "keep", keep)


def written_at_the_padded_end(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Buffers.begin

    def begin(self: Buffers, starts: Any, width: int) -> None:
        right(self, starts, width)
        self._slots = (max(starts) + torch.arange(width)).expand(len(starts), -1)

    monkeypatch.setattr(Buffers, "begin", begin)


@pytest.mark.parametrize(
    "wrong", [padded_positions, padding_visible, rejected_kept, written_at_the_padded_end]
)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_negative_controls_break_the_invariant(
    wrong: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny(kind)
    expected = one_by_one(target)
    wrong(monkeypatch)
    if wrong is not rejected_kept:
        assert one_by_one(target) == expected  # it takes a batch to go wrong
    assert run(target, TEXTS, GREEDY, knowing(expected)) != expected
    try:  # and the check at loading sees it
        assert TransformersTarget(target._model).shape is not Shape.TREES
    except RuntimeUnavailable:
        assert wrong in (padded_positions, rejected_kept)


# Requests that come and go.


def engine(target: Target, drafter: Drafter, **options: Any) -> Engine:
    stops = StopRules((), target.capabilities.max_context)
    parts = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(16, 4), stops)
    return Engine(parts, TOKENIZER, **options)


@pytest.mark.parametrize("pool", [None, 1, 2])
@pytest.mark.parametrize("kind", ["llama", "bloom", "gpt_neo"])
def test_requests_join_leave_and_are_cancelled(kind: str, pool: int | None) -> None:
    target = tiny(kind)
    expected = one_by_one(target)
    serving = engine(target, knowing(expected), max_batch=3, pool=pool)
    ids = [serving.add(TEXTS[0], GREEDY), serving.add(TEXTS[1], GREEDY, max_new_tokens=3)]
    done: dict[int, Any] = {}

    def step() -> None:
        done.update({e.request: e.completion for e in serving.step() if e.completion})

    step()
    ids.append(serving.add(TEXTS[2], GREEDY))  # while others decode
    step()
    ids.append(serving.add(TEXTS[3], GREEDY))
    step()
    cancelled = serving.cancel(ids[2])
    while serving.pending:
        step()
    assert cancelled is not None
    kept = len(cancelled.token_ids)
    assert list(cancelled.token_ids) == expected[2][:kept]
    assert kept < COUNT
    assert list(done[ids[0]].token_ids) == expected[0]
    assert list(done[ids[1]].token_ids) == expected[1][:3]
    assert list(done[ids[3]].token_ids) == expected[3]


def test_the_context_limit_ends_a_request_of_a_batch() -> None:
    model = other("gpt2", torch.float64, n_embd=32, n_layer=2, n_head=4, n_positions=32)
    target = TransformersTarget(model)
    assert target.capabilities.max_context == 32
    params = replace(GREEDY, max_new_tokens=100)
    alone = [engine(target, NoDrafter()).generate(text, params).token_ids for text in TEXTS]
    assert [len(text) + len(out) for text, out in zip(TEXTS, alone, strict=True)] == [32] * 4
    drafter = knowing([list(answer) for answer in alone])
    together = engine(target, drafter)
    ids = [together.add(text, params) for text in TEXTS]
    done = {}
    while together.pending:
        done.update({e.request: e.completion for e in together.step() if e.completion})
    assert [done[id].token_ids for id in ids] == alone


def test_pools_hold_sequences_of_one_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of equal length need no mask; those of all come when no group is large enough."""
    target = tiny("llama")
    steps: list[list[int]] = []
    prompts = [*TEXTS, [8, 9, 10, 11], [9]]
    expected = [run(target, [prompt], GREEDY, NoDrafter())[0] for prompt in prompts]
    forward = target.forward

    def watched(passes: Sequence[Rows]) -> Any:
        steps.append([p.cache.length for p in passes if p.tree is not None])
        return forward(passes)

    monkeypatch.setattr(target, "forward", watched)
    drafter = Knowing({tuple(p): a for p, a in zip(prompts, expected, strict=True)})
    serving = engine(target, drafter, max_batch=6, pool=2)
    ids = [serving.add(prompt, GREEDY) for prompt in prompts]
    done = {}
    while serving.pending:
        done.update({e.request: e.completion for e in serving.step() if e.completion})
    assert [list(done[id].token_ids) for id in ids] == expected
    pools = [step for step in steps if len(step) > 1 and len(set(step)) == 1]
    assert pools
    assert any(len(set(step)) > 1 for step in steps)
    for step in steps:  # a pool is of one length, or all are here since no two are equal
        assert len(set(step)) <= 1 or len(step) > 2 or len(set(step)) == len(step)


def test_pools_are_for_this_runtime(tmp_path: Path) -> None:
    path = save_directory(tmp_path, tiny_config())
    ours = load_model(str(path), runtime="torch", progress=False)
    with pytest.raises(InvalidOption, match="pool is for runtime transformers"):
        make_engine(ours, drafter="none", pool=2)
    theirs = load_model(str(path), runtime="transformers", progress=False)
    assert make_engine(theirs, drafter="none", pool=2).scheduler.limits.pool == 2


def test_an_unreadable_model_is_one_line(tmp_path: Path) -> None:
    directory = save_directory(tmp_path, tiny_config())
    (directory / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(ModelError, match="transformers cannot load") as caught:
        TransformersTarget.load(DirectorySource(directory))
    assert "\n" not in str(caught.value)


def test_an_unknown_quantisation_is_not_passed_over(tmp_path: Path) -> None:
    directory = save_directory(tmp_path, tiny_config())
    path = directory / "config.json"
    said = {"quantization_config": {"quant_method": "nonsense"}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    with pytest.raises(ModelError, match="quantised by 'nonsense'"):
        TransformersTarget.load(DirectorySource(directory))


def greedy(target: Target, prompt: list[int], count: int) -> list[int]:
    cache = contract.cache_with(target, prompt[:-1])
    tokens = [prompt[-1]]
    for _ in range(count):
        (output,) = target.forward([Rows.draft(cache, tokens[-1:])])
        target.keep(cache, 1, ())
        tokens.append(int(np.argmax(output.logits[0])))
    return tokens[1:]


@pytest.mark.real
@pytest.mark.slow
def test_the_default_model_says_the_same_on_both() -> None:
    source = resolve("smollm2-135m", progress=False)
    prompt = source.tokenizer().chat(
        [{"role": "user", "content": "What is the capital of France?"}]
    )
    ours = TorchTarget.load(source)
    theirs = TransformersTarget.load(source)
    answer = greedy(ours, prompt, 8)
    assert answer == greedy(theirs, prompt, 8)
    assert "Paris" in source.tokenizer().decode(answer)
    contract.close(contract.logits_of(ours, prompt), contract.logits_of(theirs, prompt), 1e-3)
