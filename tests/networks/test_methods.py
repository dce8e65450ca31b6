"""What single networks promise beside the rest."""

from __future__ import annotations

import pytest
import torch
from tests.networks.cases import NETWORKS, TINY, module, texts

from paceline.errors import InvalidOption
from paceline.methods.networks.s2d import S2D

TIME, AT = 9, 4


def test_an_exit_of_s2d_is_the_network_cut_there() -> None:
    features, tokens = texts(1, TIME)
    deep = module(S2D(TINY, steps=3, layers=3))
    with torch.no_grad():
        found = deep.draft(features, tokens)
        assert len(found.exits) == 2
        for layers, exit_logits in enumerate([*found.exits, found.logits], start=1):
            cut = module(S2D(TINY, steps=3, layers=layers))
            cut.load(deep.named())
            for a, b in zip(cut(features, tokens), exit_logits, strict=True):
                torch.testing.assert_close(a, b)
    assert not torch.equal(found.exits[0][0], found.exits[1][0])
    with pytest.raises(InvalidOption, match="layers must be 1 or more"):
        S2D(TINY, layers=0)


@pytest.mark.parametrize(("back", "matters"), [(0, True), (1, True), (2, True), (3, False)])
def test_chimera_reads_three_tokens_without_attention(back: int, matters: bool) -> None:
    """The root, which follows the position, and two before it; the rest is up to attention."""
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS["chimera"]())
    changed = tokens.clone()
    changed[0, AT + 1 - back] = (changed[0, AT + 1 - back] + 1) % 17
    with torch.no_grad():
        trained.named()["layer.o.residual"].zero_()
        before, after = trained(features, tokens)[0], trained(features, changed)[0]
    assert torch.equal(before[0, AT], after[0, AT]) != matters


def test_chimera_takes_drafted_tokens_into_its_trigrams() -> None:
    """The draft three deep reads the two drafted tokens and the root, and no token before it."""
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS["chimera"]())
    with torch.no_grad():
        trained.named()["layer.o.residual"].zero_()
        trained.named()["hidden_scale"].zero_()  # what was foretold from older tokens
        before = trained(features, tokens)[2]
        for place, matters in ((AT, False), (AT + 1, True), (AT + 2, True), (AT + 3, True)):
            changed = tokens.clone()
            changed[0, place] = (changed[0, place] + 1) % 17
            assert torch.equal(before[0, AT], trained(features, changed)[2][0, AT]) != matters


def changed_depths(name: str, part: str, rows: slice) -> list[bool]:
    """Of every depth, whether drafts change with these rows of a parameter."""
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS[name]())
    with torch.no_grad():
        before = trained(features, tokens)
        trained.named()[part][rows] += 1
        after = trained(features, tokens)
    return [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]


@pytest.mark.parametrize("slot", [0, 1, 2, 3])
def test_slots_of_specformer_see_one_another_both_ways(slot: int) -> None:
    rows = slice(slot * TINY.hidden_size, (slot + 1) * TINY.hidden_size)
    assert changed_depths("specformer", "spread", rows) == [True] * 4


@pytest.mark.parametrize("slot", [0, 1, 2, 3])
def test_slots_of_block_parallel_see_only_those_before_them(slot: int) -> None:
    found = changed_depths("block-parallel", "slots", slice(slot, slot + 1))
    assert found == [depth >= slot for depth in range(4)]


@pytest.mark.parametrize("head", [0, 1, 2])
def test_heads_of_medusa_are_independent(head: int) -> None:
    rows = slice(head * TINY.hidden_size, (head + 1) * TINY.hidden_size)
    assert changed_depths("medusa", "heads.residual", rows) == [depth == head for depth in range(3)]


def test_medusa_reads_the_last_hidden_state_of_its_position_alone() -> None:
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS["medusa"]())
    width = TINY.hidden_size
    with torch.no_grad():
        before = torch.stack(trained(features, tokens))[:, 0, AT]
        other = features + 1
        other[0, AT, 3 * width :] = features[0, AT, 3 * width :]
        assert torch.equal(torch.stack(trained(other, (tokens + 5) % 17))[:, 0, AT], before)
        other[0, AT, 3 * width :] += 1
        assert not torch.equal(torch.stack(trained(other, tokens))[:, 0, AT], before)


@pytest.mark.parametrize("name", ["hydra", "hydra-without-prefix"])
@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_head_of_hydra_reads_the_root_and_all_tokens_drafted_before_it(
    name: str, depth: int
) -> None:
    """Text before the root is up to the prefix layer."""
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS[name]())
    with torch.no_grad():
        before = trained(features, tokens)[depth]
        for place in range(TIME):
            changed = tokens.clone()
            changed[0, place] = (changed[0, place] + 1) % 17
            matters = AT + 1 <= place <= AT + 1 + depth or (name == "hydra" and 0 < place <= AT)
            after = trained(features, changed)[depth]
            assert torch.equal(before[0, AT], after[0, AT]) != matters, place


@pytest.mark.parametrize(("name", "reads"), [("eagle", (3, 4)), ("eagle3", (0, 3))])
def test_eagle_pairs_the_features_of_a_position_with_the_next_token(
    name: str, reads: tuple[int, int]
) -> None:
    """Without attention nothing else is seen. In EAGLE-3 tokens enter through attention alone."""
    features, tokens = texts(1, TIME)
    width = TINY.hidden_size
    begin, end = (part * width for part in reads)
    trained = module(NETWORKS[name]())
    with torch.no_grad():
        trained.named()["layer.o.residual"].zero_()
        before = torch.stack(trained(features, tokens))[:, 0, AT]
        other = features + 1
        other[0, AT, begin:end] = features[0, AT, begin:end]
        assert torch.equal(torch.stack(trained(other, tokens))[:, 0, AT], before)
        other[0, AT, begin:end] += 1
        differs = torch.stack(trained(other, tokens))[:, 0, AT] != before
        assert differs.any(-1).all()
        for place in range(TIME):
            changed = tokens.clone()
            changed[0, place] = (changed[0, place] + 1) % 17
            differs = (torch.stack(trained(features, changed))[:, 0, AT] != before).any(-1)
            known = [AT + 1 <= place <= AT + 1 + depth for depth in range(len(differs))]
            assert differs.tolist() == [name == "eagle" and each for each in known], place


@pytest.mark.parametrize("name", ["clover", "hydra", "medusa"])
def test_untrained_networks_draft_alike_at_all_depths_of_a_step(name: str) -> None:
    """Residual parts start as nothing, so that training moves from one sensible point."""
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS[name](), randomise=False)
    logits = trained(features, tokens)
    for each in logits[1 : max(2, trained.network.width)]:
        torch.testing.assert_close(each, logits[0])
