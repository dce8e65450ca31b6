"""Published DFlash and DSpark drafters: every layout is read, and drafts what its equations say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.networks import test_published as published
from tests.networks.blocks import LAYOUTS, MASK, Drafter, Oracle, random_drafter, write
from tests.networks.test_published import CONFIG, TOKENS, apart, states

import paceline
from paceline.core.target import Rows
from paceline.errors import InvalidOption
from paceline.models.source import DirectorySource
from paceline.networks.published import open_head
from paceline.networks.published.wirings import WiringChanges
from paceline.networks.runner import ContextUpdate
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

source, target = published.source, published.target
DRAFTED = [33, 7, 120, 64]
KINDS: dict[str, dict[str, Any]] = {
    "dflash": {},
    "anchored": {"anchored": True},
    "own-embedding": {"own_embedding": True},
    "window": {"window": 6},
    "wide-window": {"window": 64},  # of which nothing but its causal slots is seen
    "dspark": {"rank": 32, "anchored": True},
    "dspark-behind": {"rank": 32},
    "gated": {"rank": 32, "gated": True, "anchored": True},
}


def block(target: Any, path: Path, source: DirectorySource, **changes: Any) -> np.ndarray:
    """Logits of the slots behind the last token, which is the root."""
    head = open_head(path)
    assert head is not None
    head = head.changed(WiringChanges(**changes), CONFIG.layers)
    trained = head.fit(source.config, source.weights(), source.fingerprint)
    places = target.read_boundaries(head.boundaries(CONFIG.layers))
    cache = target.open()
    [output] = target.forward([Rows.draft(cache, TOKENS, features=True)])
    assert output.features is not None
    parts = output.features.reshape(len(TOKENS), -1, CONFIG.hidden_size)[:, places]
    rows = parts.reshape(len(TOKENS), -1)[:-1]
    runner = target.run_network(trained)
    context = runner.open()
    runner.start([ContextUpdate(context, rows[:3], TOKENS[1:4])])  # in two runs, with a draft
    found = runner.start([ContextUpdate(context, rows[3:], TOKENS[4:])])
    for token in DRAFTED[: trained.network.steps - 1]:
        found += runner.advance([(found[-1], [token])])
    return np.concatenate([each.logits for each in found])


def wanted(drafter: Drafter, source: DirectorySource, **wrong: Any) -> np.ndarray:
    rows = states(source, drafter.boundaries or ())[:-1]
    oracle = Oracle(drafter, source.weights()["embed"])
    return oracle.block(rows, TOKENS[-1], DRAFTED, **wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_computes_what_the_equations_say(
    tmp_path: Path, source: DirectorySource, target: CpuTarget | TorchTarget, kind: str
) -> None:
    drafter = random_drafter(CONFIG, **KINDS[kind])
    path = write(drafter, "speculators", tmp_path / "drafter")
    found = block(target, path, source)
    assert len(found) == drafter.slots - (not drafter.anchored)
    assert apart(found, wanted(drafter, source)) < 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_reads_every_layout(
    tmp_path: Path, source: DirectorySource, target: CpuTarget | TorchTarget, layout: str
) -> None:
    """Outputs of layers are counted from the boundary after them; DeepSpec's root foretells."""
    drafter = random_drafter(CONFIG, anchored=layout == "DeepSpec", drafted=CONFIG.vocab_size)
    path = write(drafter, layout, tmp_path / "drafter")
    opened = open_head(path)
    assert opened is not None
    assert (opened.layout, opened.wiring.drafter) == (layout, "dflash")
    assert opened.boundaries(CONFIG.layers) == (2, 4, 6)
    assert apart(block(target, path, source), wanted(drafter, source)) < 1e-5


@pytest.mark.parametrize("kind", ["window", "dspark", "own-embedding"])
def test_gguf_files_are_the_directories(tmp_path: Path, source: DirectorySource, kind: str) -> None:
    """To the same bits; `markov_w1` alone says that the root's slot foretells a token."""
    drafter = random_drafter(CONFIG, **{"drafted": CONFIG.vocab_size, **KINDS[kind]})
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    found = [
        block(target, write(drafter, layout, tmp_path / layout), source)
        for layout in ("GGUF", "speculators")
    ]
    np.testing.assert_array_equal(*found)


def test_gguf_files_that_say_too_little_are_refused(
    tmp_path: Path, source: DirectorySource
) -> None:
    drafter = random_drafter(CONFIG)
    for name in ("markov_w3.weight", "selector_hidden.weight"):
        more = {**drafter.tensors, name: np.ones(3, np.float32)}
        opened = open_head(write(replace(drafter, tensors=more), "GGUF", tmp_path / "drafter"))
        assert opened is not None
        with pytest.raises(InvalidOption, match=f"tensor {name} is unknown"):
            opened.fit(source.config, source.weights(), "")
    with pytest.raises(InvalidOption, match=f"2 slots with mask {MASK} of 320 tokens"):
        open_head(write(replace(drafter, slots=2), "GGUF", tmp_path / "short"))


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("dflash", {"order": "normed"}),
        ("dflash", {"first": len(TOKENS)}),
        ("dspark", {"first": len(TOKENS)}),
    ],
)
def test_another_wiring_is_another_drafter(
    tmp_path: Path, source: DirectorySource, kind: str, wrong: dict[str, Any]
) -> None:
    """Control: injected rows that are normed once more, a block one position on."""
    drafter = random_drafter(CONFIG, **KINDS[kind])
    path = write(drafter, "speculators", tmp_path / "drafter")
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    assert apart(block(target, path, source), wanted(drafter, source, **wrong)) > 1e-3


