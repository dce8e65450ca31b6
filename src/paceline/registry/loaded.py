"""A loaded model: its files, its target on a runtime, and what its forwards cost."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from paceline.core.target import RuntimeOptions, Target
from paceline.models.source import ModelSource
from paceline.models.text import Tokenizer
from paceline.policy.cost import COST_FORMAT, CostModel, load_or_measure
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
        """Key of measured costs and tuned choices: model, runtime settings and machine."""
        capabilities = self.target.capabilities
        kv = capabilities.kv_precision
        return {
            **({} if kv in (None, "fp32") else {"kv": kv}),
            "model": self.source.fingerprint,
            "runtime": capabilities.runtime,
            "device": capabilities.device,
            "precision": capabilities.precision,
            "context": capabilities.max_context,
            "machine": f"{platform.machine()}-{_processor()}-{os.cpu_count()}-"
            f"{self.options.threads}",
        }

    @cached_property
    def costs(self) -> CostModel:
        """Forward cost c(n) on this machine, cached on disk; measured at first use."""
        return load_or_measure(
            self.target,
            {"version": f"{__version__}.{COST_FORMAT}", **self.place},
        )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor()
    return hashlib.sha256(name.encode()).hexdigest()[:8]
