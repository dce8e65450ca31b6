"""Hidden transfer (Wu et al. 2024, arXiv:2404.12022) in the verifying forward.

Beside every row that is verified, the root's and each node's, pseudo states of the next tokens run
through the target's last layers. Those of the node that is accepted last are the next draft: a
step has one forward, and no row of a token sees a pseudo state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import ClassVar, NamedTuple, Self

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.target import NO_LOGITS, Output, Rows, Target, row_mask, row_positions
from paceline.core.types import BoolArray, Budget, IntArray, LogitArray, TokenTree
from paceline.drafters.base import Drafter, DrafterContext, check_layers
from paceline.drafters.network.weights import weights_of
from paceline.drafters.recycling import top_rows
from paceline.errors import OutOfMemory, PacelineError
from paceline.methods.networks.hidden_transfer import HiddenTransfer
from paceline.networks.weights import Trained
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.shapes import chances, from_rank_accuracies, layout


class Foretold(NamedTuple):
    """What pseudo states said: float32 `[width, vocabulary]` for a text of so many tokens."""

    length: int
    logits: LogitArray


class HiddenTransferDrafter(Drafter):
    """Draft trees of the most probable tokens of pseudo states."""

    name: ClassVar[str] = "hidden-transfer"
    requires = "runtime cpu or torch; weights for the model (paceline train drafter)"
    paper = "Hidden Transfer, Wu et al. 2024, arXiv:2404.12022"
    gumbel_coupled = True
    alone = True

    def __init__(self, target: Target, layers: int, trained: Trained, *, ranks: int = 8) -> None:
        """Bind the target, of so many layers, and the maps; `ranks` tokens of each pseudo state.

        Raises:
            InvalidOption: `ranks` is out of range.
        """
        require(ranks >= 1, "ranks", ranks, "1 or more")
        assert isinstance(trained.network, HiddenTransfer)
        self._target, self._count, self._ranks = target, layers, ranks
        self._network, self._maps = trained.network, trained.parameters
        self._asked: set[int] = set()  # identities of the caches of sequences that draft
        self._rows: dict[int, LogitArray] = {}  # by the cache's identity: of the last forward
        self._foretold: dict[int, Foretold] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Build with the weights that ship, or those of the option `weights`.

        Raises:
            InvalidOption: an option is unknown, or there are no weights for this target.
            RuntimeUnavailable: the runtime runs no layers apart.
        """
        options = dict(context.options)
        named = options.pop("weights", None)
        chosen = arguments(cls, "drafter", options, "target", "layers", "trained")
        check_layers(cls.name, "adds rows to the target's last layers", context.target)
        trained = weights_of(cls.name, named, context.model, context.target)
        if context.shape == "chain" or not context.target.tree:
            chosen["ranks"] = 1
        loaded = context.resources.loaded
        return cls(loaded.target, loaded.source.config.layers, trained, **chosen)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self._rows.clear()
        pairs = list(zip(sequences, budgets, strict=True))
        self._asked = {id(s.cache) for s, b in pairs if min(b.nodes, b.depth) > 0}
        return [self._tree(*each) for each in pairs]

    def _tree(self, sequence: Generation, budget: Budget) -> TokenTree:
        found = self._foretold.get(sequence.id)
        if found is None or found.length != len(sequence.tokens):
            return trees.EMPTY
        logits = found.logits[: budget.depth]
        tokens, values = top_rows(logits, self._ranks)
        top = values[:, :1]
        shares = np.exp((values - top).astype(np.float64))
        shares /= np.exp((logits - top).astype(np.float64)).sum(axis=1, keepdims=True)
        tokens = self._as_drawn(sequence, logits, tokens)
        shape = from_rank_accuracies(shares[: len(tokens)], budget.nodes, budget.depth)
        if not shape:
            return trees.EMPTY
        places = layout(shape)
        return TokenTree(
            tokens[places.depths - 1, places.ranks],
            places.parents,
            source=self.name,
            scores=chances(shape, shares),
        )

    def _as_drawn(self, sequence: Generation, logits: LogitArray, tokens: IntArray) -> IntArray:
        # First of each depth stands what the target would draw from these logits.
        path: list[int] = []
        for depth, row in enumerate(logits):
            position = len(sequence.tokens) + depth
            try:
                token = sequence.sampler.sample(row, path, position, sequence.randomness)
            except PacelineError:  # the guess leads to where nothing may follow
                break
            others = [each for each in tokens[depth].tolist() if each != token]
            tokens[depth] = [token, *others][: tokens.shape[1]]
            path.append(token)
        return tokens[: len(path)]

    def forward(self, target: Target, rows: Sequence[Rows]) -> list[Output]:
        riding = [at for at, each in enumerate(rows) if self._rides(each)]
        out: dict[int, Output] = {}
        try:
            found = self._ride([rows[at] for at in riding])
            out = dict(zip(riding, found, strict=True))
        except OutOfMemory:  # of rows that can be done without
            self._rows.clear()
        rest = [at for at in range(len(rows)) if at not in out]
        if rest:
            others = target.forward([rows[at] for at in rest])
            out |= dict(zip(rest, others, strict=True))
        return [out[at] for at in range(len(rows))]

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, _, verdict, _ = verified
        rows = self._rows.pop(id(sequence.cache), None)
        self._foretold.pop(sequence.id, None)
        if rows is not None:
            last = verdict.path[-1] + 1 if verdict.path else 0
            self._foretold[sequence.id] = Foretold(len(sequence.tokens), rows[:, last].copy())

    def close(self, sequence: Generation) -> None:
        self._foretold.pop(sequence.id, None)
        self._asked.discard(id(sequence.cache))

    def _rides(self, each: Rows) -> bool:
        if id(each.cache) not in self._asked or each.hidden or each.features:
            return False
        end = int(row_positions(each).max()) + self._network.width
        return each.num_new == 1 and end < self._target.capabilities.max_context

    def _ride(self, asked: Sequence[Rows]) -> list[Output]:
        if not asked:
            return []
        rows, first = list(map(_tokens_alone, asked)), self._network.runs.start
        blocks, begin = rows, 0
        for entry, states in groupby(range(self._network.width), self._network.enters.__getitem__):
            layers = range(begin, begin := first + entry)
            blocks = [replace(each, wanted=NO_LOGITS) for each in blocks]
            found = self._target.forward(blocks, tuple(layers))
            blocks = [replace(b, inputs=f.state) for b, f in zip(blocks, found, strict=True)]
            for state in states:
                pairs = zip(blocks, rows, strict=True)
                blocks = [self._beside(block, tokens, state) for block, tokens in pairs]
        blocks = [replace(each, wanted=None) for each in blocks]
        outputs = self._target.forward(blocks, tuple(range(begin, self._count)))
        out = []
        for each, tokens, output in zip(asked, rows, outputs, strict=True):
            count = len(tokens.tokens)
            logits = output.logits.copy()  # which stand while the other passes are run
            self._rows[id(each.cache)] = logits[count:].reshape(-1, count, logits.shape[1])
            out.append(Output(logits[:count]))
        return out

    def _beside(self, block: Rows, tokens: Rows, each: int) -> Rows:
        # Adds one pseudo state for every token. It sees what the token sees, and those before it.
        assert block.inputs is not None
        assert block.positions is not None
        assert block.sees is not None
        assert tokens.positions is not None
        assert tokens.sees is not None
        own: BoolArray = np.eye(len(tokens), dtype=np.bool_)
        above = np.concatenate([tokens.sees, *[own] * each], axis=1)
        return replace(
            block,
            tokens=[*block.tokens, *[0] * len(tokens)],
            positions=np.concatenate([block.positions, tokens.positions + each + 1]),
            sees=np.block([[block.sees, np.zeros_like(above).T], [above, own]]),
            inputs=np.concatenate([block.inputs, self._pseudo(block.inputs[: len(own)], each)]),
        )

    def _pseudo(self, states: LogitArray, each: int) -> LogitArray:
        maps = self._maps
        moved = (states * maps["high_scale"]) @ maps[f"transfer.{each}.residual"].T
        return (states + moved * maps["high_spread"]).astype(np.float32)


def _tokens_alone(each: Rows) -> Rows:
    sees = row_mask(each, past=0)
    return Rows.block(each.cache, each.tokens, row_positions(each), sees, num_new=1)
