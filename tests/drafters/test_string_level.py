"""Draft models of other vocabularies: exactness, identity, what is read again or has no tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.test_draft_model import Watched
from tests.helpers.decoding_loop import decode
from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.vocabularies import byte_level, letters, spaced

from paceline.core.target import Target
from paceline.core.types import Budget, LogitArray, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, DrafterContext, NoDrafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.string_level import ByVocabulary, StringLevel
from paceline.drafters.translation import Reader, Translation
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.models.text import Tokenizer
from paceline.policy.controller import Fixed
from paceline.proof.compare import goodness_of_fit, max_error, target_joint
from paceline.proof.oracle import Joint, enumerate_distribution
from paceline.proof.tabular import TabularModel, TabularTarget, processed
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import KeyedRandomness, Randomness
from paceline.verifiers.base import TargetDistributions, Verifier
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch
from paceline.verifiers.rejection import Rejection

# Target and draft vocabularies.
PAIRS = [
    ("a b ab", "a b ba aa"),
    ("a b", "a b ab ba abb"),
    ("a b c ab abc", "a b c bc ca"),
    ("a b ab", "a ab"),  # the draft model has no b
    ("a b ab", "a b c bc"),  # the target has no c
]


class Pair:
    """A target and a draft model on tables, each with a vocabulary of its own."""

    def __init__(self, target: Tokenizer, draft: Tokenizer, seed: int = 0, depth: int = 2) -> None:
        self.translation = Translation(target, draft)
        self.big = TabularModel(target.vocab_size, depth, seed, 1.5)
        self.small = TabularModel(draft.vocab_size, depth, seed + 1, 1.5)

    def drafter(self, verifier: Verifier, model: Target | None = None) -> StringLevel:
        model = model or TabularTarget(self.small.logits, self.small.vocabulary)
        return StringLevel(model, self.translation, verifier.gumbel_coupled)

    def decoder(
        self, verifier: Verifier, drafter: Drafter | None, depth: int
    ) -> AutoregressiveDecoder:
        target = TabularTarget(self.big.logits, self.big.vocabulary)
        chosen = drafter or NoDrafter()
        return AutoregressiveDecoder(
            target, chosen, verifier, Fixed(depth, depth), StopRules((), 4096)
        )

    def generate(
        self, verifier: Verifier, params: SamplingParams, randomness: Randomness
    ) -> tuple[int, ...]:
        """The shipped loop, drafter and translation; the prompt is token 0."""
        decoder = self.decoder(verifier, self.drafter(verifier), 2)
        sequence = Generation.start(0, [0], params)
        sequence.randomness = randomness
        decoder.open(sequence)
        while sequence.finish_reason is None:
            decoder.step([sequence])
        decoder.close(sequence)
        return tuple(sequence.generated)

    def truth(self, params: SamplingParams) -> Joint:
        return target_joint(processed(self.big.logits, params, [0]), (0,), params.max_new_tokens)


def texts(joint: Joint, tokenizer: Tokenizer) -> dict[str, float]:
    out: dict[str, float] = {}
    for tokens, mass in joint.items():
        text = tokenizer.decode(list(tokens))
        out[text] = out.get(text, 0.0) + mass
    return out


class TextMatch(SampleMatch):
    """A wrong rule: a drafted token stands if the text of the target's own begins with its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        verdict = super().verify(draft, target, randomness)
        text = self._tokenizer.decode([verdict.next_token])
        after = len(verdict.path)
        if after < len(draft) and text.startswith(self._tokenizer.decode([draft.tokens[after]])):
            return Verdict(verdict.path, int(draft.tokens[after]))
        return verdict


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_law_of_tokens_and_text_is_the_target_s(
    target: str, draft: str, temperature: float
) -> None:
    """By enumeration of all draws over several rounds of the loop."""
    pair = Pair(letters(target), letters(draft))
    params = SamplingParams(temperature=temperature, max_new_tokens=5)
    found = enumerate_distribution(lambda r: pair.generate(SampleMatch(), params, r))
    truth = pair.truth(params)
    assert max_error(found, truth) < 1e-12
    mine, theirs = (texts(joint, letters(target)) for joint in (found, truth))
    assert mine.keys() == theirs.keys()
    assert all(abs(mine[text] - theirs[text]) < 1e-12 for text in mine)


def test_a_rule_that_compares_texts_is_caught() -> None:
    tokenizer = letters("a b ab")
    pair = Pair(tokenizer, letters("a b ba aa"), seed=3)
    params = SamplingParams(temperature=1.0, max_new_tokens=5)
    found = enumerate_distribution(lambda r: pair.generate(TextMatch(tokenizer), params, r))
    mine, theirs = (texts(joint, tokenizer) for joint in (found, pair.truth(params)))
    assert max(abs(mine.get(text, 0) - theirs[text]) for text in theirs) > 0.01


