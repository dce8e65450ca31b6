"""Parallel prompt decoding (Chen et al. 2024, arXiv:2405.18628): trained prompt tokens after each
node predict the tokens further on, so drafting takes no pass of its own. The score of a prompt
token is its expected gain in the next step, no probability: a calibrating controller prunes too
much, so sizes are best given (--nodes). In layout "exact" each chain of prompt tokens is a path.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import ROOT, Budget, IntArray, Needs, ProbArray, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.recycling import top_rows
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.methods.ppd.prompt_tokens import load_prompt_tokens
from paceline.methods.ppd.tree import SparseTree, best_tree
from paceline.networks.weights import shipped_file
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.shapes import layout
from paceline.weights import or_install


class PPD(Drafter):
    """Draft trees of candidates and prompt tokens; a first tree has prompt tokens alone."""

    name: ClassVar[str] = "ppd"
    requires = (
        "logits of rejected nodes; prompt tokens for the model (paceline train prompt-tokens)"
    )
    paper = "after PPD, Chen et al. 2024, arXiv:2405.18628"
    needs: Needs = Needs(node_logits=True)

    def __init__(
        self, accuracies: ProbArray, first_id: int, costs: Callable[[], CostModel] | None = None
    ) -> None:
        """Bind prompt tokens that the target knows.

        Args:
            accuracies: float64 `[m, ranks]`, as in `PromptTokens`.
            first_id: of the first prompt token; the others follow. Ids lie above the
                vocabulary, so no lossless rule can accept one.
            costs: forward costs; None takes rows to be free, up to the budget.
        """
        self._accuracies = accuracies
        self._first = first_id
        self._costs = costs
        self._plans: dict[int, SparseTree] = {}
        self._candidates: dict[int, IntArray] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the prompt tokens of option `weights`; with `aware=true` forward costs set the size.

        Raises:
            InvalidOption: an option is unknown, or there are no prompt tokens for this target.
            RuntimeUnavailable: no embeddings in the runtime, a lossy verifier, or other drafters.
        """
        options = dict(context.options)
        weights, aware = options.pop("weights", ""), options.pop("aware", "false")
        if options or aware not in ("true", "false"):
            raise InvalidOption(
                "drafter 'ppd' has options weights=FILE and aware=true or false, not "
                f"{', '.join(options) or aware}"
            )
        if not context.embeddings:
            raise RuntimeUnavailable(
                "drafter 'ppd' drafts nodes that hold no token: it needs runtime cpu or "
                "torch, a lossless verifier, and no other drafter beside it"
            )
        path = Path(weights) if weights else _shipped(context.model)
        trained = load_prompt_tokens(path, context.model, context.target.hidden_size)
        loaded = context.resources.loaded
        first: int = cast(Any, loaded.target).add_embeddings(trained.embeddings)
        costs = (lambda: loaded.costs) if aware == "true" else None
        return cls(trained.accuracies, first, costs)

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, draft, verdict, output = verified
        chain = self._prompts(draft, verdict.path[-1] if verdict.path else ROOT)
        self._candidates.pop(sequence.id, None)
        if chain:
            rows = output.logits[[node + 1 for node in chain]]
            self._candidates[sequence.id] = top_rows(rows, self._accuracies.shape[1])[0]

    def close(self, sequence: Generation) -> None:
        self._candidates.pop(sequence.id, None)

    def _prompts(self, draft: TokenTree, node: int) -> list[int]:
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
            self._plans[nodes] = best_tree(self._accuracies, nodes, costs)
        return self._plans[nodes]

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
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
    path = shipped_file("ppd", model)
    if path is not None:
        return path
    raise InvalidOption(
        f"no prompt tokens ship for this model: {or_install()}train some with `paceline train "
        "prompt-tokens`, and name them with ppd:weights=FILE"
    )
