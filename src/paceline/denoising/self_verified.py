"""Mask rows draft, clean rows of the same model verify: TiDAR (arXiv:2511.08923), with
FlexDraft's pruning (arXiv:2605.20022), and the linear speculation of Nemotron-Labs-Diffusion. The
text is the model's own autoregressive one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import within
from paceline.core.target import Output
from paceline.core.types import (
    Attention,
    Distribution,
    DraftSampling,
    IntArray,
    LogitArray,
    TokenLogprob,
    TokenTree,
)
from paceline.denoising.canvas import Ask
from paceline.denoising.process import Context, Process, Terms
from paceline.denoising.process import Sampler as CanvasSampler
from paceline.denoising.unmasking import check_clean_rows
from paceline.errors import InvalidOption
from paceline.sampling.distributions import gumbel_max
from paceline.sampling.randomness import Draw, Purpose
from paceline.sampling.sampler import Sampler, TreeDistributions, logprobs
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled, SampleMatch
from paceline.verifiers.rejection import Rejection

Rule = Literal["coupled", "rejection", "sample-match"]
RULES: dict[str, type[Verifier]] = {rule.name: rule for rule in (Coupled, Rejection, SampleMatch)}


class Tidar(CanvasSampler):
    """Verify candidates and draft behind each of them, in one forward.

    A group of masks stands behind every candidate, for the case that it is the last to be
    accepted: that group's distributions draft the next candidates. Its first mask holds the place
    of the token that the model itself chooses there.
    """

    name: ClassVar[str] = "tidar"
    guarantee = "lossless: the model's own autoregressive decoding"
    requires = "a denoiser whose clean rows predict the next token"
    paper = "after TiDAR, Liu et al. 2025, arXiv:2511.08923"
    needs: tuple[Attention, ...] = ("full", "block", "order", "causal")

    def __init__(self, width: int = 4, verifier: Rule = "coupled", prune: float = 0.0) -> None:
        """Set how to draft and to verify.

        Args:
            width: candidates of a forward, at most.
            verifier: "coupled" gives the seed's own text, others its distribution.
            prune: least product of the candidates' largest probabilities; FlexDraft's is 0.01.
        """
        within("width", width, 1, 32)
        within("prune", prune, 0, 1, "0 for all")
        self.width, self.rule, self.prune = width, RULES[verifier](), prune

    def check(self, terms: Terms) -> None:
        check_clean_rows(self.name, terms.facts)

    def process(self, context: Context) -> Process:
        return Groups(context, self.width, self.rule, self.prune)


class LinearSpec(Tidar):
    """Draft behind the last token in one forward, verify in the next: fewer rows than groups."""

    name: ClassVar[str] = "linear-spec"
    paper = "after Nemotron-Labs-Diffusion, Fu et al. 2026, github.com/sgl-project/sglang"

    def process(self, context: Context) -> Process:
        return InTurn(context, self.width, self.rule, self.prune)


class Groups:
    """Candidates after the text, and masks behind each of them."""

    exact = True

    def __init__(self, context: Context, width: int, rule: Verifier, prune: float) -> None:
        self.context, self.width, self.rule, self.prune = context, width, rule, prune
        request = context.request
        if not request.prompt:
            raise InvalidOption(
                "an autoregressive distribution needs a prompt of one token at least"
            )
        self.canvas = context.canvas()
        self.logprobs: dict[int, TokenLogprob] = {}
        constraint = None if request.constraint is None else request.constraint.start()
        ends = tuple(context.distributions.ends)
        self._sampler = Sampler(
            request.params, request.prompt, constraint, ends, request.randomness
        )
        self._shift = int(context.facts.shifted)
        self.held = 0
        self.drafts = trees.EMPTY

    def log_likelihood(self, end: int) -> float | None:
        # From left to right: what stands behind the answer says nothing of it.
        return None if self.context.distributions.greedy else self.canvas.logprob(end)

    def ask(self) -> Ask:
        return self._rows(self.drafts, [self._masks(g) for g in range(len(self.drafts) + 1)])

    def _masks(self, accepted: int) -> range:
        # Places of the group for so many candidates. Drafts come behind the model's own token.
        own = len(self.canvas.tokens) + accepted
        last = min(own + 1 + self.width, self.canvas.end)
        return range(own, last - self._shift) if last > own + 1 else range(0)

    def _rows(self, drafts: TokenTree, groups: Sequence[range]) -> Ask:
        # Clean rows are causal. Group g sees the text, g candidates and itself.
        text = self.canvas.tokens
        tokens = [*text[self.held :], *drafts.tokens.tolist()]
        clean, known = len(tokens), len(text) - self.held
        places = [*range(self.held, self.held + clean), *(at for group in groups for at in group)]
        tokens += [self.context.facts.mask] * (len(places) - clean)
        sees = np.zeros((len(places), len(places)), dtype=np.bool_)
        sees[:clean, :clean] = np.tri(clean)
        start, self._groups = clean, list[IntArray]()
        for index, group in enumerate(groups):
            rows = np.arange(start, start + len(group))
            sees[start : start + len(group), : known + index] = True
            sees[start : start + len(group), start : start + len(group)] = True
            self._groups.append(rows if self._shift else rows[1:])
            start += len(group)
        self._wanted = np.concatenate([np.arange(known - 1, clean), *self._groups])
        return Ask(np.asarray(tokens), np.asarray(places), sees, self._wanted)

    def take(self, logits: LogitArray) -> Sequence[int]:
        known = len(self.canvas.tokens) - self.held
        accepted = self._verify(logits[: len(self.drafts) + 1])
        group = np.isin(self._wanted, self._groups[accepted])
        self.drafts = self._drafted(logits[group], len(self.canvas.tokens))
        return range(known + accepted)

    def _verify(self, logits: LogitArray) -> int:
        # Append what is accepted and the model's own token behind it; return how many of the first.
        canvas, drafts, request = self.canvas, self.drafts, self.context.request
        begin = len(canvas.tokens)
        probs = TreeDistributions(
            self._sampler, drafts, Output(self._without_mask(logits), None), begin, self.rule.name
        )
        verdict = self.rule.verify(drafts, probs, request.randomness)
        tokens = [*drafts.tokens[list(verdict.path)].tolist(), verdict.next_token]
        for index, token in enumerate(tokens[: canvas.end - begin]):
            self._append(token, probs.soft(index - 1).prob(token), logits[index])
        self._sampler.commit(canvas.tokens[begin:])
        canvas.final = len(canvas.tokens)
        canvas.step += 1
        self.held = begin + len(verdict.path)
        return len(verdict.path)

    def _append(self, token: int, probability: float, row: LogitArray) -> None:
        canvas, top = self.canvas, self.context.request.params.logprobs
        place = len(canvas.tokens)
        canvas.tokens.append(token)
        canvas.put(place, token, float(np.log(probability)))
        if top is not None:
            self.logprobs[place] = logprobs(row, token, top)

    def _drafted(self, logits: LogitArray, first: int) -> TokenTree:
        # Drafts for the places from `first` on, from the distributions of mask rows.
        randomness, tokens = self.context.request.randomness, list[int]()
        probs: dict[int, Distribution] = {}
        drawn = isinstance(self.rule, Rejection)
        sure = 1.0
        for index, row in enumerate(self._without_mask(logits)):
            if self.prune:
                soft = self._sampler.proposal(row, tokens, soft=True)
                sure *= float(soft.probs.max())
                if sure < self.prune:
                    break
            distribution = probs[index - 1] = self._sampler.proposal(row, tokens)
            place = first + index
            if drawn:
                draw = Draw(place, Purpose.DRAFT, root=first - 1)
                tokens.append(distribution.token(randomness.choice(distribution.probs, draw)))
            else:
                tokens.append(gumbel_max(distribution, place, randomness))
        return trees.chain(tokens, "", DraftSampling("iid", probs) if drawn and tokens else None)

    def _without_mask(self, logits: LogitArray) -> LogitArray:
        logits = logits.copy()
        mask = self.context.facts.mask
        logits[:, mask : mask + 1] = -np.inf  # none if it lies above the vocabulary
        return logits

    def forget(self) -> None:
        self.held = 0


class InTurn(Groups):
    """Masks behind the last token, then candidates."""

    drafting = True

    def ask(self) -> Ask:
        if not self.drafting:
            return self._rows(self.drafts, ())
        begin = len(self.canvas.tokens)
        # One group behind the text; its first mask drafts, too, and if shifted the last token.
        last = min(begin + self.width, self.canvas.end)
        ask = self._rows(trees.EMPTY, [range(begin, last - self._shift)])
        rows = np.arange(len(ask.tokens) - (last - begin), len(ask.tokens))
        return ask._replace(wanted=rows)

    def take(self, logits: LogitArray) -> Sequence[int]:
        known = len(self.canvas.tokens) - self.held
        self.drafting = not self.drafting
        if self.drafting:
            return range(known + self._verify(logits))
        self.drafts = self._drafted(logits, len(self.canvas.tokens))
        self.held += known - 1
        self.canvas.step += 1
        return range(known - 1)
