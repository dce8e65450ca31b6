"""What single networks promise beside the rest."""

from __future__ import annotations

import pytest
import torch
from tests.networks.cases import GEOMETRY, NETWORKS, module, texts

from paceline.errors import InvalidOption
from paceline.zoo.networks.s2d import S2D

TIME, AT = 9, 4


def test_an_exit_of_s2d_is_the_network_cut_there() -> None:
    features, tokens = texts(1, TIME)
    deep = module(S2D(GEOMETRY, steps=3, layers=3))
    with torch.no_grad():
        found = deep.draft(features, tokens)
        assert len(found.exits) == 2
        for layers, exit_logits in enumerate([*found.exits, found.logits], start=1):
            cut = module(S2D(GEOMETRY, steps=3, layers=layers))
            cut.load(deep.named())
            for a, b in zip(cut(features, tokens), exit_logits, strict=True):
                torch.testing.assert_close(a, b)
    assert not torch.equal(found.exits[0][0], found.exits[1][0])
    with pytest.raises(InvalidOption, match="layers must be 1 or more"):
        S2D(GEOMETRY, layers=0)


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


@pytest.mark.parametrize("mixed", [True, False])
def test_rows_of_a_block_of_falcon_see_one_another_both_ways(mixed: bool) -> None:
    """The first slot of a block knows all tokens of the block before only through its mask."""
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS["falcon"]())
    last_of_block = AT + 3  # the root is at AT + 1, the first block behind it
    changed = tokens.clone()
    changed[0, last_of_block] = (changed[0, last_of_block] + 1) % 17
    with torch.no_grad():
        if not mixed:
            trained.named()["block.o.residual"].zero_()
        before, after = trained(features, tokens)[2], trained(features, changed)[2]
    assert torch.equal(before[0, AT], after[0, AT]) != mixed


@pytest.mark.parametrize("name", ["clover", "hydra", "falcon", "medusa"])
def test_untrained_networks_draft_alike_at_all_depths_of_a_step(name: str) -> None:
    """Residual parts start as nothing, so that training moves from one sensible point."""
    features, tokens = texts(1, TIME)
    trained = module(NETWORKS[name](), randomise=False)
    logits = trained(features, tokens)
    for each in logits[1 : max(2, trained.network.width)]:
        torch.testing.assert_close(each, logits[0])
