"""Training of judge and pivot heads: mismatches of greedy decoding, labelled by target rollouts.

With a grade, labels are the task's: what accepting costs of it, over the greedy continuation to the
end (judge: right or wrong), or the mean of sampled ones with common random numbers (pivot). Without
one they are the target's own. Judge: the loss of mean log-probability per token. Pivot: the loss of
multiset overlap with the target's greedy text.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from paceline.core.target import Rows, Target
from paceline.core.types import (
    ROOT,
    IntArray,
    LogitArray,
    Needs,
    ProbArray,
    SamplingParams,
    SamplingScheme,
    TokenTree,
    Verdict,
)
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption
from paceline.lab.training.classifier_metrics import (
    ClassifierMetrics,
    classifier_metrics,
    logistic_regression,
)
from paceline.methods.heads.verifiers import LinearHead, features
from paceline.methods.relaxed_acceptance import entropy
from paceline.networks.weights import read_tensors, write_tensors
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose, Randomness
from paceline.sampling.sampler import Sampler, logprobs
from paceline.verifiers.base import TargetDistributions, Verifier
from paceline.verifiers.matching import Greedy


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Drafted token that differs from the target's.

    Attributes:
        own: the target's token.
        logprob: of the drafted token under the target, in nats.
        features: float32 `[4 + hidden_size]` of `features`, hidden state last.
    """

    position: int
    token: int
    own: int
    logprob: float
    features: LogitArray


class MismatchRecorder(Verifier):
    """Greedy verification that records the mismatches after each accepted path."""

    name: ClassVar[str] = "recorder"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = Greedy.accepts
    needs: ClassVar[Needs] = Needs(hidden=True)

    def __init__(self) -> None:
        self._rule = Greedy()
        self.found: list[Mismatch] = []

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        verdict = self._rule.verify(draft, target, randomness)
        last = verdict.path[-1] if verdict.path else ROOT
        children = np.flatnonzero(draft.parents == last).tolist()
        if children:
            distribution, own = target.soft(last), verdict.next_token
            unsure = entropy(distribution)
            for child in children:
                token = int(draft.tokens[child])
                seen = features(distribution, unsure, own, token, target.hidden(child))
                position = target.position + len(verdict.path)
                self.found.append(Mismatch(position, token, own, float(seen[0]), seen))
        return verdict


# From an answer's tokens to its grade in [0, 1].
Grade = Callable[[Sequence[int]], float]

# From float32 `[vocabulary]` logits and a position to a token.
Choose = Callable[[LogitArray, int], int]


@dataclass(frozen=True, slots=True)
class Beginning:
    """Token after a cached prefix; `position` is absolute, `choose` continues the text."""

    position: int
    token: int
    choose: Choose


