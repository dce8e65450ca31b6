"""Refusals: a verifier must reject every draft of a method that it does not accept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from paceline.errors import IncompatibleDraft, PacelineError
from paceline.exactness.cases import PROMPT, Case
from paceline.exactness.draft_laws import Draftable, draft_law
from paceline.exactness.oracle import ContinuousNoise, enumerate_law
from paceline.exactness.tabular import TabularLaws, processed
from paceline.randomness import KeyedRandomness, Randomness
from paceline.tree import is_chain
from paceline.types import TokenTree
from paceline.verifiers.base import Verifier

_CASE = Case(vocabulary=3, depth=2, width=2, temperature=1.0, top_p=1.0)
# Samples in place of all outcomes where noise is continuous.
_SEEDS = 20


@dataclass(frozen=True, slots=True)
class Refusal:
    """Result for one incompatible pair: refused if all drafts raised IncompatibleDraft."""

    verifier: str
    draft_law: str
    refused: bool
    message: str


def refusal(verifier: Verifier, drafts: Draftable) -> Refusal:
    """Verify all drafts of a method that `verifier` does not accept.

    Where it accepts the kind and not the shape, drafts that happen to be chains are left out.
    """
    law = processed(_CASE.models()[0], _CASE.params, PROMPT)
    first = None
    for draft in _all_drafts(drafts.name):
        if len(draft) and (drafts.kind not in verifier.accepts or _branches(draft)):
            good, message = always_raises(
                partial(verifier.verify, draft, TabularLaws(law, PROMPT, draft)),
                IncompatibleDraft,
                verifier.name,
            )
            if not good:
                return Refusal(verifier.name, drafts.name, False, message)
            first = first or message
    message = first or "there was no draft to refuse"
    return Refusal(verifier.name, drafts.name, first is not None, message)


def always_raises(
    attempt: Callable[[Randomness], object], due: type[PacelineError], *named: str
) -> tuple[bool, str]:
    """Return whether every outcome of `attempt` raises error `due` with all `named` in its message.

    Also returns the first wrong message, or else the first of all.
    """
    seen: dict[str, bool] = {}

    def run(randomness: Randomness) -> tuple[int, ...]:
        try:
            message, good = f"no error: {attempt(randomness)}", False
        except ContinuousNoise:
            raise
        except Exception as error:  # a wrong kind of error is what is looked for
            text = str(error)
            message = f"{type(error).__name__}: {text}"
            good = isinstance(error, due) and "\n" not in text and all(n in text for n in named)
        seen[message] = good
        return ()

    _every_outcome(run)
    return all(seen.values()), min(seen, key=lambda message: seen[message])


def _branches(draft: TokenTree) -> bool:
    law = draft.law
    repeated = law is not None and (
        len(law.paths) > 1 or any(len(drawn) > 1 for drawn in law.draws.values())
    )
    return repeated or not is_chain(draft)


@cache
def _all_drafts(name: str) -> tuple[TokenTree, ...]:
    drafts = draft_law(name)
    q = processed(_CASE.models()[1], _CASE.draft_params, PROMPT)
    if drafts.build is None:
        raise ValueError(f"drafts of '{name}' depend on earlier rounds")
    propose = drafts.build(q, _CASE.vocabulary, _CASE.width)
    budget = drafts.budget(_CASE.width, _CASE.depth)
    found: list[TokenTree] = []

    def run(randomness: Randomness) -> tuple[int, ...]:
        found.append(propose(PROMPT, randomness, budget))
        return ()

    _every_outcome(run)
    return tuple(found)


def _every_outcome(run: Callable[[Randomness], tuple[int, ...]]) -> None:
    try:
        enumerate_law(run)
    except ContinuousNoise:
        for seed in range(_SEEDS):
            run(KeyedRandomness(seed))
