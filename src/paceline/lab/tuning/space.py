"""Search space of tuning, the prompts it is measured on, and the measurements."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

from paceline.core.types import SamplingParams
from paceline.drafters.resources import Loaded, has_coarser
from paceline.errors import PromptError
from paceline.lab.measure.agent import Dialogues
from paceline.lab.measure.prompts import BenchPrompt, spread
from paceline.lab.measure.report import BASELINE, Row, rows
from paceline.lab.measure.run import Record, Rotation, Run, warm_up
from paceline.networks.weights import shipped_cards
from paceline.registry.assembly import DEFAULT_DRAFTER
from paceline.registry.loading import make_engine
from paceline.registry.tuned_choice import Configuration

# Autoregressive decoding: the baseline, and the choice if nothing is faster.
PLAIN = Configuration("none")

# Most valuable first, for short time limits.
_MODEL_FREE: tuple[str, ...] = (
    "suffix-decoding+recycling",
    "recycling",
    "suffix-automaton",
    "suffix-decoding",
    "prompt-lookup+recycling",
    "suffix-automaton+recycling",
    "prompt-lookup",
    "aded",
    "suffix-decoding+aded",
    "cacheback",
    "prompt-lookup+cacheback",
    "suffix-decoding+recycling+cacheback",
    "suffix-decoding+recycling+aded",
)

# By network: drafters with its weights. For a small model, a network pays best after a free one.
_TRAINED: Mapping[str, tuple[str, ...]] = {
    "eagle3": (
        "suffix-automaton>eagle3",
        "suffix-automaton>eagle3:growth=expand-rerank-2",
        "eagle3:growth=expand-rerank-4",
    ),
    "hydra": (
        "suffix-automaton>hydra",
        "prompt-lookup>hydra",
        "hydra",
        "suffix-automaton>hydra:growth=expand-rerank-2",
        "hydra:growth=expand-rerank-4",
    ),
    "block-parallel": ("suffix-automaton>block-parallel",),
    "draft-lm": ("suffix-automaton>draft-lm",),
}

# For fp32 models.
_COARSER = ("suffix-automaton>quantised", "quantised")

_SIZES: tuple[tuple[str, int | None, int | None], ...] = (
    ("cost-model", None, None),
    ("cost-model", 7, 7),
    ("cost-model", 11, 8),
    ("cost-model", 15, 8),
    ("cost-model", 31, 12),
    # With the root, fixed drafts fill the rows of the passes that the CPU runtime has compiled.
    ("fixed", 3, 3),
    ("fixed", 7, 4),
    ("fixed", 7, 7),
    ("fixed", 11, 6),
    ("fixed", 15, 8),
)

# Controller, nodes and depth.
SIZINGS: Mapping[str, tuple[str, int | None, int | None]] = {
    controller if nodes is None else f"{controller} {nodes}x{depth}": (controller, nodes, depth)
    for controller, nodes, depth in _SIZES
}

# Tried with all drafters before other sizings.
FIRST_SIZING = next(iter(SIZINGS))


def configuration(drafter: str, sizing: str) -> Configuration:
    return Configuration(drafter, *SIZINGS[sizing])


# Meaning of drafter "auto" without tuning.
DEFAULT = configuration(DEFAULT_DRAFTER, FIRST_SIZING)


class Space:
    """All drafters by all sizings.

    Attributes:
        drafters: the default first, then by value for short time limits.
        weights: by network with weights for the model, their fingerprint.
    """

    def __init__(
        self, trained: Mapping[str, object] = MappingProxyType({}), coarser: bool = False
    ) -> None:
        """`coarser`: the target's own weights can draft at int8."""
        self.weights = {name: trained[name] for name in _TRAINED if name in trained}
        with_weights = [_TRAINED[name] for name in self.weights]
        best = [names[0] for names in with_weights]
        others = [name for names in with_weights for name in names[1:]]
        first, later = _MODEL_FREE[:7], _MODEL_FREE[7:]
        order = (DEFAULT_DRAFTER, *(_COARSER if coarser else ()), *best, *first, *others, *later)
        self.drafters: tuple[str, ...] = tuple(dict.fromkeys(order))

    @classmethod
    def of(cls, loaded: Loaded) -> Space:
        """Build the space of a loaded model."""
        target = loaded.target
        coarser = has_coarser(target.capabilities)
        if not (target.capabilities.networks and target.capabilities.feature_layers):
            return cls(coarser=coarser)
        cards = shipped_cards()
        model = loaded.source.fingerprint
        mine = {card.kind: card for card in cards if card.metadata.get("model") == model}
        return cls(mine, coarser)

    @cached_property
    def everything(self) -> Mapping[str, Configuration]:
        points = ((drafter, sizing) for sizing in SIZINGS for drafter in self.drafters)
        return {found.name: found for found in (configuration(*each) for each in points)}

    def first_untried(self, tried: Collection[str]) -> tuple[str, str] | None:
        """Return drafter and sizing of the first point whose name is not in `tried`."""
        points = ((drafter, sizing) for sizing in SIZINGS for drafter in self.drafters)
        return next((p for p in points if configuration(*p).name not in tried), None)


FEWEST_PROMPTS = 4
_MOST_PROMPTS = 24

# From prompt, configurations and a stop check between slices to a record; raises Stopped.
Play = Callable[[int, Sequence[Configuration], Callable[[], object]], Record]


class Track(Protocol):
    """Measurements for a search."""

    @property
    def searching(self) -> Sequence[int]:
        """Return prompt numbers for the comparison of candidates."""

    @property
    def held_out(self) -> Sequence[int]:
        """Return prompt numbers for finals."""

    def open(self, configurations: Sequence[Configuration]) -> Play:
        """Return fresh engines for configurations, without history of any prompt."""


