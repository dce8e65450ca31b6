"""A loaded model: its files, its target on a runtime, and what its forwards cost."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paceline.core.processor import cores
from paceline.core.target import RuntimeOptions, Target
from paceline.models.source import ModelSource
from paceline.models.text import Tokenizer
from paceline.policy.cost import CAREFUL, COST_FORMAT, QUICK, CostModel, load_or_measure
from paceline.version import __version__


@dataclass(frozen=True)
class Loaded:
    """A model on a runtime. Several engines may share it."""

    source: ModelSource
    tokenizer: Tokenizer
    target: Target
    options: RuntimeOptions

    @property
    def place(self) -> dict[str, object]:
        """Key of measured costs and tuned choices: model, runtime settings and machine.

        The longest context is left out: it changes neither.
        """
        capabilities = self.target.capabilities
        kv = capabilities.kv_precision
        return {
            **({} if kv in (None, "fp32") else {"kv": kv}),
            "model": self.source.fingerprint,
            "runtime": capabilities.runtime,
            "device": capabilities.device,
            "precision": capabilities.precision,
            "machine": f"{platform.machine()}-{_processor()}-{os.cpu_count()}-"
            f"{min(self.options.threads or cores(), cores())}",
        }

    @cached_property
    def costs(self) -> CostModel:
        """Forward cost c(n) on this machine: kept from earlier runs, else measured in a second or
        two and learned while decoding.
        """
        return self._costs(QUICK)

    @cached_property
    def measured_costs(self) -> CostModel:
        """The same for reports, measured with care; what is loaded after it starts from it."""
        self.__dict__["costs"] = costs = self._costs(CAREFUL)
        return costs

    def _costs(self, within: float) -> CostModel:
        key = {"version": f"{__version__}.{COST_FORMAT}", **self.place}
        return load_or_measure(self.target, key, within)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return hashlib.sha256(name.encode()).hexdigest()[:8]
