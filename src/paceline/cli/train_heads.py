"""`paceline train judge` and `pivot`: heads of verifiers, on labels of the model's own making."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.option_groups import grouped
from paceline.cli.train_heads_run import run
from paceline.errors import InvalidOption

if TYPE_CHECKING:
    from paceline.training.labels import Kind

Prompts = Annotated[
    list[Path], typer.Argument(help="JSONL files: turns, prompt, question or instruction.")
]
Out = Annotated[Path, typer.Option(help="Where the head goes (safetensors).")]
Examples = Annotated[
    Path | None,
    typer.Option(help="Where labelled examples are kept; resumes. Default: beside --out."),
]
Drafters = Annotated[str, typer.Option(help="Whose mistakes to label, in turn by prompt.")]
Limit = Annotated[int | None, typer.Option(help="So many prompts, the first of the files.")]
NewTokens = Annotated[int, typer.Option(help="Length of each answer in tokens.")]
PerPrompt = Annotated[int, typer.Option(help="Most mismatches labelled per prompt.")]
Ahead = Annotated[int, typer.Option(help="Tokens that the model goes on for behind a mismatch.")]
HeldOut = Annotated[float, typer.Option(help="Share of prompts to judge the head on.")]
Cost = Annotated[
    float, typer.Option(help="How much worse it is to pass a bad token than to refuse a good one.")
]
Penalty = Annotated[float, typer.Option(help="L2 penalty of the fit.")]


@dataclass(frozen=True, kw_only=True)
class HeadOptions(ABC):
    """What both commands take; each adds its own defaults."""

    prompts: Prompts
    out: Out
    examples: Examples = None
    drafters: Drafters = "recycling,prompt-lookup"
    limit: Limit = None
    new_tokens: NewTokens = 64
    per_prompt: PerPrompt
    ahead: Ahead = 12
    samples: int = field(init=False, default=1)
    margin: float
    cost: Cost = 2.0
    penalty: Penalty = 0.3
    held_out: HeldOut = 0.25
    seed: o.Seed = 0
    model: o.Model = "smollm2-135m"
    runtime: o.Runtime = "auto"
    precision: o.Precision = None
    threads: o.Threads = None
    as_json: o.AsJson = False

    @property
    @abstractmethod
    def kind(self) -> Kind:
        """Of the head."""

    @property
    def names(self) -> list[str]:
        """The drafters."""
        return o.drafter_names([self.drafters], "--drafters")

    @property
    def command(self) -> str:
        """A command line that makes the same head; files by their names alone."""
        parts = ["paceline", "train", self.kind, *(path.name for path in self.prompts)]
        for key in ("drafters", "limit", "new_tokens", "per_prompt", "ahead", "samples", "margin"):
            if getattr(self, key) is not None and (key, self.kind) != ("samples", "judge"):
                parts += [f"--{key.replace('_', '-')}", str(getattr(self, key))]
        parts += [
            "--cost",
            str(self.cost),
            "--penalty",
            str(self.penalty),
            "--held-out",
            str(self.held_out),
        ]
        parts += ["--seed", str(self.seed), "--model", self.model]
        return " ".join(parts)

    def check(self) -> None:
        """Raise InvalidOption if something is out of range."""
        o.check_names(self.runtime, "auto", "auto", *self.names)
        if set(self.names) & {"none", "draft-model"}:
            raise InvalidOption("--drafters must name drafters that draft without another model")
        for key in ("limit", "new_tokens", "per_prompt", "ahead", "samples"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InvalidOption(f"--{key.replace('_', '-')} must be 1 or more, not {value}")
        if self.ahead >= self.new_tokens:
            raise InvalidOption(f"--ahead must be less than --new-tokens, not {self.ahead}")
        if not 0 < self.held_out < 1:
            raise InvalidOption(f"--held-out must be in (0, 1), not {self.held_out}")
        for key in ("cost", "penalty"):
            if not 0 < getattr(self, key) < math.inf:
                raise InvalidOption(f"--{key} must be more than 0, not {getattr(self, key)}")


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(HeadOptions):
    """Those of `judge`, whose continuations are greedy: one is all there are."""

    out: Out = Path("judge.safetensors")
    per_prompt: PerPrompt = 12
    margin: Annotated[
        float, typer.Option(help="Acceptable: at most so many nats per token lost.")
    ] = 0.3

    @property
    def kind(self) -> Kind:
        """Its name."""
        return "judge"


@dataclass(frozen=True, kw_only=True)
class PivotOptions(HeadOptions):
    """Those of `pivot`."""

    out: Out = Path("pivot.safetensors")
    per_prompt: PerPrompt = 8
    samples: Annotated[int, typer.Option(help="Sampled continuations per token.")] = 2
    margin: Annotated[
        float, typer.Option(help="Pivotal: more than such a share of agreement lost.")
    ] = 0.1

    @property
    def kind(self) -> Kind:
        """Its name."""
        return "pivot"


@grouped
def judge(job: JudgeOptions) -> None:
    """Train the head of verifier judge: which mismatches are acceptable.

    Ctrl-C keeps what was labelled and trains on it; the same command goes on labelling.
    """
    run(job)


@grouped
def pivot(job: PivotOptions) -> None:
    """Train the head of verifier pivot: which mismatches turn the text.

    Ctrl-C keeps what was labelled and trains on it; the same command goes on labelling.
    """
    run(job)
