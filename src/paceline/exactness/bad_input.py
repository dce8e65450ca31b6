"""Fault injection: verifiers must reject broken drafts and logits with an error that says where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from paceline.errors import BadLogits, IncompatibleDraft
from paceline.exactness.cases import PROMPT, Case
from paceline.exactness.draft_laws import DRAFT_LAWS
from paceline.exactness.refusals import always_raises
from paceline.exactness.tabular import TabularLaws, processed
from paceline.law import without
from paceline.randomness import KeyedRandomness
from paceline.sampling import NodeLaws, Sampler
from paceline.target import Output
from paceline.tree import path_to
from paceline.types import ROOT, Budget, Law, TokenTree
from paceline.verifiers.base import TargetLaws, Verifier

_CASE = Case(vocabulary=3, depth=2, width=1, temperature=1.0, top_p=1.0)


@dataclass(frozen=True, slots=True)
class BadInput:
    """Outcome of one fault; `raised` if all outcomes of its draws end in an error at `place`."""

    verifier: str
    draft_law: str
    fault: str
    place: str
    raised: bool
    message: str


# From a sound chain of two drawn nodes to a broken draft.
Break = Callable[[TokenTree], TokenTree]


def _row(change: Callable[[Law], Law | None]) -> Break:
    def broken(draft: TokenTree) -> TokenTree:
        assert draft.law is not None
        rows = dict(draft.law.rows)
        row = change(rows.pop(ROOT))
        if row is not None:
            rows[ROOT] = row
        return replace(draft, law=replace(draft.law, rows=rows))

    return broken


def _scaled(factors: tuple[float, ...]) -> Break:
    return _row(lambda law: replace(law, probs=law.dense() * np.array(factors), ids=None))


def _impossible(draft: TokenTree) -> TokenTree:
    return _row(lambda law: without(law, int(draft.tokens[0])))(draft)


def _pruned(draft: TokenTree) -> TokenTree:
    return replace(draft, tokens=draft.tokens[:-1], parents=draft.parents[:-1])


# Faults of a drawn draft, and what the error must name.
_FAULTS: tuple[tuple[str, Break, str], ...] = (
    ("deterministic draft", lambda draft: replace(draft, law=None), "deterministic"),
    ("sampled draft pruned", _pruned, "node 0"),
    ("q is 0 for a drafted token", _impossible, "node 0"),
    ("row sums to one half", _scaled((0.5, 0.5, 0.5)), "the root"),
    ("row holds a negative entry", _row(lambda law: _negative(law)), "the root"),
    ("row holds NaN", _scaled((1.0, np.nan, 1.0)), "the root"),
    ("row is missing", _row(lambda law: None), "the root"),
)


def _negative(law: Law) -> Law:
    # Still sums to one.
    probs = law.dense().copy()
    most = int(probs.argmax())
    probs[most - 1] -= 1
    probs[most] += 1
    return replace(law, probs=probs, ids=None)


def bad_inputs(verifier: Verifier) -> list[BadInput]:
    """Inject every applicable fault into one draft of each kind that `verifier` accepts."""
    target, drafter = _CASE.models()
    law = processed(target, _CASE.params, PROMPT)
    q = processed(drafter, _CASE.draft_params, PROMPT)
    found: list[BadInput] = []
    # One entry per kind, the first: faults concern what a draft declares, not how it was grown.
    by_kind = {
        each.kind: (each.name, each.build(q, _CASE.vocabulary, _CASE.width))
        for each in reversed(DRAFT_LAWS)
        if each.build is not None and each.fits(verifier)
    }
    for law_name, propose in by_kind.values():
        draft = propose(PROMPT, KeyedRandomness(0), Budget(_CASE.depth, _CASE.depth))

        def check(
            fault: str,
            broken: TokenTree,
            laws: TargetLaws,
            due: type[IncompatibleDraft] | type[BadLogits],
            place: str,
            name: str = law_name,
        ) -> None:
            raised, message = always_raises(
                partial(verifier.verify, broken, laws), due, verifier.name, place
            )
            found.append(BadInput(verifier.name, name, fault, place, raised, message))

        check("NaN logits", draft, _nan_laws(verifier, draft), BadLogits, "the root")
        if None not in verifier.accepts:  # a rule that needs no law reads no rows
            for fault, breaks, place in _FAULTS:
                broken = breaks(draft)
                laws = TabularLaws(law, PROMPT, broken)
                check(fault, broken, laws, IncompatibleDraft, place)
    return found


def _nan_laws(verifier: Verifier, draft: TokenTree) -> TargetLaws:
    target = _CASE.models()[0]
    paths = [draft.tokens[list(path_to(draft, node))].tolist() for node in range(len(draft))]
    logits = np.stack([target((*PROMPT, *path)) for path in ([], *paths)])
    logits[0] = np.nan
    sampler = Sampler(_CASE.params, PROMPT)
    return NodeLaws(sampler, draft, Output(logits), len(PROMPT), verifier.name)
