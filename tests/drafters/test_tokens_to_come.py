"""A draft model that foretells several tokens in one forward, by an id for those to come (PARD)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.drafters.test_draft_model import BIG, SAMPLED, VOCABULARY, Watched, decoder_of, plain
from tests.helpers import tiny_model as tiny
from tests.helpers.decoding_loop import decode
from tests.helpers.steps import step_of

import paceline
from paceline.core.types import Budget, LogitArray, SamplingParams
from paceline.drafters.draft_model import DraftModel
from paceline.errors import InvalidOption, ModelError
from paceline.models.source import DirectorySource, resolve
from paceline.runtimes.cpu.target import CpuTarget
from paceline.sampling.generation import Generation
from paceline.trees.base import TreeExpansion
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Iid
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled
from paceline.verifiers.recursive import Recursive
from paceline.verifiers.rejection import Rejection

COME = 320  # the id behind those of the target


def foresees(context: tuple[int, ...]) -> LogitArray:
    """The target's greedy text goes on where the last id, one more than it has, stands for it."""
    known = tuple(each for each in context if each != VOCABULARY)
    for _ in range(len(context) - len(known)):
        known = (*known, int(BIG.logits(known).argmax()))
    return np.append(BIG.logits(known), np.float32(-100))


class Ahead(Watched):
    """The same as a target."""

    def __init__(self) -> None:
        super().__init__(BIG)
        self._logits = foresees
        self._capabilities = replace(self._capabilities, vocab_size=VOCABULARY + 1)


def drafter_of(model: Any, growth: TreeExpansion) -> DraftModel:
    return DraftModel(model, VOCABULARY, growth, to_come=VOCABULARY)


def test_a_draft_takes_one_forward() -> None:
    model = Ahead()
    params = SamplingParams(max_new_tokens=40)
    [sequence] = decode(
        decoder_of(drafter_of(model, SharedNoise([1])), Coupled()), [[1, 2]], params
    )
    stats = sequence.stats
    assert stats.accepted_tokens == stats.drafted_tokens == 32
    assert len(model.fed) == stats.target_forwards == 8
    assert [len(each.tree.tokens) for each, _ in model.fed if each.tree is not None] == [3] * 8
    assert all(VOCABULARY not in cached for _, cached in model.fed)
    assert [sequence.generated] == plain([[1, 2]], params, Coupled())


RULES: list[tuple[Verifier, TreeExpansion]] = [
    (Coupled(), SharedNoise([1])),
    (Coupled(), SharedNoise([2, 1])),
    (Rejection(), Iid([1])),
    (Recursive(), Iid([2])),
]


@pytest.mark.parametrize(("verifier", "growth"), RULES)
def test_any_draft_in_a_batch(verifier: Verifier, growth: TreeExpansion) -> None:
    """Texts of coupled drafts are those without; of drawn ones there are some, and all end."""
    prompts = [[1, 2], [3], [0, 4, 5]]
    drafter = drafter_of(Ahead(), growth)
    found = decode(decoder_of(drafter, verifier, nodes=8), prompts, SAMPLED)
    assert sum(each.stats.accepted_tokens for each in found) > 0
    if verifier.name == "coupled":
        assert [each.generated for each in found] == plain(prompts, SAMPLED, verifier)
    else:
        assert {len(each.generated) for each in found} == {SAMPLED.max_new_tokens}


def test_nothing_is_drafted_beyond_the_context() -> None:
    model = Ahead()
    model._capabilities = replace(model.capabilities, max_context=12)
    drafter = drafter_of(model, SharedNoise([1]))
    decode(decoder_of(drafter, Coupled()), [[1, 2]], SamplingParams(max_new_tokens=30))
    longest = max(len(cached) + len(each.tree.tokens) for each, cached in model.fed if each.tree)
    assert longest < 12


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save_directory(tmp_path_factory.mktemp("model"), tiny.tiny_config("llama"))


def small(path: Path, **more: Any) -> Path:
    """A draft model that has one id more than the target, for tokens to come."""
    path = tiny.save_directory(path, tiny.tiny_config("llama", vocab_size=COME + 1), seed=1)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "pard_token": COME, **more}))
    return path


def theirs(path: Path, text: list[int], depth: int) -> list[int]:
    """Most likely tokens at the last ids of a text and those to come, as transformers has them."""
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    judge = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        logits = judge(torch.tensor([[*text, *[COME] * (depth - 1)]])).logits[0, -depth:, :COME]
    return [int(each) for each in logits.argmax(-1)]


@pytest.mark.parametrize("told", [COME, 7])
def test_drafts_are_what_transformers_foretells(tmp_path: Path, told: int) -> None:
    """Round after round: no id to come is kept. Control: another id for it foretells otherwise."""
    path = small(tmp_path)
    source = DirectorySource(path)
    model = CpuTarget(source.config, source.weights(), "fp32")
    drafter = DraftModel(model, COME, SharedNoise([1]), to_come=told)
    sequence = Generation.start(0, [5, 17, 200, 31], SamplingParams(max_new_tokens=40))
    found, wanted = [], []
    for committed in ([], [8, 90], [4], [251, 60, 33, 7, 120]):
        sequence.tokens.extend(committed)
        drafter.observe(step_of([sequence]))
        [draft] = drafter.propose([sequence], [Budget(4, 4)])
        found.append(draft.tokens.tolist())
        wanted.append(theirs(path, sequence.tokens, 4))
    assert (found == wanted) == (told == COME)


def test_texts_are_those_without_drafts(tmp_path: Path, model: Path) -> None:
    named = {"draft_model": str(small(tmp_path)), "progress": False}
    params = SamplingParams(max_new_tokens=24, temperature=0.8, seed=3)
    prompts = ["the quick brown", "def f(x)"]
    engine = paceline.load(str(model), drafter="draft-model", nodes=4, depth=4, **named)
    plain = paceline.load(str(model), drafter="none", progress=False)
    drafted = engine.generate(prompts, params)
    assert [each.token_ids for each in drafted] == [
        each.token_ids for each in plain.generate(prompts, params)
    ]
    assert sum(each.stats.drafted_tokens for each in drafted) > 0


def test_inspect_and_refusals(tmp_path: Path, model: Path) -> None:
    assert resolve(str(small(tmp_path))).config.token_to_come == COME
    assert resolve(str(model)).config.token_to_come is None
    with pytest.raises(InvalidOption, match=r"pard_token of the draft model.*7 tokens"):
        DraftModel(Ahead(), VOCABULARY, SharedNoise([1]), to_come=9)
    with pytest.raises(ModelError, match="PARD-2 drafter"):
        DirectorySource(small(tmp_path / "second", spd_type="pard2"))