@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_same_seed_gives_the_same_tokens(target: str, draft: str, temperature: float) -> None:
    accepted = 0
    for seed in range(40):
        pair = Pair(letters(target), letters(draft), seed)
        params = SamplingParams(temperature=temperature, max_new_tokens=24, seed=seed)
        prompts = [[0], [1, 0, 1]]
        verifier = Coupled() if temperature else Greedy()
        drafted = decode(pair.decoder(verifier, pair.drafter(verifier), 4), prompts, params)
        plain = decode(pair.decoder(verifier, None, 4), prompts, params)
        assert [s.generated for s in drafted] == [s.generated for s in plain]
        accepted += sum(s.stats.accepted_tokens for s in drafted)
    assert accepted > 0


def test_with_noise_the_law_is_the_target_s() -> None:
    pair = Pair(letters("a b ab"), letters("a b ba aa"))
    params = SamplingParams(temperature=1.0, max_new_tokens=3)
    counts = Counter(
        pair.generate(Coupled(), params, KeyedRandomness(seed)) for seed in range(3000)
    )
    assert goodness_of_fit(counts, pair.truth(params)) > 1e-3


TEXTS = st.text(st.sampled_from("ab the quick\n  12é😀月"), min_size=1, max_size=40)


@settings(max_examples=40)
@given(TEXTS, st.integers(0, 99), st.sampled_from([0.0, 1.0]), st.integers(1, 6))
def test_characters_of_several_bytes(text: str, seed: int, temperature: float, depth: int) -> None:
    """Byte-level vocabularies; tables write bytes that are no characters, too."""
    target, draft = byte_level("the quick brown fox"), byte_level("quack quick 😀😀 月月")
    pair = Pair(target, draft, seed)
    params = SamplingParams(temperature=temperature, max_new_tokens=12, seed=seed)
    watched = Watched(pair.small)
    drafter = pair.drafter(Coupled(), watched)
    [drafted] = decode(pair.decoder(Coupled(), drafter, depth), [target.encode(text)], params)
    [plain] = decode(pair.decoder(Coupled(), None, depth), [target.encode(text)], params)
    assert drafted.generated == plain.generated
    assert all(cache.released for cache in watched.caches)


class Script:
    """A target that writes given tokens, and a draft model that knows their text."""

    def __init__(self, target: Tokenizer, draft: Tokenizer, text: str) -> None:
        self.ids = target.encode(text)
        self._text = Translation(target, draft).target.join(self.ids)
        self._draft = draft
        self._places = {}
        place = 0
        for token in draft.encode(self._text.decode()):
            self._places[place] = token
            place += len(draft.bytes_of(token))
        self.target = TabularTarget(self.says, target.vocab_size)

    def says(self, context: tuple[int, ...]) -> LogitArray:
        return self._row(320, self.ids[len(context)] if len(context) < len(self.ids) else 0)

    def knows(self, context: tuple[int, ...]) -> LogitArray:
        read = b"".join(map(self._draft.bytes_of, context))
        token = self._places.get(len(read))
        if token is None:  # within a token: what is left of the text, in other tokens
            token = next(iter(self._draft.encode(self._text[len(read) :].decode())), 0)
        return self._row(320, token if self._text.startswith(read) else 0)

    def _row(self, size: int, token: int) -> LogitArray:
        row = np.zeros(size, np.float32)
        row[token] = 50.0
        return row


def written(script: Script, drafter: Drafter, depth: int, begin: int) -> Generation:
    decoder = AutoregressiveDecoder(
        script.target, drafter, Coupled(), Fixed(depth, depth), StopRules((), 4096)
    )
    params = SamplingParams(max_new_tokens=len(script.ids) - begin)
    [sequence] = decode(decoder, [script.ids[:begin]], params)
    assert sequence.tokens == script.ids
    return sequence


@pytest.mark.parametrize(
    "text",
    [
        "the dog the quick brown fox jumps over the lazy dog",
        "the dog def f(x):\n    return  x + 1\n\n\nquick",
        "the dog 😀 the 😀😀 fox 月光 é quick",
    ],
)
@pytest.mark.parametrize("kind", [byte_level, spaced])
def test_a_draft_model_that_knows_the_text_is_nearly_always_right(text: str, kind: Any) -> None:
    """Words, spaces and characters across the boundaries of drafts are cut as the target does;
    the end of a draft may be cut otherwise than the whole word that follows."""
    target, draft = kind("the quick brown fox return"), byte_level("jumps lazy 😀😀 quick def the")
    script = Script(target, draft, text)
    drafter = StringLevel(TabularTarget(script.knows, 320), Translation(target, draft))
    stats = written(script, drafter, 6, 2).stats
    assert stats.drafted_tokens - stats.accepted_tokens <= stats.target_forwards
    assert stats.target_forwards <= len(script.ids) / 3


