"""What each paper adds to a network, by what reaches what; a wrong architecture fails it.

An input reaches a draft if the draft changes with it. Every network stands beside a wrong one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.networks.cases import TINY, module, texts
from torch import Tensor

from paceline.lab.training.module import DraftModule
from paceline.methods.networks.block_parallel import BlockParallel
from paceline.methods.networks.chimera import Chimera
from paceline.methods.networks.clover import Clover
from paceline.methods.networks.ctc import CTC
from paceline.methods.networks.draft_lm import DraftLM
from paceline.methods.networks.eagle import Eagle
from paceline.methods.networks.falcon import Falcon, lstm
from paceline.methods.networks.hydra import Hydra
from paceline.methods.networks.kangaroo import Kangaroo
from paceline.methods.networks.medusa import Medusa
from paceline.methods.networks.specformer import SpecFormer
from paceline.models.families.base import LayerNames, add_feed_forward
from paceline.models.ops import KV, Heads, Ops, Rows, Sight
from paceline.networks.base import Network
from paceline.networks.blocks import (
    decoder_layer,
    last_hidden,
    layer_names,
    slots_behind,
    stack,
)
from paceline.networks.eagle3 import Eagle3
from paceline.networks.torch_ops import NetworkTensors, TextAttention, TorchOps

TIME, AT, WIDTH = 9, 4, TINY.hidden_size
ROOT = AT + 1

Change = Callable[[DraftModule, Tensor, Tensor], None]


def reached(network: Network, change: Change, off: str = "") -> list[bool]:
    """Of every depth behind position `AT`, whether its draft changes; parameter `off` is zero."""
    drafts = []
    for each in (None, change):
        trained, (features, tokens) = module(network), texts(1, TIME)
        with torch.no_grad():
            if off:
                trained.named()[off].zero_()
            if each is not None:
                each(trained, features, tokens)
            drafts.append(torch.stack(trained(features, tokens))[:, 0, AT])
    return (drafts[0] - drafts[1]).abs().amax(-1).gt(1e-9).tolist()


def token(place: int) -> Change:
    """Another token there."""

    def change(_: DraftModule, features: Tensor, tokens: Tensor) -> None:
        tokens[0, place] = (tokens[0, place] + 1) % 17

    return change


def feature(place: int, quarter: int) -> Change:
    """Other features of a layer there: low, middle, high or last."""

    def change(_: DraftModule, features: Tensor, tokens: Tensor) -> None:
        features[0, place, quarter * WIDTH : (quarter + 1) * WIDTH] += 1

    return change


def rows(name: str, begin: int, end: int) -> Change:
    """Other rows of a parameter."""

    def change(trained: DraftModule, features: Tensor, tokens: Tensor) -> None:
        trained.named()[name][begin:end] += 1

    return change


def lent(name: str) -> Change:
    """Another matrix of the target."""

    def change(trained: DraftModule, features: Tensor, tokens: Tensor) -> None:
        trained.target_weights()[name] += 1

    return change


class ChainedHeads(Medusa):
    """Every head goes on from the one before."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return super().start(ops, features, tokens).cumsum(-2)


class BlindHeads(Hydra):
    """Heads that do not know what was drafted, as Medusa's."""

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return super().advance(ops, state, tokens * 0, step)


class Unshifted(Eagle):
    """Reads the token of the position, not the one that follows."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return super().start(ops, features, tokens.roll(1, -1))


class Stateless3(Eagle3):
    """Deeper drafts do not read the layer's own output."""

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return super().advance(ops, state * 0, tokens, step)


class LastLayer3(Eagle3):
    """Reads the last hidden state in place of three layers."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return super().start(ops, features[..., 3 * WIDTH :].repeat(1, 1, 4), tokens)


class SightedSlots(BlockParallel):
    """Slots see one another both ways."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return slots_behind(ops, self.config, features, tokens, "slots")


class CausalSlots(CTC):
    """Slots see those before them alone."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        return slots_behind(ops, self.config, features, tokens, "draft")


class CausalSpecFormer(SpecFormer):
    """Slots see those before them alone."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        class Causal(TorchOps):
            def attend(
                self,
                kv: int | KV,
                x: Tensor,
                heads: Heads,
                sees: Sight = "context",
                newest: int = 1,
            ) -> Tensor:
                return super().attend(kv, x, heads, "draft" if sees == "slots" else sees, newest)

        ops.__class__ = Causal
        return super().start(ops, features, tokens)


