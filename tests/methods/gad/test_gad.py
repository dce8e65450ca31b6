"""Drafters that look at what a Whisper heard: drafts of the reference, texts of plain decoding."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.drafter_context import context
from tests.helpers.tiny_whisper import freed, sound
from tests.listening.test_windows import END, words
from tests.methods.gad.heard import CONFIG, IDS, TEXT, cpu, opened, reference, saved, trained
from tests.networks.cases import TINY

from paceline.core.types import Budget, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.engine import Engine
from paceline.engine.hearing import Speech
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.lab.measure.fingerprint import RandomWeights
from paceline.lab.training.setup import TrainingSetup
from paceline.methods.gad.block import Gad, GadDrafter
from paceline.methods.gad.ctc import GadCTCDrafter
from paceline.methods.gad.transcript import EVERY, rows_of_sound
from paceline.methods.top_gap import TopGap
from paceline.networks.runner import ContextUpdate
from paceline.policy.controller import Fixed
from paceline.runtimes.cpu.target import CpuTarget
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled

DRAFTERS: dict[str, type[Drafter]] = {"gad": GadDrafter, "gad-ctc": GadCTCDrafter}


def drafter(name: str, folder: Path) -> Drafter:
    asked = context(cpu(), model="tiny", options={"weights": saved(folder, name)})
    return DRAFTERS[name].create(asked)


def engine(drafts: Drafter, verifier: Verifier, batch: int = 3) -> Engine:
    parts = cpu(), drafts, verifier, Fixed(6, 4), StopRules((END,), 64)
    return Engine(AutoregressiveDecoder(*parts), words(), max_batch=batch)


def texts(own: Engine, temperature: float) -> tuple[list[tuple[int, ...]], int]:
    """Of four sounds, and how many drafted tokens stood."""
    params = SamplingParams(temperature=temperature, seed=4, max_new_tokens=30, ignore_eos=True)
    sounds = [Speech(sound(seed)) for seed in range(4)]
    asked = [own.add([41, 42], params, speech=each) for each in sounds]
    done: dict[int, Any] = {}
    while len(done) < len(asked):
        done |= {e.request: e.completion for e in own.step() if e.completion}
    for each in sounds:
        own.let_go(each)
    assert freed(own)
    found = [done[each].token_ids for each in asked]
    assert len(set(found)) == len(found)  # a sound has a say
    return found, sum(source is not None for each in asked for source in done[each].sources)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_blocks_are_those_of_the_reference(precision: str) -> None:
    found = []
    for target in (cpu(precision), reference(precision)):
        runner, own = target.run_network(trained("gad")), []
        for seed in (1, 2):
            cache = opened(target, seed)
            features = target.prefill(cache, TEXT, True)
            assert features is not None
            update = ContextUpdate(runner.open(), features, [*TEXT[1:], 7], cache)
            own.append(runner.start([update])[0].logits.copy())
            more = target.prefill(cache, [7, 9], True)
            assert more is not None
            [chain] = runner.draft([ContextUpdate(update.cache, more, [9, 11], cache)], 5)
            own.append(np.array([chain.tokens, chain.runner_ups]))
            target.release(cache)
        found.append(own)
    assert all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    assert not np.array_equal(found[0][0], found[0][2])  # the sound has a say


def test_slots_see_the_sound_and_nothing_of_another() -> None:
    target, runner = cpu(), cpu().run_network(trained("gad"))
    caches = [opened(target, seed) for seed in (1, 2)]
    features = np.random.default_rng(0).normal(size=(3, runner._network.feature_width))
    rows = features.astype(np.float32)

    def drafted(batch: list[Any]) -> list[np.ndarray]:
        updates = [ContextUpdate(runner.open(), rows, [5, 6, 7], each) for each in batch]
        return [each.logits.copy() for each in runner.start(updates)]

    together, alone = drafted(caches), [drafted([each])[0] for each in caches]
    assert all(np.array_equal(a, b) for a, b in zip(together, alone, strict=True))
    assert not np.array_equal(*together)  # by the look alone: features are the same
    for each in caches:
        target.release(each)


@pytest.mark.parametrize("every", [1, EVERY])
def test_what_a_text_looks_at_is_read_as_it_is_stored(every: int) -> None:
    own, other = opened(cpu(), 1), opened(reference(), 1)
    for layer in (-2, -1):
        found = cpu().heard(own, layer, every)
        assert found.shape == (-(-75 // every), 2, CONFIG.kv_heads, CONFIG.head_dim)
        assert np.array_equal(found, reference().heard(other, layer, every))
    assert not np.array_equal(cpu().heard(own, -1), cpu().heard(own, -2))
    cpu().release(own)


def said(rows: np.ndarray) -> list[int]:
    """What the head says, in plain NumPy and float64."""
    known = {name: each.astype(np.float64) for name, each in trained("gad-ctc").parameters.items()}

    def normed(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        out: np.ndarray = x / np.sqrt((x * x).mean(-1, keepdims=True) + CONFIG.norm_eps) * weights
        return out

    x = (rows * known["scale"]) @ known["fuse"].T
    gate, up = np.split(normed(x, known["rows.ffn_norm"]) @ known["rows.gate_up"].T, 2, axis=-1)
    x = x + (gate / (1 + np.exp(-gate)) * up) @ known["rows.down.residual"].T
    head = np.concatenate([cpu().matrices._weights["embed"][IDS], known["blank"]])
    slots = [*IDS.tolist(), -1]
    best = [slots[each] for each in (normed(x, known["norm"]) @ head.T).argmax(-1)]
    return [token for token, _ in groupby(best) if token >= 0]


def test_the_head_says_what_numpy_says(tmp_path: Path) -> None:
    made = drafter("gad-ctc", tmp_path)
    assert isinstance(made, GadCTCDrafter)
    found = []
    for seed in range(4):
        cache = opened(cpu(), seed)
        rows = rows_of_sound(cpu(), cache)
        found.append(list(made.transcript(rows)))
        assert found[-1] == said(rows)
        cpu().release(cache)
    assert len({tuple(each) for each in found}) == 4
    assert max(map(len, found)) > 8  # of more rows than are read at once


@pytest.mark.parametrize("name", DRAFTERS)
def test_texts_are_those_without_drafts(name: str, tmp_path: Path) -> None:
    for temperature in (0.0, 1.0):
        plain, none = texts(engine(NoDrafter(), Coupled()), temperature)
        assert none == 0
        for batch in (1, 3):
            made = engine(drafter(name, tmp_path), Coupled(), batch)
            assert texts(made, temperature)[0] == plain


def test_the_rule_of_gad_plus_plus_is_caught(tmp_path: Path) -> None:
    plain, _ = texts(engine(NoDrafter(), Coupled()), 0.0)
    exact, _ = texts(engine(drafter("gad", tmp_path), TopGap(beta=1, gap=0.0)), 0.0)
    assert exact == plain
    near, stood = texts(engine(drafter("gad", tmp_path), TopGap(beta=30, gap=30.0)), 0.0)
    assert stood > 0
    assert near != plain
    assert not TopGap.lossless


def test_a_head_that_is_right_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = texts(engine(NoDrafter(), Coupled()), 0.0)
    made = drafter("gad-ctc", tmp_path)
    assert isinstance(made, GadCTCDrafter)
    by_rows = {}
    for seed, text in enumerate(plain):
        cache = opened(cpu(), seed)
        by_rows[rows_of_sound(cpu(), cache).tobytes()] = text
        cpu().release(cache)
    monkeypatch.setattr(made, "transcript", lambda rows, _: by_rows[rows.tobytes()])
    found, stood = texts(engine(made, Coupled()), 0.0)
    assert found == plain
    assert stood > 60  # of 120: a step of five takes four of its draft


def test_budgets_hold_and_texts_are_forgotten(tmp_path: Path) -> None:
    made = drafter("gad-ctc", tmp_path)
    assert isinstance(made, GadCTCDrafter)
    cache = opened(cpu(), 1)
    sequence: Any = type("Sequence", (), {"id": 3, "cache": cache, "prompt_length": 2})()
    sequence.tokens = [41, 42]
    made.open(sequence)
    draft = made.draft(sequence, Budget(9, 3))
    assert 0 < len(draft) <= 3
    assert draft.source == "gad-ctc"
    assert draft.tokens.tolist() == said(rows_of_sound(cpu(), cache))[: len(draft)]
    made.close(sequence)
    made.close(sequence)
    assert not made._followers
    cpu().release(cache)


def test_models_that_hear_nothing_and_odd_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="'gad' needs a sound, and this model hears none"):
        TINY.refuse_to_look("gad")
    CONFIG.refuse_to_look("gad")
    deaf = CpuTarget(TINY, RandomWeights(TINY, ("F16",)), kv_tokens=64)
    for name, drafter in DRAFTERS.items():
        with pytest.raises(InvalidOption, match=f"drafter '{name}' needs a sound, and this"):
            drafter.create(context(deaf, model="tiny"))
    options = {"weights": saved(tmp_path, "gad"), "stop": "1"}
    with pytest.raises(InvalidOption, match="has no option 'stop': use weights"):
        GadCTCDrafter.create(context(cpu(), model="tiny", options=options))
    options.pop("stop")
    with pytest.raises(InvalidOption, match="holds network 'gad': use --drafter gad:weights="):
        GadCTCDrafter.create(context(cpu(), model="tiny", options=options))
    with pytest.raises(InvalidOption, match="learns by its sounds"):
        GadDrafter.create(context(cpu(), model="tiny", options=options | {"online": "4"}))
    with pytest.raises(
        InvalidOption, match="another model: train one with `paceline train gad gad`"
    ):
        GadDrafter.create(context(cpu(), model="other", options=options))


@pytest.mark.parametrize("name", DRAFTERS)
def test_texts_alone_train_none_of_them(name: str) -> None:
    setup: Any = object.__new__(TrainingSetup)
    setup.source = type("Source", (), {"config": CONFIG})()
    with pytest.raises(InvalidOption, match=f"use `paceline train gad {name}`"):
        setup.network(name)
    assert setup.network("medusa").name == "medusa"


def test_layers_over_masks_look_at_the_last_two_layers() -> None:
    shapes = Gad(CONFIG).shapes()
    assert sum(name.endswith("look_q") for name in shapes) == 2
    assert shapes["slots"] == (25, CONFIG.hidden_size)  # the paper's 25
