"""Denoisers: what rows see, exact resume after a kill, and directories that other loaders read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.helpers.killed_run import goes_on_bit_for_bit

from paceline.cli.app import run as paceline
from paceline.core.target import Rows
from paceline.core.types import BoolArray, IntArray
from paceline.errors import InvalidOption
from paceline.lab.measure import parallel_tasks
from paceline.lab.training.card import card_of
from paceline.lab.training.data import Text
from paceline.lab.training.denoisers import task as training
from paceline.lab.training.denoisers.decode import best_tokens, decode
from paceline.lab.training.denoisers.files import LICENCE, denoiser, load_denoiser, save_denoiser
from paceline.lab.training.denoisers.rows import (
    EOS,
    MASK,
    ExampleRows,
    block_rows,
    full_rows,
    order_rows,
    pack,
    staged_rows,
    text_of,
    vocabulary,
)
from paceline.lab.training.denoisers.task import DenoiserTask, noised
from paceline.lab.training.model import TrainableModel
from paceline.lab.training.recipe import DenoiserKind as Kind
from paceline.lab.training.recipe import DenoiserRecipe
from paceline.lab.training.run import TrainingRun
from paceline.models.source import DirectorySource
from paceline.runtimes.torch.target import TorchTarget

KINDS: tuple[Kind, ...] = ("full", "block", "order")
IDS = vocabulary()


def recipe(kind: Kind, **more: object) -> DenoiserRecipe:
    shape = {"steps": 12, "batch": 6, "width": 32, "layers": 2, "head": 16, "ffn": 48}
    return DenoiserRecipe(kind=kind, **{**shape, **more})  # type: ignore[arg-type]


def module(kind: Kind = "full") -> TrainableModel:
    return denoiser(recipe(kind), torch.Generator().manual_seed(1))


def texts(count: int = 30) -> list[Text]:
    return [
        text_of(case, IDS, index)
        for name in parallel_tasks.TASKS
        for index, case in enumerate(parallel_tasks.cases(name, count // 15, 0))
    ]


def logits(network: TrainableModel, tokens: IntArray, positions: IntArray, sees: BoolArray):
    arrays = (tokens[None], positions[None], sees[None, None])
    with torch.no_grad():
        return network.packed(*map(torch.from_numpy, arrays))[0].numpy()


def canvas_of(text: Text, rows: ExampleRows) -> IntArray:
    # What stands at each place after the prompt, by the labels of rows that count.
    places = rows.positions[rows.weights > 0]
    found = np.full(max(*places, len(text.tokens)) + 1, EOS)
    found[: len(text.tokens)] = text.tokens
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_never_masked_and_labels_are_the_text(kind: Kind) -> None:
    for text, rows in zip(texts(), noised(texts(), recipe(kind), 0), strict=True):
        counted = rows.weights > 0
        masks = rows.tokens == MASK
        assert (rows.positions[masks] >= text.prompt_length).all()
        whole = canvas_of(text, rows)
        assert (rows.labels[masks & counted] == whole[rows.positions[masks & counted]]).all()
        assert rows.sees.diagonal().all()


def test_a_full_row_is_weighted_by_the_number_of_masks() -> None:
    rng = np.random.default_rng(0)
    for text in texts():
        rows = full_rows(text, rng, 0.0)
        masks = rows.tokens == MASK
        assert (rows.weights > 0).tolist() == masks.tolist()
        assert rows.weights.sum() == pytest.approx(1)


def test_exchanged_tokens_are_labelled_with_the_right_ones() -> None:
    rng = np.random.default_rng(0)
    wrong = 0
    for text in texts(150):
        rows = full_rows(text, rng, 0.5)
        visible = (rows.tokens != MASK) & (rows.weights > 0)
        wrong += int((rows.tokens != rows.labels)[visible].sum())
        assert (rows.tokens == rows.labels)[: text.prompt_length].all()
    assert wrong > 50


@pytest.mark.parametrize("size", [1, 3, 8, 64])
def test_stages_mask_half_of_a_block_and_all_behind_it_in_two_ways(size: int) -> None:
    seen: set[int] = set()
    for text in texts():
        rng = np.random.default_rng(len(text.tokens))
        one, other = staged_rows(text, rng, size)
        start = text.prompt_length
        assert (one.labels == other.labels).all()
        assert (one.labels == canvas_of_rows(text, len(one.labels))).all()
        block = (np.arange(len(one.tokens)) - start) // size
        counted = (one.weights > 0) | (other.weights > 0)
        [drawn] = set(block[counted].tolist())
        seen.add(drawn)
        for rows in (one, other):
            masks = rows.tokens == MASK
            assert masks[block > drawn].all()
            assert not masks[block < drawn].any()
            assert (rows.weights > 0).tolist() == (masks & (block == drawn)).tolist()
            assert (rows.tokens == rows.labels)[~masks].all()
        mine = block == drawn
        assert ((one.tokens == MASK) ^ (other.tokens == MASK))[mine].all()
        assert abs(int((one.tokens == MASK)[mine].sum() * 2) - int(mine.sum())) <= 1
        assert one.weights.sum() + other.weights.sum() == pytest.approx(
            1 if mine.sum() > 1 else 0.5
        )
    assert len(seen) > 1 or size == 64


def canvas_of_rows(text: Text, count: int) -> IntArray:
    found = np.full(count, EOS)
    found[: len(text.tokens)] = text.tokens
    return found


def test_guesses_stand_in_place_of_some_masks_and_must_be_put_right() -> None:
    task = DenoiserTask(recipe("full", guesses=0.5))
    packed = pack(noised(texts(), task.recipe, 0))
    guessed = task._guessed(packed, np.random.default_rng(0))
    changed = guessed.tokens != packed.tokens
    masks = packed.tokens == MASK
    assert 0.3 < float(changed.sum() / masks.sum()) < 0.7
    assert not changed[~masks].any()
    _, best = best_tokens(task.model, packed)
    assert (guessed.tokens[changed] == torch.from_numpy(best)[changed]).all()
    assert guessed.labels is packed.labels
    assert guessed.weights is packed.weights
    wrong = changed & (guessed.tokens != guessed.labels)
    assert wrong.sum() > 10, "they count, and are wrong"
    batch = task.batch(0)
    [(loss, _)] = task.losses(batch, 0)
    [(plain, _)] = DenoiserTask(recipe("full")).losses(batch, 0)
    assert float(loss.detach()) != float(plain.detach())


@pytest.mark.parametrize("given", [{"stages": 4}, {"guesses": 0.5}, {"corrupt": 0.1}])
def test_what_is_of_full_is_refused_elsewhere(given: dict[str, float]) -> None:
    for kind in ("block", "order"):
        with pytest.raises(InvalidOption, match=f"are of full, not of {kind}"):
            recipe(kind, **given)
    with pytest.raises(InvalidOption, match="without corrupt"):
        recipe("full", stages=4, corrupt=0.1)


@pytest.mark.parametrize("size", [1, 4, 16])
@pytest.mark.parametrize("causal", [False, True])
def test_block_rows_see_what_the_definition_says(size: int, causal: bool) -> None:
    rng = np.random.default_rng(size)
    for text in texts():
        rows = block_rows(text, rng, size, causal, 1.0)
        length = len(text.tokens)
        noisy = (len(rows.tokens) - length) // 2
        first = int(rows.positions[length])
        assert text.prompt_length - size < first <= text.prompt_length
        assert noisy % size == 0
        copy = np.repeat([0, 1, 2], [length, noisy, noisy])
        block = (rows.positions - first) // size
        for i in range(len(rows.tokens)):
            for j in range(len(rows.tokens)):
                if copy[i] and copy[j]:
                    wanted = copy[i] == copy[j] and block[i] == block[j]
                elif copy[i]:
                    wanted = block[j] < block[i]
                elif copy[j]:
                    wanted = False
                elif causal:
                    wanted = rows.positions[j] <= rows.positions[i]
                else:
                    wanted = block[j] <= block[i]
                assert rows.sees[i, j] == wanted
        one, other = (rows.tokens[length + k * noisy :][:noisy] == MASK for k in (0, 1))
        assert not (one & other).any()
        assert (one | other).tolist() == (
            rows.positions[length:][:noisy] >= text.prompt_length
        ).tolist()
        next_tokens = rows.weights[:length] > 0
        assert next_tokens.any() == causal
        assert (rows.labels[:length][next_tokens]).tolist() == (
            [*text.tokens[text.prompt_length :], EOS] if causal else []
        )


def test_the_noisy_copies_say_what_a_run_behind_a_clean_prefix_says() -> None:
    network, rng = module("block"), np.random.default_rng(0)
    for text in texts(15):
        rows = block_rows(text, rng, 4, True, 1.0)
        both = logits(network, rows.tokens, rows.positions, rows.sees)
        length, first = len(text.tokens), int(rows.positions[len(text.tokens)])
        for begin in range(length, len(rows.tokens), 4):
            at = slice(begin, begin + 4)
            before = min(int(rows.positions[begin]), length)
            tokens = np.concatenate([text.tokens[:before], rows.tokens[at]])
            places = np.concatenate([np.arange(before), rows.positions[at]])
            sees = np.tri(len(tokens), dtype=np.bool_)
            sees[before:] = True
            alone = logits(network, tokens, places, sees)[before:]
            np.testing.assert_allclose(both[at], alone, atol=2e-5)
        assert first <= text.prompt_length


def test_a_mask_row_of_an_order_depends_on_what_is_before_its_chunk_alone() -> None:
    network, rng = module("order"), np.random.default_rng(0)
    for text in texts():
        rows = order_rows(text, rng)
        size = int((rows.weights > 0).sum())
        clean = len(rows.tokens) - size
        assert sorted(rows.positions[:clean]) == list(range(clean))
        assert rows.positions[-size:].tolist() == rows.positions[clean - size : clean].tolist()
        plain = logits(network, rows.tokens, rows.positions, rows.sees)
        seen = rows.sees[clean:, :clean].sum(1)
        assert (rows.sees[clean:, :clean] == (np.arange(clean) < seen[:, None])).all()
        assert (seen <= text.prompt_length + np.arange(size)).all()  # never its own token
        for row in range(size):
            changed = rows.tokens.copy()
            changed[seen[row] : clean] = 5
            other = logits(network, changed, rows.positions, rows.sees)
            np.testing.assert_array_equal(other[clean + row], plain[clean + row])


def test_packed_examples_do_not_see_each_other() -> None:
    network = module()
    examples = noised(texts(), recipe("block"), 0)
    packed = pack(examples, 128)
    with torch.no_grad():
        found = network.packed(packed.tokens, packed.positions, packed.sees).numpy()
    for (bin_, begin), rows in zip(packed.places, examples, strict=True):
        alone = logits(network, rows.tokens, rows.positions, rows.sees)
        np.testing.assert_allclose(found[bin_, begin : begin + len(alone)], alone, atol=2e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind: Kind) -> None:
    run = TrainingRun(DenoiserTask(recipe(kind, steps=60, batch=16)))
    losses = [report.loss for report in run.run()]
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_bit_for_bit(kind: Kind, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    goes_on_bit_for_bit(DenoiserTask, recipe(kind), place)
    with pytest.raises(InvalidOption, match="other settings"):
        TrainingRun(DenoiserTask(recipe(kind, seed=1)), place)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_writes_a_model_that_loads(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "JUDGED", 1)
    out = tmp_path / "model"
    sizes = ["--width", "32", "--layers", "1", "--ffn", "32", "--steps", "3", "--batch", "4"]
    assert paceline(["train", "denoiser", kind, "--out", str(out), *sizes, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["finished"]
    assert set(next(iter(figures["held_out"].values()))) == set(parallel_tasks.TASKS)
    source = DirectorySource(out)
    tokenizer = source.tokenizer()
    case = next(parallel_tasks.cases("sums", 1, 0))
    ids = tokenizer.encode(case.prompt)
    assert ids == [IDS[word] for word in case.prompt.split()]
    assert tokenizer.decode(ids) == case.prompt
    assert tokenizer.prompt(case.prompt) == ids
    assert tokenizer.eos_token_ids == (EOS,)
    entry = json.loads((out / "config.json").read_text())["denoiser"]
    assert entry["mask_token_id"] == tokenizer.special_ids["<mask>"] == MASK
    assert entry["attention"] == kind
    assert entry["autoregressive"] == (kind == "block")
    assert "| copy |" in (out / "README.md").read_text()
    assert not list(tmp_path.glob("*.checkpoint"))
    # From there on, with the same sizes only.
    more = tmp_path / "more"
    again = ["train", "denoiser", kind, "--out", str(more), "--from", str(out), *sizes]
    assert paceline(again) == 0
    assert paceline([*again, "--layers", "2"]) == 2
    assert "1 layers" in capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_runtimes_give_the_logits_of_the_module(kind: Kind, tmp_path: Path) -> None:
    network = module(kind)
    save_denoiser(tmp_path, network, recipe(kind), _card(kind))
    halved, found = load_denoiser(tmp_path)
    assert found == recipe(kind)
    for one, other in zip(network.own.values(), halved.own.values(), strict=True):
        assert torch.equal(one.half().float(), other)
    source = DirectorySource(tmp_path)
    target = TorchTarget(source.config, source.weights())
    for rows in noised(texts(15), recipe(kind), 0):
        wanted = logits(halved, rows.tokens, rows.positions, rows.sees)
        block = Rows.block(target.open(), rows.tokens, rows.positions, rows.sees)
        got = target.forward([block])[0].logits
        np.testing.assert_allclose(got, wanted, atol=2e-5)


def test_transformers_reads_the_directory(tmp_path: Path) -> None:
    import transformers

    save_denoiser(tmp_path, module(), recipe("full"), _card("full"))
    halved, _ = load_denoiser(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = np.array(tokenizer("sort the line Orla Abo =>")["input_ids"])
    assert tokenizer.mask_token_id == MASK
    count = len(ids)
    wanted = logits(halved, ids, np.arange(count), np.tri(count, dtype=np.bool_))
    with torch.no_grad():
        got = model(torch.from_numpy(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(got, wanted, atol=2e-5)


def _card(kind: Kind) -> dict[str, object]:
    run = TrainingRun(DenoiserTask(recipe(kind)))
    right = {"none": dict.fromkeys(parallel_tasks.TASKS, 0.0)}
    return card_of(run, "paceline", LICENCE, {"cases": 1, "right": right}, kind=kind)


@pytest.mark.parametrize("kind", ["full", "block", "order", "causal"])
def test_the_plain_decoder_fills_every_place_before_the_end(kind: str) -> None:
    prompts = [text.tokens[: text.prompt_length] for text in texts()]
    for answer in decode(module(), prompts, kind, block=4, length=9):  # type: ignore[arg-type]
        assert len(answer) <= 9
        assert MASK not in answer
        assert EOS not in answer


def test_certainty_moves_only_rows_that_are_right() -> None:
    logits = torch.tensor([[2.0, 0.5, -1.0], [0.1, 1.0, 0.3]], requires_grad=True)
    labels = torch.tensor([0, 2])  # the second row says 1
    training.certainty_loss(logits, labels).backward()
    assert logits.grad is not None
    assert logits.grad[0].abs().max() > 1e-3
    assert logits.grad[1].abs().max() == 0
    surer = logits.detach() - 0.5 * logits.grad
    assert training.certainty_loss(surer, labels) < training.certainty_loss(logits, labels)
    assert training.certainty_loss(logits, torch.tensor([1, 2])) == 0


def test_without_certainty_the_loss_is_cross_entropy_and_own_answers_need_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = module().stored()
    plain = DenoiserTask(recipe("full"), start)
    sure = DenoiserTask(recipe("full", certainty=2.0), start)
    batch = plain.batch(0)
    # Rows that are right are rare in random weights: any others stand for them.
    terms: list[torch.Tensor] = []

    def square(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        assert len(logits) == len(labels) > 0
        terms.append(logits.square().mean())
        return terms[-1]

    monkeypatch.setattr(training, "certainty_loss", square)
    [(loss, _)] = plain.losses(batch, 0)
    assert not terms
    [(more, _)] = sure.losses(batch, 0)
    assert float(more) - float(loss) == pytest.approx(2 * float(terms[0]), rel=1e-4)
    monkeypatch.undo()
    with pytest.raises(InvalidOption, match="own answers are written by weights"):
        DenoiserTask(recipe("full", own=4))
    written = DenoiserTask(recipe("full", own=4), start)
    mine = written.batch(0)
    prompts = [each.tokens[: each.prompt_length] for each in mine]
    for text, answer in zip(mine, decode(module(), prompts, "full"), strict=True):
        assert text.tokens[text.prompt_length :].tolist() == answer
