"""How well a published head foresees its target, as its files say and wired otherwise.

A wrong wiring is silent: the text is right, and drafts are accepted seldom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, cast

import numpy as np

from paceline.core.target import Rows
from paceline.core.types import LogitArray
from paceline.drafters.resources import Loaded
from paceline.errors import InvalidOption
from paceline.models.config import FINAL
from paceline.networks.published import Published
from paceline.networks.published.eagle3 import HeadWiring
from paceline.networks.published.wirings import WiringChanges
from paceline.networks.runner import ContextUpdate, NetworkTarget

PROMPT = "Write a Python function that counts the words of a text, and explain it in a few steps."
_DEPTH = 4


class Foreseen(NamedTuple):
    """Mean tokens in a row that a head foresees, of at most `most`.

    Attributes:
        options: of the drafter for this wiring, as in "eagle3:shift=1"; empty as the files say.
        boundaries: those that are read.
        tokens: the mean.
    """

    options: str
    boundaries: tuple[int, ...]
    tokens: float
    most: int


def foreseen(loaded: Loaded, head: Published, tokens: int) -> list[Foreseen]:
    """Try the wirings that may be meant on the target's own greedy text; the best comes first.

    Raises InvalidOption as `PublishedHead.fit`.
    """
    target, source = cast(NetworkTarget, loaded.target), loaded.source
    layers, width = source.config.layers, source.config.hidden_size
    tries = list(_tries(head, layers))
    wanted = sorted({each for _, wired in tries for each in wired.boundaries(layers)})
    places = dict(zip(wanted, target.read_boundaries(wanted), strict=True))
    begin, text, features = _text(loaded, tokens)
    parts = features.reshape(len(features), -1, width)
    out = []
    for options, wired in tries:
        boundaries = wired.boundaries(layers)
        runner = target.run_network(wired.fit(source.config, source.weights(), source.fingerprint))
        rows = parts[:, [places[each] for each in boundaries]].reshape(len(parts), -1)
        cache, counts, first = runner.open(), [], 0
        for root in range(begin, len(text) - _DEPTH):
            # Row t is of the position before token t + 1; the root is the last.
            update = ContextUpdate(cache, rows[first:root], text[first + 1 : root + 1])
            [chain] = runner.draft([update], _DEPTH)
            agreed = np.array(chain.tokens) == text[root + 1 : root + 1 + len(chain.tokens)]
            counts.append(int(agreed.cumprod().sum()))
            first = root
        runner.release(cache)
        most = min(_DEPTH, runner.depth)
        out.append(Foreseen(options, boundaries, float(np.mean(counts)), most))
    return sorted(out, key=lambda each: -each.tokens)


def _tries(head: Published, layers: int) -> Iterator[tuple[str, Published]]:
    wiring = head.wiring
    changed = [("", WiringChanges())]
    changed += [(f"shift={each}", WiringChanges(shift=each)) for each in (1, -1)]
    if isinstance(wiring, HeadWiring):
        normed: Literal["true", "false"] = "false" if wiring.norm_output else "true"
        changed.append((f"norm_output={normed}", WiringChanges(norm_output=normed)))
    for options, changes in changed:
        wired = head.changed(changes, layers)
        if options and wired.wiring == head.changed(WiringChanges(), layers).wiring:
            continue  # the last state is counted from no end
        if all(each == FINAL or 0 <= each <= layers for each in wired.boundaries(layers)):
            yield options, wired


def _text(loaded: Loaded, tokens: int) -> tuple[int, Sequence[int], LogitArray]:
    # Length of the prompt, the text with it, and features of all but its last token.
    target, ends = loaded.target, loaded.tokenizer.eos_token_ids
    tokenizer = loaded.tokenizer
    asked = [{"role": "user", "content": PROMPT}]
    text = list(tokenizer.chat(asked) if tokenizer.chat_template else tokenizer.encode(PROMPT))
    begin, cache, rows = len(text), target.open(), []
    new = text
    try:
        for _ in range(tokens):
            [output] = target.forward([Rows.draft(cache, new, features=True)])
            assert output.features is not None
            rows.append(output.features.copy())
            target.keep(cache, len(new), ())
            new = [int(output.logits[-1].argmax())]
            text += new
            if new[0] in ends:
                break
    finally:
        target.release(cache)
    if len(text) < begin + 2 * _DEPTH:
        raise InvalidOption("the model ends its text at once: its template may be missing")
    return begin, text, np.concatenate(rows)
