"""Engines over a hybrid model: drafts, batches, preemption and prefixes change no text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.helpers import hybrid
from tests.helpers.table_engines import finish

import paceline
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.runtimes.kv_cache import BLOCK

PROMPTS = [
    "the quick brown fox jumps over the lazy dog and the quick brown fox",
    "def f(x): return x + 1 def f(x): return x + 1 def f(x)",
    "12 34 567 12 34 567 12 34",
    "the lazy dog",
]
PARAMS = [SamplingParams(max_new_tokens=60, ignore_eos=True)]
PARAMS += [SamplingParams(max_new_tokens=60, ignore_eos=True, temperature=0.8, seed=5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hybrid.save(tmp_path_factory.mktemp("hybrid"))


def engine(folder: Path, **options: Any) -> Any:
    return paceline.load(str(folder), **{"threads": 2, "drafter": "none", **options})


@pytest.fixture(scope="module")
def plain(folder: Path) -> list[list[tuple[int, ...]]]:
    made = engine(folder)
    return [[made.generate(p, each).token_ids for p in PROMPTS] for each in PARAMS]


def together(made: Any, params: SamplingParams, prompts: list[str] = PROMPTS) -> list[Any]:
    return [each.token_ids for each in made.generate(prompts, params)]


@pytest.mark.parametrize("drafter", ["prompt-lookup", "suffix-automaton", "recycling"])
@pytest.mark.parametrize("batch", [1, 4])
def test_drafts_and_batches_change_no_text(
    drafter: str, batch: int, folder: Path, plain: Any
) -> None:
    made = engine(folder, drafter=drafter, max_batch=batch, controller="fixed", nodes=6)
    for params, expected in zip(PARAMS, plain, strict=True):
        found = made.generate(PROMPTS, params)
        assert [each.token_ids for each in found] == expected
        assert sum(each.stats.drafted_tokens for each in found) > 0
    if drafter == "recycling":  # in trees
        assert sum(each.stats.accepted_tokens for each in found) > 0


@pytest.mark.parametrize("kind", ["draft-model", "string-level"])
def test_a_hybrid_may_draft(kind: str, folder: Path, plain: Any) -> None:
    """What it reads again is what it had: itself as the draft model is accepted whole."""
    options = {"drafter": kind, "draft_model": str(folder), "controller": "fixed", "depth": 4}
    made = engine(folder, **options)
    for params, expected in zip(PARAMS[:1], plain, strict=False):
        found = made.generate(PROMPTS, params)
        assert [each.token_ids for each in found] == expected
        accepted, drafted = (
            sum(getattr(each.stats, name) for each in found)
            for name in ("accepted_tokens", "drafted_tokens")
        )
        assert accepted > 0.8 * drafted or kind == "string-level"


def test_its_own_head_drafts(
    tmp_path: Path, folder: Path, plain: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """By name, in trees, and of itself: the text is that without; a file without one says so."""
    caplog.set_level("INFO")
    with_head = hybrid.save(tmp_path, head=True)
    for drafter in ("mtp", "mtp:growth=expand-rerank"):
        made = engine(with_head, drafter=drafter, controller="fixed", nodes=4)
        for params, expected in zip(PARAMS, plain, strict=True):
            found = made.generate(PROMPTS, params)
            assert [each.token_ids for each in found] == expected
            assert sum(each.stats.drafted_tokens for each in found) > 0
    assert "mtp" in engine(with_head, drafter="auto").config["drafter"]
    assert "no MTP head" not in caplog.text
    assert "mtp" not in engine(folder, drafter="auto").config["drafter"]
    assert caplog.text.count(f"no MTP head in {folder.name}") == 1
    for wrong, message in ((folder, "holds no head"), (with_head, "as it is")):
        with pytest.raises(InvalidOption, match=message):
            engine(wrong, drafter="mtp" if wrong == folder else "mtp:weights=x")


def test_preemption_and_few_states_change_no_text(folder: Path, plain: Any) -> None:
    """Blocks for two of four, and states for two: the others wait or are read again."""
    made = engine(folder, drafter="suffix-automaton", kv_tokens=8 * BLOCK, prefix_tokens=0)
    assert together(made, PARAMS[0]) == plain[0]
    assert made.loop.target.memory.sequences < len(PROMPTS)


def test_samples_of_one_prompt(folder: Path, plain: Any) -> None:
    """Those behind the first begin at a state near the end of the prompt."""
    made, prompt = engine(folder, drafter="recycling"), list(range(3, 200))
    ids = [made.add(prompt, PARAMS[1], sample=sample) for sample in range(3)]
    done = finish(made)
    assert all(len(prompt) - done[each].stats.cached_tokens < 2 * BLOCK for each in ids[1:])
    for sample, each in enumerate(ids):
        alone = engine(folder)
        again = alone.add(prompt, PARAMS[1], sample=sample)
        assert finish(alone)[again].token_ids == done[each].token_ids


def test_prompts_that_come_together_share_their_beginning(folder: Path) -> None:
    made, first = engine(folder), list(range(3, 250))
    prompts = [[*first[:200], *range(100 + each, 160 + each)] for each in range(3)]
    ids = [made.add(prompt, PARAMS[0]) for prompt in prompts]
    done = finish(made)
    assert [done[each].stats.cached_tokens for each in ids[1:]] == [192, 192]
    for prompt, each in zip(prompts, ids, strict=True):
        assert engine(folder).generate(prompt, PARAMS[0]).token_ids == done[each].token_ids


def test_a_second_turn_reads_little_again(folder: Path) -> None:
    made = engine(folder)
    first = list(range(3, 300))
    answer = made.generate(first, max_new_tokens=40, ignore_eos=True)
    turn = [*first, *answer.token_ids, *range(3, 40)]
    second = made.generate(turn, max_new_tokens=8, ignore_eos=True)
    assert len(turn) - second.stats.cached_tokens < 2 * BLOCK + 40
    other = engine(folder, prefix_tokens=0)
    assert other.generate(turn, max_new_tokens=8, ignore_eos=True).token_ids == second.token_ids
    # A prompt that leaves a known one in its middle; the next to do so finds a state there.
    for reads in (len(first), 3 * BLOCK):
        branch = [*first[:200], *range(100, 140)]
        found = made.generate(branch, max_new_tokens=4, ignore_eos=True)
        assert len(branch) - found.stats.cached_tokens <= reads
