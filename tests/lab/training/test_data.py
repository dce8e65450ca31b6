"""Text that a target writes: the same whatever was interrupted, and refused where it is spoilt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.cli.fakes import loaded as fake

from paceline.errors import InvalidOption
from paceline.lab.training.data import SHARD, DataPlan, Shards, Text, write_texts
from paceline.registry.loading import make_engine

PROMPTS = ["one", "two", "three"]


def write(plan: DataPlan, count: int, batch: int, chat: bool = True, limit: int | None = None):
    """Texts by index; `limit` stops after so many."""
    engine = make_engine(fake(chat=chat), drafter="none", max_batch=batch)
    out: dict[int, Text | None] = {}
    stopped = (lambda: len(out) >= limit) if limit is not None else (lambda: False)
    for index, text in write_texts(engine, plan, range(count), batch, stopped):
        assert index not in out
        out[index] = text
    assert engine.pending == 0
    return out


def test_a_text_is_a_function_of_plan_and_index() -> None:
    plan = DataPlan(PROMPTS, 0.5, (0.0, 1.0), new_tokens=12, turn_tokens=6, seed=3)
    alone, together = write(plan, 12, 1), write(plan, 12, 5)
    assert sorted(alone) == list(range(12))
    for index, text in alone.items():
        other = together[index]
        assert (text is None) == (other is None)
        if text is not None:
            assert text.tokens.tolist() == other.tokens.tolist()
            assert text.prompt_length == other.prompt_length
            assert 0 < len(text.tokens) - text.prompt_length <= 12


def test_other_seeds_give_other_texts_where_something_is_drawn() -> None:
    def tokens(seed: int, temperature: float) -> list[list[int]]:
        plan = DataPlan(PROMPTS, 0.0, (temperature,), new_tokens=12, seed=seed)
        return [text.tokens.tolist() for text in write(plan, 3, 4).values()]

    assert tokens(0, 1.0) != tokens(1, 1.0)
    assert tokens(0, 0.0) == tokens(1, 0.0)


def test_an_end_in_the_middle_leaves_whole_texts() -> None:
    plan = DataPlan(PROMPTS, 0.0, (0.0, 1.0), new_tokens=9)
    whole, part = write(plan, 12, 2), write(plan, 12, 2, limit=4)
    assert 4 <= len(part) < 12
    for index, text in part.items():
        assert text.tokens.tolist() == whole[index].tokens.tolist()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.65, 1.0])
def test_the_share_of_self_written_turns_is_kept_and_prompts_come_by_turns(share: float) -> None:
    plan = DataPlan(PROMPTS, share)
    prompts = [plan.prompt(i) for i in range(100)]
    given = [prompt for prompt in prompts if prompt is not None]
    assert len(given) == 100 - int(100 * share)
    assert given == [PROMPTS[i % 3] for i in range(len(given))]


def test_a_prompt_that_fills_the_context_gives_no_text() -> None:
    plan = DataPlan(["x " * 600, "two"], 0.0, new_tokens=4)
    out = write(plan, 2, 2)
    assert out[0] is None
    assert out[1] is not None


def test_a_model_without_a_chat_template_cannot_write_turns() -> None:
    with pytest.raises(InvalidOption, match="self-written"):
        write(DataPlan(PROMPTS, 0.5), 2, 2, chat=False)
    assert len(write(DataPlan(PROMPTS, 0.0, new_tokens=3), 2, 2, chat=False)) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"self_written": 1.5},
        {"prompts": (), "self_written": 0.5},
        {"temperatures": ()},
        {"temperatures": (-1.0,)},
        {"temperatures": (0.0, float("nan"))},
        {"temperatures": (0.0, 1.0, -1.0)},
        {"new_tokens": 0},
        {"turn_tokens": 0},
    ],
)
def test_wrong_plans_are_refused(wrong: dict) -> None:
    with pytest.raises(InvalidOption):
        DataPlan(**{"prompts": PROMPTS, **wrong})


def text(index: int, size: int = 5) -> Text:
    return Text(index, np.arange(size) + index, 2)


def test_shards_come_back_and_the_missing_are_known(tmp_path: Path) -> None:
    shards = Shards(tmp_path / "new", {"a": "1"})
    shards.write(1, [text(SHARD + 3), text(SHARD + 1, 7)])
    again = Shards(tmp_path / "new")
    assert again.settings == {"a": "1"}
    read = again.read()
    assert [each.index for each in read] == [SHARD + 1, SHARD + 3]
    assert read[0].tokens.tolist() == text(SHARD + 1, 7).tokens.tolist()
    assert read[0].prompt_length == 2
    assert list(again.missing(2 * SHARD + 1)) == [*range(SHARD), 2 * SHARD]


def test_shards_of_other_settings_are_refused(tmp_path: Path) -> None:
    Shards(tmp_path, {"a": "1"}).write(0, [text(0)])
    with pytest.raises(InvalidOption, match="other settings"):
        Shards(tmp_path, {"a": "2"})
    with pytest.raises(InvalidOption, match="holds no training text"):
        Shards(tmp_path / "elsewhere")


@pytest.mark.parametrize("spoilt", [b"", b"nonsense" * 20, "cut"])
def test_a_damaged_shard_is_named(tmp_path: Path, spoilt: bytes | str) -> None:
    shards = Shards(tmp_path, {"a": "1"})
    shards.write(0, [text(0)])
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9] if spoilt == "cut" else spoilt)
    with pytest.raises(InvalidOption, match=path.name):
        shards.read()
    with pytest.raises(InvalidOption, match=path.name):
        Shards(tmp_path)


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    shards = Shards(tmp_path, {"a": "1"})
    shard = tmp_path / "shard-00000.safetensors"
    shard.mkdir()
    with pytest.raises(InvalidOption, match="cannot write"):
        shards.write(0, [text(0)])
    assert list(tmp_path.iterdir()) == [shard]
