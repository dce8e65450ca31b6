"""`paceline train judge` and `pivot`: heads of verifiers, on labels of the model's own making."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import typer

from paceline.cli import options as o
from paceline.core.expressions import split_lists
from paceline.errors import InvalidOption
from paceline.registry.options import Options
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.registry.loaded import Loaded
    from paceline.training.classifier_metrics import ClassifierMetrics, Figure
    from paceline.zoo.heads.grading import Problem
    from paceline.zoo.heads.training import ExampleStore

_SAVE_EVERY = 8
"""Prompts between two writes of the examples."""


def run(job: HeadOptions) -> None:
    """Label, fit, judge, write, report."""
    job = job.sized()
    job.check()

    from paceline.cli.output import end, print_json
    from paceline.registry import loading
    from paceline.training.data import prompts_digest, read_texts
    from paceline.zoo.heads.grading import read_problems
    from paceline.zoo.heads.training import ExampleStore, train_head
    from paceline.zoo.heads.verifiers import save_head

    problems = read_problems(job.prompts) if job.graded else []
    every = [each.prompt for each in problems] or read_texts(job.prompts)
    texts = every[: job.limit]
    loaded = loading.load_model(job.asked)
    capabilities = loaded.target.capabilities
    settings = {
        "kind": job.kind,
        "model": loaded.source.fingerprint,
        "runtime": capabilities.runtime,
        "precision": capabilities.precision,
        "prompts": prompts_digest(every),
        "drafters": ",".join(job.names),
        "new_tokens": job.new_tokens,
        "per_prompt": job.per_prompt,
        "ahead": job.ahead,
        "samples": job.samples,
        "seed": job.seed,
    }
    if job.graded:
        settings["graded"] = True
    if job.draft_model:
        settings["draft_model"] = job.draft_model
    store = ExampleStore(job.examples or job.out.with_suffix(".examples.safetensors"), settings)
    interrupted, cut = _label(job, loaded, texts, problems, store), store.cut
    head, quality = train_head(
        job.kind,
        *store.examples(),
        hidden_size=capabilities.hidden_size,
        margin=job.margin,
        cost=job.cost,
        penalty=job.penalty,
        held_out=job.held_out,
        seed=job.seed,
        metadata={
            **{key: str(value) for key, value in settings.items()},
            "command": job.command,
            "model_name": loaded.source.name,
            "paceline": __version__,
            "prompts_labelled": str(store.done),
        },
    )
    save_head(job.out, head)
    if job.as_json:
        print_json(
            {
                "head": str(job.out),
                "prompts": store.done,
                "complete": store.done >= len(texts),
                **({"cut": cut._asdict()} if job.graded else {}),
                "settings": {
                    **settings,
                    **{key: getattr(job, key) for key in ("margin", "cost", "penalty")},
                },
                "command": job.command,
                "held_out": quality.as_dict(),
            }
        )
    else:
        for line in _lines(job, quality, store.done, len(texts)):
            typer.echo(line)
        if cut.cut or cut.answers:
            typer.echo(
                f"graded before their end: {cut.answers} answers, cut by --new-tokens "
                f"{job.new_tokens}, and {cut.cut} of {cut.continuations} continuations, cut by "
                f"--ahead {job.ahead}: raise these"
            )
    end(not interrupted)


def _label(
    job: HeadOptions,
    loaded: Loaded,
    texts: list[str],
    problems: list[Problem],
    store: ExampleStore,
) -> bool:
    """Label the prompts that are left, with a progress bar; whether Ctrl-C ended it early."""
    from rich.console import Console
    from rich.progress import track

    from paceline.cli.output import interruptible
    from paceline.registry import loading
    from paceline.zoo.heads.training import RolloutOptions, collect

    assert job.ahead is not None
    assert job.new_tokens is not None
    rollouts = RolloutOptions(ahead=job.ahead, samples=job.samples, seed=job.seed)
    engines = [
        loading.make_engine(
            loaded, drafter=name, nodes=8, depth=4, draft_model=job.draft_model, spare_draft=True
        )
        for name in job.names
    ]
    left = range(store.done, len(texts))
    bar = track(
        left,
        f"labelling for {job.kind}",
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    with interruptible() as interrupt:
        try:
            for index in bar:
                if interrupt:
                    break
                labelled = collect(
                    engines[index % len(engines)],
                    job.kind,
                    texts[index],
                    new_tokens=job.new_tokens,
                    per_prompt=job.per_prompt,
                    rollouts=rollouts,
                    seed=job.seed + index,
                    grade=problems[index].grade if problems else None,
                )
                store.add(labelled)
                if store.done % _SAVE_EVERY == 0:
                    store.save()
        finally:
            store.save()
        return bool(interrupt)


def _lines(job: HeadOptions, quality: ClassifierMetrics, done: int, wanted: int) -> list[str]:
    """The report for people."""
    lines = [] if done >= wanted else [f"interrupted after {done} of {wanted} prompts"]
    positive = "acceptable" if job.kind == "judge" else "pivotal"
    return [
        *lines,
        f"{job.out}: verifier {job.kind}, lossy; held-out: {quality.examples} mismatches of "
        f"{quality.prompts} prompts, {quality.base_rate:.1%} {positive}",
        f"accuracy {_interval(quality.accuracy)}, always the more frequent class "
        f"{quality.majority:.3f}, balanced {_interval(quality.balanced_accuracy)}",
        f"AUC {_interval(quality.auc)}, of the token's log-probability alone "
        f"{_interval(quality.logprob_auc)}",
    ]


def _interval(figure: Figure) -> str:
    return f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"


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
NewTokens = Annotated[
    int | None, typer.Option(help="Length of each answer in tokens. Default: 64, or 512 if graded.")
]
PerPrompt = Annotated[int, typer.Option(help="Most mismatches labelled per prompt.")]
Ahead = Annotated[
    int | None,
    typer.Option(
        help="Tokens that the model goes on for behind a mismatch. Default: 12, or if graded as "
        "many as --new-tokens."
    ),
]
Graded = Annotated[
    bool,
    typer.Option(
        "--graded",
        help="Files hold problems (question, and answer or tests): label by whether answers are "
        "right. Tests run what the model writes.",
    ),
]
DraftModel = Annotated[str | None, typer.Option(help="Model of drafter draft-model.")]
HeldOut = Annotated[float, typer.Option(help="Share of prompts to judge the head on.")]
Cost = Annotated[
    float, typer.Option(help="How much worse it is to pass a bad token than to refuse a good one.")
]
Penalty = Annotated[float, typer.Option(help="L2 penalty of the fit.")]


Kind = Literal["judge", "pivot"]


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What both commands take; each adds its own defaults."""

    kind: ClassVar[Kind]
    prompts: Prompts
    out: Out
    examples: Examples = None
    drafters: Drafters = "recycling,prompt-lookup"
    draft_model: DraftModel = None
    graded: Graded = False
    limit: Limit = None
    new_tokens: NewTokens = None
    per_prompt: PerPrompt
    ahead: Ahead = None
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
    def asked(self) -> Options:
        """The model, and where it runs."""
        return Options(
            model=self.model,
            runtime=self.runtime,
            precision=self.precision,
            threads=self.threads,
        )

    @property
    def names(self) -> list[str]:
        """The drafters."""
        return split_lists([self.drafters], "--drafters")

    @property
    def command(self) -> str:
        """A command line that makes the same head; files by their names alone."""
        parts = ["paceline", "train", self.kind, *(path.name for path in self.prompts)]
        for key in (
            "drafters",
            "limit",
            "new_tokens",
            "per_prompt",
            "ahead",
            "samples",
            "margin",
            "cost",
            "penalty",
            "held_out",
            "seed",
            "model",
            "draft_model",
        ):
            if getattr(self, key) is not None and (key, self.kind) != ("samples", "judge"):
                parts += [f"--{key.replace('_', '-')}", str(getattr(self, key))]
        return " ".join([*parts, *(["--graded"] if self.graded else [])])

    def sized(self) -> Self:
        """Return the options with lengths: only a whole answer has a grade."""
        new_tokens, ahead = self.new_tokens, self.ahead
        if new_tokens is None:
            new_tokens = 512 if self.graded else 64
        if ahead is None:
            ahead = new_tokens if self.graded else 12
        return replace(self, new_tokens=new_tokens, ahead=ahead)

    def check(self) -> None:
        """Raise InvalidOption if something is out of range."""
        self.asked.check(*self.names)
        if set(self.names) & ({"none"} if self.draft_model else {"none", "draft-model"}):
            raise InvalidOption(
                "--drafters must name drafters that draft, draft-model only with --draft-model"
            )
        for key in ("limit", "new_tokens", "per_prompt", "ahead", "samples"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise InvalidOption(f"--{key.replace('_', '-')} must be 1 or more, not {value}")
        assert self.ahead is not None
        assert self.new_tokens is not None
        if not self.graded and self.ahead >= self.new_tokens:
            raise InvalidOption(f"--ahead must be less than --new-tokens, not {self.ahead}")
        if not 0 < self.held_out < 1:
            raise InvalidOption(f"--held-out must be in (0, 1), not {self.held_out}")
        for key in ("cost", "penalty"):
            if not 0 < getattr(self, key) < math.inf:
                raise InvalidOption(f"--{key} must be more than 0, not {getattr(self, key)}")


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(HeadOptions):
    """Those of `judge`, whose continuations are greedy: one is all there are."""

    kind: ClassVar[Kind] = "judge"
    out: Out = Path("judge.safetensors")
    per_prompt: PerPrompt = 12
    margin: Annotated[
        float, typer.Option(help="Acceptable: at most so many nats per token lost.")
    ] = 0.3


@dataclass(frozen=True, kw_only=True)
class PivotOptions(HeadOptions):
    """Those of `pivot`."""

    kind: ClassVar[Kind] = "pivot"
    out: Out = Path("pivot.safetensors")
    per_prompt: PerPrompt = 8
    samples: Annotated[int, typer.Option(help="Sampled continuations per token.")] = 2
    margin: Annotated[
        float, typer.Option(help="Pivotal: more than such a share of agreement lost.")
    ] = 0.1


@o.spread_options
def judge(job: JudgeOptions) -> None:
    """Train the head of verifier judge: which mismatches are acceptable.

    Ctrl-C keeps what was labelled and trains on it; the same command goes on labelling.
    """
    run(job)


@o.spread_options
def pivot(job: PivotOptions) -> None:
    """Train the head of verifier pivot: which mismatches turn the text.

    Ctrl-C keeps what was labelled and trains on it; the same command goes on labelling.
    """
    run(job)
