"""What was measured so far: figures of a configuration and of plain decoding, prompt by prompt."""

from __future__ import annotations

import json
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
            KeyError, TypeError, ValueError: `kept` is of another kind.
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

    def row(self, name: str, prompts: Collection[int] | None = None) -> Row | None:
        """Figures of a configuration over some prompts, or all; None if there are none.

        The keys are those of `bench.report.rows`, and `forward_cost`: seconds of its forwards, the
        drafting for them included, in units of a plain one.
        """
        chosen = [
            pair
            for prompt, pair in sorted(self._pairs.get(name, {}).items())
            if prompts is None or prompt in prompts
        ]
        if not chosen:
            return None
        row = rows(chosen, {name: True})[0]
        speedup = row["speedup"]
        return {**row, "forward_cost": row["block_efficiency"] / speedup if speedup else None}
