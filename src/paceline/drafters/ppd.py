"""Parallel prompt decoding (Chen et al. 2024, arXiv:2405.18628): the target drafts for itself.

Prompt tokens are a few trained embeddings. Behind a token and m of them the target's rows say what
it would put one, two, ... m tokens further on. So chains of prompt tokens hang behind the nodes of
every draft, and the rows of the chain behind the accepted node are the next draft's candidates:
drafting takes no pass of its own. How many candidates and how many prompt tokens there are, and
where, is `paceline.shapes.ppd`'s to say, from accuracies that were measured on held-out text.

A node with a prompt token has an id behind the vocabulary, which no rule that only ever emits the
target's own choice can accept; it has no children but prompt tokens, so no other row sees it. Its
score is what it is expected to gain in the next step: a probability of nothing, but tokens like
the others'. Since these gains are counted again when they come, a controller that calibrates
scores prunes too much; it is best to give sizes (--nodes).

Where every root-to-leaf path attends on its own (layout "exact"), a tree of prompt tokens is dear:
each chain is a path. With few paths, or under one mask, it is cheap.

Not done: several ensemble tokens per offset, and samples other than the likeliest of each rank.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from paceline import tree as trees
from paceline.controllers.cost import CostModel
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.top_rows import top_rows
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.networks.prompt_tokens import load_prompt_tokens
from paceline.networks.shipped import shipped_file
from paceline.sequence import Sequence
from paceline.shapes.ppd import SparseTree, best_tree
from paceline.shapes.static import layout
from paceline.target import Output
from paceline.types import ROOT, Budget, IntArray, Needs, ProbArray, TokenTree, Verdict

_CONTEXT = 256
"""Tokens before a draft that times are worked out for."""


class PPD(Drafter):
    """Trees of candidates and prompt tokens; a sequence's first step only asks."""

    name: ClassVar[str] = "ppd"
    needs: Needs = Needs(node_logits=True)

    def __init__(
        self,
        accuracies: ProbArray,
        first_id: int,
        costs: Callable[[], CostModel] | None = None,
    ) -> None:
        """Bind prompt tokens that the target knows.

        Args:
            accuracies: float64 `[m, ranks]`, as in `PromptTokens`.
            first_id: of the first prompt token; the others follow.
            costs: what forwards cost; None takes rows to be free, up to the budget.
        """
        self._accuracies = accuracies
        self._first = first_id
        self._costs = costs
        self._plans: dict[int, SparseTree] = {}
        self._candidates: dict[int, IntArray] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Prompt tokens of the file that option `weights` names.

        By default drafts are as large as the budget. With `aware=true` the drafter itself chooses
        the size that commits most tokens per second by what forwards cost, maybe none.

        Raises:
            InvalidOption: an option is unknown, or there are no prompt tokens for this target.
            RuntimeUnavailable: the runtime takes no embeddings, or the verifier is lossy, or the
                drafter is to work with others.
        """
        options = dict(context.options)
        weights, aware = options.pop("weights", ""), options.pop("aware", "false")
        if options or aware not in ("true", "false"):
            raise InvalidOption(
                "drafter 'ppd' has options weights=FILE and aware=true or false, not "
                f"{', '.join(options) or aware}"
            )
        if context.add_embeddings is None:
            raise RuntimeUnavailable(
                "drafter 'ppd' drafts nodes that hold no token: it needs runtime openvino or "
                "torch, a lossless verifier, and no other drafter beside it"
            )
        path = Path(weights) if weights else _shipped(context.model)
        trained = load_prompt_tokens(path, context.model, context.target.hidden_size)
        first = context.add_embeddings(trained.embeddings)
        return cls(trained.accuracies, first, context.costs if aware == "true" else None)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """The tree of the state that each sequence is in."""
        return [self._tree(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Read the next candidates from the prompt tokens behind the accepted nodes."""
        ranks = self._accuracies.shape[1]
        for sequence, draft, verdict, output in zip(
            sequences, drafts, verdicts, outputs, strict=True
        ):
            chain = self._prompts(draft, verdict.path[-1] if verdict.path else ROOT)
            self._candidates.pop(sequence.id, None)
            if chain:
                rows = output.logits[[node + 1 for node in chain]]
                self._candidates[sequence.id] = top_rows(rows, ranks)[0]

    def close(self, sequence: Sequence) -> None:
        """Forget the candidates."""
        self._candidates.pop(sequence.id, None)

    def _prompts(self, draft: TokenTree, node: int) -> list[int]:
        """The chain of prompt tokens behind a node."""
        chain: list[int] = []
        for child, (parent, token) in enumerate(
            zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
        ):
            if parent == node and token == self._first + len(chain):
                chain.append(child)
                node = child
        return chain

    def _plan(self, nodes: int) -> SparseTree:
        if nodes not in self._plans:
            costs = None if self._costs is None else self._costs()
            self._plans[nodes] = best_tree(self._accuracies, nodes, costs, _CONTEXT)
        return self._plans[nodes]

    def _tree(self, sequence: Sequence, budget: Budget) -> TokenTree:
        if budget.nodes < 1 or budget.depth < 1:
            return trees.EMPTY
        plan = self._plan(budget.nodes)
        known = self._candidates.get(sequence.id, np.zeros((0, 0), dtype=np.int64))
        state = plan.states[len(known)]
        places = layout(state.shape)
        tokens = known[places.depths - 1, places.ranks].tolist() if len(known) else []
        parents, scores = places.parents.tolist(), state.chances.tolist()
        depths = [0, *places.depths.tolist()]
        worth = np.diff([each.tokens for each in plan.states])
        for place, (count, end) in enumerate(zip(state.prompts, state.ends, strict=True)):
            above, most = place - 1, 1.0 if place == 0 else scores[place - 1]
            for index in range(min(int(count), budget.depth - depths[place])):
                most = min(most, float(end * worth[index]))
                tokens.append(self._first + index)
                parents.append(above)
                scores.append(most)
                above = len(tokens) - 1
        tree = TokenTree(
            np.array(tokens, dtype=np.int64),
            np.array(parents, dtype=np.int64),
            source=self.name,
            scores=np.array(scores, dtype=np.float64),
        )
        return trees.limit(tree, budget.nodes, budget.depth)


def _shipped(model: str) -> Path:
    """The prompt tokens that ship for a target.

    Raises:
        InvalidOption: there are none.
    """
    path = shipped_file("ppd", model)
    if path is not None:
        return path
    raise InvalidOption(
        "no prompt tokens ship for this model: train some with `paceline train prompt-tokens`, and "
        "name them with ppd:weights=FILE"
    )