class ModelTrack:
    """Track over a model: the first half of the prompts is for search, the second held out.

    Raises:
        PromptError: there are fewer than four prompts, or one is longer than the context.
    """

    def __init__(
        self, loaded: Loaded, prompts: Sequence[BenchPrompt], params: SamplingParams
    ) -> None:
        if len(prompts) < FEWEST_PROMPTS:
            raise PromptError(
                f"tuning needs {FEWEST_PROMPTS} prompts or more, half of them to prove the winner "
                f"on, and there are {len(prompts)}: add prompts"
            )
        self._loaded = loaded
        self._params = params
        self.work = Dialogues(spread(prompts, _MOST_PROMPTS))
        count = len(self.work.prompts)
        self.searching: Sequence[int] = range(count // 2)
        self.held_out: Sequence[int] = range(count // 2, count)
        self._plain = make_engine(loaded, drafter=PLAIN.drafter, max_batch=1)
        self.work.check(self._plain, params)
        warm_up({BASELINE: self._plain}, self.work.opening)
        loaded.measured_costs  # noqa: B018 (measured now, not within the time limit)
        self._turn = 0

    def open(self, configurations: Sequence[Configuration]) -> Play:
        # Drafters learn from prompt to prompt, as in use.
        gc.collect()  # engines of the round before hold tables and caches
        engines = {BASELINE: self._plain}
        for each in configurations:
            engines[each.name] = make_engine(
                self._loaded,
                drafter=each.drafter,
                controller=each.controller,
                nodes=each.nodes,
                depth=each.depth,
                max_batch=1,
            )
        warm_up(engines, self.work.opening)

        def play(prompt: int, who: Sequence[Configuration], stop: Callable[[], object]) -> Record:
            names = [BASELINE, *(each.name for each in who)]
            race = Rotation({name: engines[name] for name in names}, turn=self._turn, stop=stop)
            self._turn += 1
            [record] = self.work.play([prompt], race, self._params)
            return record

        return play


_CATEGORY = "prompts"


class Evidence:
    """Paired runs, configuration against baseline, on equal prompts in interleaved time slices.

    Only ratios within a pair are formed, so a machine that slows down affects both sides. `keep`
    gets every changed key with its plain value; `kept` restores from these.
    """

    def __init__(
        self,
        kept: Mapping[str, Any] | None = None,
        keep: Callable[[str, Any], None] = lambda key, value: None,
    ) -> None:
        self._keep = keep
        self._pairs: dict[str, dict[int, Record]] = {}
        for key, value in (kept or {}).items():
            name, prompt = json.loads(key)
            self._pairs.setdefault(name, {})[int(prompt)] = Record.from_dict(value)

    def add(self, record: Record) -> None:
        """Record the result of every configuration of a race on a prompt."""
        for name in record.runs.keys() - {BASELINE}:
            mine = self._pairs.setdefault(name, {})
            runs = {each: Run() for each in (name, BASELINE)}
            for source in filter(None, (mine.get(record.index), record)):
                for each, run in runs.items():
                    run.stats.add(source.runs[each].stats)
            pair = Record(record.index, record.question_id, _CATEGORY, runs)
            mine[record.index] = pair
            self._keep(json.dumps([name, record.index]), pair.as_dict())

    @property
    def names(self) -> list[str]:
        return list(self._pairs)

    def forwards(self, name: str, prompt: int) -> int:
        pair = self._pairs.get(name, {}).get(prompt)
        return 0 if pair is None else pair.runs[name].stats.target_forwards

    def speedup(self, name: str, prompts: Collection[int] | None = None) -> float:
        """Return tokens per second relative to the baseline; 0 if nothing was measured."""
        tokens = seconds = base_tokens = base_seconds = 0.0
        for pair in self._chosen(name, prompts):
            mine, base = pair.runs[name].stats, pair.runs[BASELINE].stats
            tokens += mine.committed_tokens
            seconds += mine.decode_seconds
            base_tokens += base.committed_tokens
            base_seconds += base.decode_seconds
        plain = seconds * base_tokens
        return tokens * base_seconds / plain if plain else 0.0

    def ranked(self, prompts: Collection[int] | None = None) -> list[str]:
        """Return configurations measured on some prompts (None: any), the fastest first.

        Log speedups shrink to their mean by the weight of one prompt, against lucky prompts.
        """
        measured = {name: self.speedup(name, prompts) for name in self._pairs}
        logs = {name: math.log(speedup) for name, speedup in measured.items() if speedup}
        mean = sum(logs.values()) / max(len(logs), 1)

        def score(name: str) -> float:
            count = len(self._chosen(name, prompts))
            return (count * logs[name] + mean) / (count + 1)

        return sorted(logs, key=score, reverse=True)

    def row(self, name: str, prompts: Collection[int] | None = None) -> Row | None:
        """Return figures of a configuration over some prompts, or None.

        Keys of `measure.report.rows`, and `forward_cost`: with drafting, in baseline forwards.
        """
        chosen = self._chosen(name, prompts)
        if not chosen:
            return None
        row = rows(chosen, {name: True})[0]
        speedup = row["speedup"]
        return {**row, "forward_cost": row["block_efficiency"] / speedup if speedup else None}

    def rows(self, prompts: Collection[int] | None = None) -> list[Row]:
        found = (self.row(name, prompts) for name in self.ranked(prompts))
        return [row for row in found if row is not None]

    def _chosen(self, name: str, prompts: Collection[int] | None) -> list[Record]:
        pairs = sorted(self._pairs.get(name, {}).items())
        return [pair for prompt, pair in pairs if prompts is None or prompt in prompts]