def test_other_settings_are_another_drafter(tmp_path: Path, source: DirectorySource) -> None:
    """Control: boundaries counted on, slots that foretell others, a causal block."""
    drafter = random_drafter(CONFIG, boundaries=(1, 3, 6))
    path = write(drafter, "speculators", tmp_path / "drafter")
    target = CpuTarget(source.config, source.weights(), precision="fp32")
    shifted = replace(drafter, boundaries=(2, 4, 7))
    assert apart(block(target, path, source, shift=1), wanted(shifted, source)) < 1e-5
    assert apart(block(target, path, source, shift=1), wanted(drafter, source)) > 1e-2
    anchored = wanted(replace(drafter, anchored=True), source)
    assert apart(block(target, path, source), anchored[:-1]) > 1e-2
    windowed = random_drafter(CONFIG, window=6)
    both = replace(windowed, more={"sliding_window_non_causal": True})
    found = block(target, write(both, "speculators", tmp_path / "both"), source)
    assert apart(found, wanted(windowed, source)) > 1e-3


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("kind", ["window", "gated"])
def test_kernels_and_reference_agree_to_the_bit(
    tmp_path: Path, source: DirectorySource, kind: str, precision: str
) -> None:
    path = write(random_drafter(CONFIG, **KINDS[kind]), "speculators", tmp_path / "drafter")
    config, weights = source.config, source.weights()
    both = (each(config, weights, precision) for each in (CpuTarget, ReferenceTarget))
    np.testing.assert_array_equal(*(block(target, path, source) for target in both))


@pytest.mark.parametrize("runtime", ["cpu", "torch"])
@pytest.mark.parametrize("kind", ["dflash", "gated"])
@pytest.mark.parametrize("options", ["", ":growth=expand-rerank"])
def test_a_text_is_that_without_drafts(
    tmp_path: Path, source: DirectorySource, kind: str, options: str, runtime: str
) -> None:
    """In a batch, greedy and sampled; `auto` takes the drafter that its files are for."""
    path = write(random_drafter(CONFIG, **KINDS[kind]), "speculators", tmp_path / "drafter")
    name = "dspark" if kind == "gated" else "dflash"
    asked = {"max_new_tokens": 12, "ignore_eos": True}
    prompts = [TOKENS, TOKENS[:1], TOKENS[::-1]]

    def texts(**drafting: Any) -> list[list[tuple[int, ...]]]:
        engine = paceline.load(
            str(source.path), runtime=runtime, precision="fp32", max_batch=2, **drafting
        )
        made = [engine.generate(prompts, **asked, **how) for how in ({}, {"temperature": 1.0})]
        drafted = sum(each.stats.drafted_tokens for part in made for each in part)
        assert bool(drafted) == (drafting["drafter"] != "none")
        return [[each.token_ids for each in part] for part in made]

    sizes = {"controller": "fixed", "nodes": 4, "depth": 4}
    plain = texts(drafter="none")
    assert texts(drafter=name + options, draft_model=str(path), **sizes) == plain
    if not options:
        assert texts(drafter="auto", draft_model=str(path), **sizes) == plain


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mask_token_id": 4000}, "mask 4000 of 320 tokens.*download it again"),
        ({"mask_token_id": None}, "download it again"),
        ({"block_size": 2}, "2 slots"),
        ({"aux_hidden_state_layer_ids": [2, 4, 9]}, "states .*9.*8 layers"),
        ({"attention_sink_bias": True}, "attention sinks, which is not read: give another"),
        ({"markov_head_type": "rnn"}, "Markov head of type rnn, which is not read"),
        ({"markov_rank": 16}, "gate_proj.bias is 32 and not 16"),
        ({"markov_head_type": "vanilla"}, "tensor markov_head.gate_proj.bias is unknown"),
    ],
)
def test_says_what_does_not_fit(
    tmp_path: Path, source: DirectorySource, change: dict[str, Any], said: str
) -> None:
    drafter = replace(random_drafter(CONFIG, **KINDS["gated"]), more=change)
    path = write(drafter, "speculators", tmp_path / "drafter")
    with pytest.raises(InvalidOption, match=said) as found:
        published.fitted(path, source)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("drafter", "named", "said"),
    [
        ("eagle3", True, "is of kind DFlash: use --drafter dflash"),
        ("dspark", True, "is of kind DFlash: use --drafter dflash"),
        ("draft-model", True, "needs a model: use --drafter dflash"),
        ("dflash:norm_output=true", True, "leave out norm_output"),
        ("dspark", False, "name one with --draft-model"),
        ("dflash", False, "train some with `paceline train drafter dflash`"),
        ("dflash", False, "or a published one with --draft-model"),
    ],
)
def test_another_drafter_says_which_one(
    tmp_path: Path, source: DirectorySource, drafter: str, named: bool, said: str
) -> None:
    path = write(random_drafter(CONFIG), "speculators", tmp_path / "drafter")
    with pytest.raises(InvalidOption, match=said):
        paceline.load(str(source.path), drafter=drafter, draft_model=str(path) if named else None)