class EarlierExit(Kangaroo):
    """Leaves the target a layer too early."""

    def _layers(self, ops: Ops, tokens: Rows, sees: Sight) -> Rows:
        names = [LayerNames.of(layer) for layer in self.runs[:-1]]
        return ops.last(stack(ops, self.config, names, ops.embed(tokens), "context"))


class Forgetful(Clover):
    """Each depth begins anew: no regressive connection."""

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return super().advance(ops, state * 0, tokens, step)


class Unattentive(Clover):
    """Adds the token to the state, without attention."""

    def _decode(self, ops: Ops, state: Rows, embeddings: Rows) -> Rows:
        asking = ops.norm(embeddings, "embed_norm")
        return add_feed_forward(
            ops,
            layer_names("decoder"),
            ops.linear(asking, ["decoder.token.residual"], residual=state),
        )


class Unaugmented(Unattentive):
    """Begins as the target's hidden state, without a block over the context."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        hidden = last_hidden(ops, self.config, features)
        return self._decode(ops, ops.last(hidden), ops.last(ops.embed(tokens)))


class Unigrams(Chimera):
    """Reads the newest token alone."""

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        blind = ops.concat([*self._parts(ops, state)[:2], state[..., 2 * WIDTH :] * 0])
        return super().advance(ops, blind, tokens, step)


class OneKindOfRows(Chimera):
    """Rows of the context hold trigrams, too."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        grams = ops.slots(ops.last(ops.embed(tokens), 3), 1)
        grams = ops.linear(grams[:, :, 0], ["trigram.out"])
        summed = features + ops.concat([grams * 0, grams * 0, grams * 0, grams])
        return super().start(ops, summed, tokens)


class HeadOverOne(Chimera):
    """The head reads the foretold state alone."""

    def logits(self, ops: Ops, state: Rows, step: int) -> Rows:
        return ops.head(self.features_of(ops, state))


ALL3, ALL4 = [True] * 3, [True] * 4
SHAPE = TINY
LAYER = "layer.o.residual"