def test_only_what_differs_is_read_again() -> None:
    target, draft = byte_level("the quick brown fox"), byte_level("jumps lazy quick the over")
    script = Script(target, draft, "the quick brown fox jumps over the lazy dog " * 3)

    class Small(Watched):
        def __init__(self) -> None:
            TabularTarget.__init__(self, script.knows, 320)
            self.caches, self.fed, self.batches = [], [], []

    watched = Small()
    written(script, StringLevel(watched, Translation(target, draft)), 4, 4)
    rows = sum(each.num_new for each, _ in watched.fed)
    assert rows <= 1.3 * len(draft.encode("the quick brown fox jumps over the lazy dog " * 3))


def test_special_tokens_are_read_where_both_have_them_and_never_drafted() -> None:
    target, draft = byte_level("the fox"), byte_level("quick fox")
    shared = target.special_ids["<|im_start|>"]
    reader = Reader(Translation(target, draft), begins=False)
    reader.read([shared, *target.encode("fox")])
    assert reader.ids == [draft.special_ids["<|im_start|>"], *draft.encode("fox")]
    mine = Translation(target, letters("a b"))
    assert mine.text_of(shared) == b""
    assert mine.tokens([shared], b"fox") == target.encode("fox")

    class Ends(TabularModel):
        def logits(self, context: tuple[int, ...]) -> LogitArray:
            return np.eye(self.vocabulary, dtype=np.float32)[draft.special_ids["<|im_end|>"]]

    ends = Ends(draft.vocab_size, 1, 0)
    drafter = StringLevel(
        TabularTarget(ends.logits, ends.vocabulary), Translation(target, draft), noise=False
    )
    assert len(proposed(drafter, target.encode("the fox"))) == 0


def proposed(drafter: StringLevel, tokens: list[int]) -> TokenTree:
    sequence = Generation.start(0, tokens, SamplingParams(temperature=1.0))
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(4, 4)])
    drafter.close(sequence)
    return draft


@given(TEXTS, TEXTS)
def test_drafted_tokens_have_the_drafted_bytes(before: str, drafted: str) -> None:
    for target in (byte_level("the quick brown fox"), spaced("the quick brown fox")):
        translation = Translation(target, byte_level("other"))
        committed = target.encode(before)
        joined = translation.target.join(translation.tokens(committed, drafted.encode()))
        assert drafted.encode().startswith(joined)


@given(st.lists(TEXTS, min_size=1, max_size=12))
def test_reading_bit_by_bit_is_reading_at_once(parts: Sequence[str]) -> None:
    target, draft = byte_level("the quick brown fox"), byte_level("quick 12")
    translation = Translation(target, draft)
    reader = Reader(translation, begins=False)
    for part in parts:
        reader.read(target.encode(part))
    assert not reader.partial
    assert translation.draft.join(reader.ids).decode() == "".join(parts)


def context(model: Target, one: Tokenizer, other: Tokenizer, **facts: object) -> DrafterContext:
    return drafter_context(model, lambda: model, tokenizers=(one, other), **facts)


def test_draft_model_is_by_tokens_for_one_vocabulary_and_by_text_for_two() -> None:
    one, other = letters("a b ab"), letters("a b ba aa")
    model = TabularTarget(TabularModel(3, 1, 0).logits, 3)
    assert isinstance(ByVocabulary.create(context(model, one, one)), DraftModel)
    drafter = ByVocabulary.create(context(model, one, other))
    assert isinstance(drafter, StringLevel)
    assert drafter.kind is None


def test_what_cannot_work_is_said() -> None:
    one, other = letters("a b ab"), letters("a b ba aa")
    model = TabularTarget(TabularModel(4, 1, 0).logits, 4)
    with pytest.raises(InvalidOption, match="use verifier 'coupled'"):
        ByVocabulary.create(context(model, one, other, accepts=Rejection.accepts))
    with pytest.raises(InvalidOption, match="no option 'growth'"):
        ByVocabulary.create(context(model, one, other, options={"growth": "iid"}))
    with pytest.raises(InvalidOption, match="recent must be 1 or more"):
        StringLevel(model, Translation(one, other), recent=0)
    with pytest.raises(InvalidOption, match="name one with --draft-model"):
        StringLevel.create(drafter_context(model))