@dataclass(slots=True)
class Rollout:
    """Tokens up to the wanted length or an end token (included), with log-probabilities in nats."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


def greedy(logits: LogitArray, position: int) -> int:
    return int(logits.argmax())


def sampled(temperature: float, top_k: int, seed: int, stream: int) -> Choose:
    """Sample with common random numbers: equal draws at a position for all texts of a stream."""
    sampler = Sampler(SamplingParams(temperature=temperature, top_k=top_k), ())
    randomness = KeyedRandomness(seed, stream)

    def choose(logits: LogitArray, position: int) -> int:
        distribution = sampler.distribution(logits)
        return distribution.token(
            randomness.choice(distribution.probs, Draw(position, Purpose.TARGET))
        )

    return choose


def roll_out(
    target: Target,
    cache: Any,
    beginnings: Sequence[Beginning],
    length: int,
    ends: Sequence[int],
    batch: int = 16,
) -> list[Rollout]:
    """Continue beginnings of one cached text, `batch` per forward; the cache stays unchanged.

    Raises InvalidOption if the target cannot go back to them.
    """
    if target.capabilities.rollback is not None:
        raise InvalidOption(
            "rollouts go back in a text, which a model with recurrent layers cannot: train with "
            "another loss, or for another model"
        )
    out = [Rollout() for _ in beginnings]
    for start in range(0, len(beginnings), batch):
        group = list(zip(beginnings, out, strict=True))[start : start + batch]
        running = [
            (begin, done, target.fork(cache)) for begin, done in group if begin.token not in ends
        ]
        try:
            for begin, _, fork in running:
                target.truncate(fork, begin.position)
            live = running
            for _ in range(length):
                if not live:
                    break
                outputs = target.forward(
                    [
                        Rows.draft(fork, [(done.tokens or [begin.token])[-1]])
                        for begin, done, fork in live
                    ]
                )
                for (begin, done, fork), output in zip(live, outputs, strict=True):
                    target.keep(fork, 1, ())
                    row = output.logits[0]
                    token = begin.choose(row, begin.position + 1 + len(done.tokens))
                    done.tokens.append(token)
                    done.logprobs.append(logprobs(row, token, 0).logprob)
                live = [each for each in live if each[1].tokens[-1] not in ends]
        finally:
            for _, _, fork in running:
                target.release(fork)
    return out


Kind = Literal["judge", "pivot"]


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """Prompt and greedy answer of the target.

    Attributes:
        cache: holds all tokens but the last.
        logprobs: of every answer token under the target, in nats.
        ends: end tokens.
    """

    cache: Any
    tokens: Sequence[int]
    prompt_length: int
    logprobs: Sequence[float]
    ends: Sequence[int]


@dataclass(frozen=True, slots=True)
class RolloutOptions:
    """Settings of continuations.

    Attributes:
        ahead: tokens after the mismatch.
        samples: sampled continuations per token, for pivot.
    """

    ahead: int = 12
    samples: int = 2
    temperature: float = 0.7
    top_k: int = 40
    seed: int = 0


def losses(
    kind: Kind,
    target: Target,
    text: GreedyAnswer,
    found: Sequence[Mismatch],
    rollouts: RolloutOptions,
    grade: Grade | None = None,
) -> list[float]:
    """Return the cost of accepting each mismatch: of the grade, else nats per token (judge), or a
    share (pivot)."""
    if grade is not None:
        return _grade_lost(kind, target, text, found, rollouts, grade)
    if kind == "judge":
        return _likelihood_lost(target, text, found, rollouts)
    return _agreement_lost(target, text, found, rollouts)


def _grade_lost(
    kind: Kind,
    target: Target,
    text: GreedyAnswer,
    found: Sequence[Mismatch],
    rollouts: RolloutOptions,
    grade: Grade,
) -> list[float]:
    answer = list(text.tokens[text.prompt_length :])
    kept = [answer[: each.position - text.prompt_length] for each in found]

    def graded(tokens: Sequence[int], choose: Choose) -> list[float]:
        pairs = zip(found, tokens, strict=True)
        beginnings = [Beginning(each.position, token, choose) for each, token in pairs]
        room = target.capabilities.max_context - 2 - max(each.position for each in found)
        length = min(rollouts.ahead, max(1, room))
        continued = roll_out(target, text.cache, beginnings, length, text.ends)
        rows = zip(kept, tokens, continued, strict=True)
        return [grade([*before, token, *after.tokens]) for before, token, after in rows]

    theirs = [each.token for each in found]
    if kind == "judge":
        own = grade(answer)
        return [own - each for each in graded(theirs, greedy)]
    lost = np.zeros(len(found))
    for stream in range(rollouts.samples):
        choose = sampled(rollouts.temperature, rollouts.top_k, rollouts.seed, stream)
        mine = np.array(graded([each.own for each in found], choose))
        lost += (mine - graded(theirs, choose)) / rollouts.samples
    return [float(each) for each in lost]


def _likelihood_lost(
    target: Target, text: GreedyAnswer, found: Sequence[Mismatch], rollouts: RolloutOptions
) -> list[float]:
    beginnings = [Beginning(each.position, each.token, greedy) for each in found]
    continued = roll_out(target, text.cache, beginnings, rollouts.ahead, text.ends)
    out = []
    for each, after in zip(found, continued, strict=True):
        start = each.position - text.prompt_length
        own = text.logprobs[start : start + 1 + rollouts.ahead]
        theirs = [each.logprob, *after.logprobs]
        out.append(sum(own) / len(own) - sum(theirs) / len(theirs))
    return out


def _agreement_lost(
    target: Target, text: GreedyAnswer, found: Sequence[Mismatch], rollouts: RolloutOptions
) -> list[float]:
    # The target's own token is rolled out once per position, however many mismatches are there.
    tokens = list(dict.fromkeys((e.position, t) for e in found for t in (e.own, e.token)))
    shares = dict.fromkeys(tokens, 0.0)
    for stream in range(rollouts.samples):
        choose = sampled(rollouts.temperature, rollouts.top_k, rollouts.seed, stream)
        beginnings = [Beginning(position, token, choose) for position, token in tokens]
        continued = roll_out(target, text.cache, beginnings, rollouts.ahead, text.ends)
        for (position, token), after in zip(tokens, continued, strict=True):
            reference = text.tokens[position + 1 : position + 1 + rollouts.ahead]
            common = (Counter(after.tokens) & Counter(reference)).total()
            shares[position, token] += common / len(reference) / rollouts.samples
    return [shares[e.position, e.own] - shares[e.position, e.token] for e in found]


def train_head(
    kind: Kind,
    features: LogitArray,
    losses: ProbArray,
    prompts: IntArray,
    *,
    hidden_size: int,
    margin: float,
    cost: float,
    penalty: float,
    held_out: float,
    seed: int,
    metadata: Mapping[str, str],
) -> tuple[LinearHead, ClassifierMetrics]:
    """Fit a head on some prompts and judge it on the others; prompts are never split.

    Args:
        kind: "judge" finds losses of at most `margin` from the hidden state alone; "pivot" finds
            larger ones from all features.
        features: float32 `[n, 4 + hidden_size]`, log-probability first and hidden state last.
        losses: float64 `[n]`.
        prompts: int64 `[n]`, prompt of each example.
        cost: relative weight of mismatches that must not pass.
        held_out: share of held-out prompts, in (0, 1).

    Raises:
        InvalidOption: a part has examples of one class alone.
    """
    labels = losses <= margin if kind == "judge" else losses > margin
    inputs = features[:, -hidden_size:] if kind == "judge" else features
    names = np.random.default_rng(seed).permutation(np.unique(prompts))
    apart = np.isin(prompts, names[: max(1, round(held_out * len(names)))])
    for rows in (apart, ~apart):
        if not labels[rows].any() or labels[rows].all():
            raise InvalidOption(
                f"all of {int(rows.sum())} examples are of one class: give more prompts, or "
                f"another --margin than {margin}"
            )
    weights = np.where(losses > margin, cost, 1.0)
    weight, bias = logistic_regression(inputs[~apart], labels[~apart], weights[~apart], penalty)
    head = LinearHead(weight, bias, {**metadata, "kind": kind})
    scores = np.array([head.probability(row) for row in inputs[apart]])
    sign = 1.0 if kind == "judge" else -1.0
    signed = sign * features[apart, 0].astype(np.float64)
    quality = classifier_metrics(scores, labels[apart], signed, prompts[apart])
    figures = {"margin": str(margin), "held_out": json.dumps(quality.as_dict())}
    return replace(head, metadata={**head.metadata, **figures}), quality


class Cut(NamedTuple):
    """Texts that were graded before their end: answers, and continuations, of so many."""

    answers: int = 0
    cut: int = 0
    continuations: int = 0


UNCUT = Cut()


@dataclass(frozen=True, slots=True)
class Labelled:
    """Mismatches of one prompt: float32 `[n, 4 + hidden_size]` features, float64 `[n]` losses."""

    features: LogitArray
    losses: ProbArray
    cut: Cut = UNCUT


def collect(
    engine: Engine,
    kind: Kind,
    prompt: str,
    *,
    new_tokens: int,
    per_prompt: int,
    rollouts: RolloutOptions,
    seed: int,
    grade: Callable[[str], float] | None = None,
) -> Labelled:
    """Label up to `per_prompt` mismatches of one prompt's greedy answer.

    Its last tokens are left out; with a grade of texts, all of an answer that gets none, which
    nothing can spoil. The engine's verifier is replaced while this runs.
    """
    decoder, tokenizer = engine.loop, engine.tokenizer
    ids = tokenizer.prompt(prompt)
    recorder, rule = MismatchRecorder(), decoder.verifier
    decoder.verifier = recorder
    try:
        answer = engine.generate(ids, max_new_tokens=new_tokens, logprobs=0)
    finally:
        decoder.verifier = rule
    length = len(ids)
    last = length + len(answer.token_ids) - (0 if grade else rollouts.ahead)
    cut_answers = int(grade is not None and answer.finish_reason == "length")
    if grade and not grade(answer.text):
        last = 0
    chosen = _choose([each for each in recorder.found if each.position < last], per_prompt, seed)
    target = decoder.target

    ends: list[bool] = []  # of graded continuations

    def graded(said: Sequence[int]) -> float:
        assert grade is not None
        ends.append(said[-1] in tokenizer.eos_token_ids)
        return grade(tokenizer.decode(list(said)))

    if not chosen:
        width = 4 + target.capabilities.hidden_size
        return Labelled(np.zeros((0, width), np.float32), np.zeros(0), Cut(cut_answers))
    tokens = [*ids, *answer.token_ids]
    cache = target.open()
    try:
        target.prefill(cache, tokens[:-1])
        written = [each.logprob for each in answer.logprobs]
        text = GreedyAnswer(cache, tokens, length, written, tokenizer.eos_token_ids)
        found = losses(kind, target, text, chosen, rollouts, graded if grade else None)
    finally:
        target.release(cache)
    cut = Cut(cut_answers, ends.count(False), len(ends))
    return Labelled(np.stack([each.features for each in chosen]), np.array(found), cut)


def _choose(found: Sequence[Mismatch], count: int, seed: int) -> list[Mismatch]:
    picks = np.random.default_rng(seed).permutation(len(found))[:count]
    return [found[i] for i in sorted(picks.tolist())]


class ExampleStore:
    """Labelled mismatches in one file, for resumable labelling.

    Raises:
        InvalidOption: the file is no such store, or of a run with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._settings = json.dumps(settings, sort_keys=True)
        self._parts: list[Labelled] = []
        self._prompts: list[int] = []
        # Prompts labelled, from the first on, and what of them was graded before its end.
        self.done, self.cut = 0, UNCUT
        if path.exists():
            self._read()

    def add(self, labelled: Labelled) -> None:
        self._parts.append(labelled)
        self._prompts += [self.done] * len(labelled.losses)
        self.done += 1
        self.cut = Cut(*map(sum, zip(self.cut, labelled.cut, strict=True)))

    def examples(self) -> tuple[LogitArray, ProbArray, IntArray]:
        """Return features, losses and prompt index of all examples; InvalidOption if none."""
        parts = [part for part in self._parts if len(part.losses)]
        if not parts:
            raise InvalidOption(
                "no drafted token missed the target's own: give more prompts or other drafters"
            )
        return (
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.losses for part in parts]),
            np.array(self._prompts, dtype=np.int64),
        )

    def save(self) -> None:
        """Write the file atomically; InvalidOption if it cannot be written."""
        if not self._prompts:
            return
        features, losses, prompts = self.examples()
        tensors: dict[str, np.ndarray] = {
            "features": features,
            "losses": losses,
            "prompts": prompts,
        }
        metadata = {"settings": self._settings, "done": str(self.done), "cut": json.dumps(self.cut)}
        write_tensors(self.path, tensors, metadata, "give another --examples")

    def _read(self) -> None:
        advice = "give another --examples or remove it"
        tensors, metadata = read_tensors(self.path, "labelled examples", advice)
        try:
            settings, done = metadata["settings"], int(metadata["done"])
            self.cut = Cut(*json.loads(metadata.get("cut", "[0, 0, 0]")))
            labelled = Labelled(tensors["features"], tensors["losses"])
            prompts = tensors["prompts"].tolist()
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidOption(f"{self.path} holds no labelled examples: {advice}") from error
        if settings != self._settings:
            mine, theirs = json.loads(self._settings), json.loads(settings)
            different = sorted(k for k in mine.keys() | theirs if mine.get(k) != theirs.get(k))
            raise InvalidOption(
                f"{self.path} was labelled with other settings ({', '.join(different)}): give "
                "another --examples, or the same settings to resume"
            )
        self._parts, self._prompts, self.done = [labelled], prompts, done