TABLE: dict[str, tuple[Network, Network, Change, list[bool], str]] = {
    "medusa: heads are independent": (
        *(Medusa(SHAPE, width=3), ChainedHeads(SHAPE, width=3)),
        *(rows("heads.residual", WIDTH, 2 * WIDTH), [False, True, False], ""),
    ),
    "hydra: heads know what was drafted before them": (
        *(Hydra(SHAPE, steps=4), BlindHeads(SHAPE, steps=4)),
        *(token(ROOT + 1), [False, True, True, True], ""),
    ),
    "eagle: a hidden state is paired with the token that follows": (
        *(Eagle(SHAPE, steps=3), Unshifted(SHAPE, steps=3), token(ROOT), ALL3, LAYER),
    ),
    "eagle3: deeper drafts read the layer's own output (training-time test)": (
        *(Eagle3(SHAPE, steps=3), Stateless3(SHAPE, steps=3), feature(AT, 1), ALL3, LAYER),
    ),
    "eagle3: low, middle and high layers are fused": (
        *(Eagle3(SHAPE, steps=3), LastLayer3(SHAPE, steps=3), feature(AT, 0), ALL3, ""),
    ),
    "block-parallel: slots are causal": (
        *(BlockParallel(SHAPE, width=3), SightedSlots(SHAPE, width=3)),
        *(rows("slots", 1, 2), [False, True, True], ""),
    ),
    "ctc: slots see one another both ways": (
        *(CTC(SHAPE, width=3, tokens=2), CausalSlots(SHAPE, width=3, tokens=2)),
        *(rows("slots", 2, 3), ALL3, ""),
    ),
    "specformer: slots see one another both ways": (
        *(SpecFormer(SHAPE, width=3), CausalSpecFormer(SHAPE, width=3)),
        *(rows("spread", 2 * WIDTH, 3 * WIDTH), ALL3, ""),
    ),
    "kangaroo: all of the target's first layers run": (
        *(Kangaroo(SHAPE, steps=3), EarlierExit(SHAPE, steps=3), lent("layers.1.q"), ALL3, ""),
    ),
    "draft-lm: stands alone, without features of the target": (
        *(DraftLM(SHAPE, steps=3), Hydra(SHAPE, steps=3), feature(AT, 1), [False] * 3, ""),
    ),
    "clover: the state goes on to the next head": (
        *(Clover(SHAPE, steps=3), Forgetful(SHAPE, steps=3)),
        *(token(ROOT), ALL3, "decoder.o.residual"),
    ),
    "clover: a drafted token asks the states before it": (
        *(Clover(SHAPE, steps=3), Unattentive(SHAPE, steps=3)),
        *(token(ROOT + 1), [False, True, True], "decoder.token.residual"),
    ),
    "clover: a block over the context augments the hidden state": (
        *(Clover(SHAPE, steps=3), Unaugmented(SHAPE, steps=3)),
        *(feature(AT - 2, 3), ALL3, "decoder.o.residual"),
    ),
    "chimera: trigrams hold three tokens, drafted ones too": (
        *(Chimera(SHAPE, steps=4), Unigrams(SHAPE, steps=4)),
        *(token(ROOT), [True, True, True, False], LAYER),
    ),
    "chimera: rows of the context are hidden states alone": (
        *(Chimera(SHAPE, steps=4), OneKindOfRows(SHAPE, steps=4)),
        *(token(AT - 2), [False] * 4, ""),
    ),
    "chimera: the head reads the target's hidden state, too": (
        *(Chimera(SHAPE, steps=4), HeadOverOne(SHAPE, steps=4), feature(AT, 3), ALL4, LAYER),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_mechanism_is_there_and_its_lack_is_noticed(name: str) -> None:
    network, wrong, change, expected, off = TABLE[name]
    assert reached(network, change, off) == expected
    assert reached(wrong, change, off) != expected


class CausalBlocks(Falcon):
    """Rows of a block see those before them alone."""

    def start(self, ops: Ops, features: Rows, tokens: Rows) -> Rows:
        x = self._fuse(ops, features[..., -WIDTH:], tokens)
        return ops.last(self._causal(ops, x, "context"), self.width)

    def advance(self, ops: Ops, state: Rows, tokens: Rows, step: int) -> Rows:
        return self._causal(ops, self._fuse(ops, state, tokens), "draft")

    def _causal(self, ops: Ops, x: Rows, sees: Sight) -> Rows:
        names = layer_names("layer", "layer_norm")
        return ops.norm(decoder_layer(ops, self.config, names, x, sees), "norm")


@pytest.mark.parametrize(
    ("network", "relaxed"), [(Falcon, True), (CausalBlocks, False)], ids=["falcon", "causal"]
)
def test_all_rows_of_a_falcon_block_see_one_another_the_first_block_too(
    network: type[Falcon], relaxed: bool
) -> None:
    """Row j of a block reads token j; the first of it sees the last only through the mask."""
    made = network(TINY, steps=3)
    attention = "layer.o.residual"
    assert reached(made, token(ROOT)) == [relaxed, True, relaxed or True, True, True, True]
    assert reached(made, token(ROOT + 2))[2:4] == [relaxed, True]
    assert reached(made, token(ROOT + 2), attention)[2:4] == [False, True]
    assert reached(made, token(ROOT), attention)[:2] == [False, True]
    assert reached(made, token(ROOT + 1))[:3] == [False, False, True]


@pytest.mark.parametrize("wrong", [False, True])
def test_the_lstm_of_falcon_is_that_of_torch(wrong: bool) -> None:
    """Over texts of one row, where no state is carried; a matrix in its place is not."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.nn.LSTM(2 * WIDTH, WIDTH, 2, bias=False)
    gates = {}
    with torch.no_grad():
        for layer, inputs in enumerate((2 * WIDTH, WIDTH)):
            mine = torch.randn(3, WIDTH, inputs, generator=generator) / 4
            gates[f"lstm.{layer}"] = mine.flatten(0, 1)
            theirs = reference.get_parameter(f"weight_ih_l{layer}").view(4, WIDTH, inputs)
            theirs[[0, 2, 3]] = mine  # torch orders them: input, forget, cell, output
    weights = NetworkTensors(gates, torch.zeros(1), torch.zeros(1))
    ops = TorchOps(weights, TINY.norm_eps, TextAttention())
    x = torch.randn(1, 6, 2 * WIDTH, generator=generator)
    if wrong:
        found = x @ gates["lstm.0"][:WIDTH].T
    else:
        found = lstm(ops, "lstm.1", lstm(ops, "lstm.0", x, WIDTH), WIDTH)
    expected, _ = reference(x)
    assert torch.allclose(found, expected, atol=1e-6) != wrong
