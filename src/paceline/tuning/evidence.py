"""What was measured so far: figures of a configuration and of plain decoding, prompt by prompt."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from paceline.bench.report import BASELINE, Row, rows
from paceline.bench.run import Record, Run

_CATEGORY = "prompts"


class Evidence:
    """Pairs of runs over the same prompt in the same slices of time, summed over repetitions.

    As only ratios within a pair are ever formed, a machine that slows down does so for both sides.
    """

    def __init__(
        self,
        kept: Mapping[str, Any] | None = None,
        keep: Callable[[str, Any], None] = lambda key, value: None,
    ) -> None:
        """Evidence from what an earlier run kept.

        Args:
            kept: plain values by key, as `keep` was given them.
            keep: called with the new value of a key whenever it changes.

        Raises:
            AttributeError, KeyError, TypeError, ValueError: `kept` is of another kind.
        """
        self._keep = keep
        self._pairs: dict[str, dict[int, Record]] = {}
        for key, value in (kept or {}).items():
            name, prompt = json.loads(key)
            self._pairs.setdefault(name, {})[int(prompt)] = Record.from_dict(value)

    def add(self, record: Record) -> None:
        """Book what every configuration of a race did with a prompt."""
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
        """Configurations with at least one prompt."""
        return list(self._pairs)

    def forwards(self, name: str, prompt: int) -> int:
        """Forwards measured for a configuration on a prompt."""
        pair = self._pairs.get(name, {}).get(prompt)
        return 0 if pair is None else pair.runs[name].stats.target_forwards

    def speedup(self, name: str, prompts: Collection[int] | None = None) -> float:
        """Tokens per second over those of plain decoding; 0 if nothing was measured."""
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
        """Configurations measured on some prompts, or any, the best first.

        Logarithms of speed-ups are drawn towards their mean by the weight of one prompt, so that a
        lucky one does not pass for a good one.
        """
        measured = {name: self.speedup(name, prompts) for name in self._pairs}
        logs = {name: math.log(speedup) for name, speedup in measured.items() if speedup}
        mean = sum(logs.values()) / max(len(logs), 1)

        def score(name: str) -> float:
            count = len(self._chosen(name, prompts))
            return (count * logs[name] + mean) / (count + 1)

        return sorted(logs, key=score, reverse=True)

    def row(self, name: str, prompts: Collection[int] | None = None) -> Row | None:
        """Figures of a configuration over some prompts, or all; None if there are none.

        The keys are those of `bench.report.rows`, and `forward_cost`: seconds of its forwards, the
        drafting for them included, in units of a plain one.
        """
        chosen = self._chosen(name, prompts)
        if not chosen:
            return None
        row = rows(chosen, {name: True})[0]
        speedup = row["speedup"]
        return {**row, "forward_cost": row["block_efficiency"] / speedup if speedup else None}

    def rows(self, prompts: Collection[int] | None = None) -> list[Row]:
        """Rows of all configurations that were measured on some prompts, or any, ranked."""
        found = (self.row(name, prompts) for name in self.ranked(prompts))
        return [row for row in found if row is not None]

    def _chosen(self, name: str, prompts: Collection[int] | None) -> list[Record]:
        pairs = sorted(self._pairs.get(name, {}).items())
        return [pair for prompt, pair in pairs if prompts is None or prompt in prompts]
