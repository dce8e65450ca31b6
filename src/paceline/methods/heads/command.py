"""`paceline train judge` and `pivot`: heads of verifiers, on labels of the model's own making."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import typer

from paceline.cli import options as o
from paceline.core.expressions import split_lists
from paceline.core.options import Allowed, at_least, check_fields
from paceline.errors import InvalidOption
from paceline.lab.training.recipe import RATE
from paceline.registry.options import Options
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.drafters.resources import Loaded
    from paceline.lab.training.classifier_metrics import ClassifierMetrics, Figure
    from paceline.methods.heads.grading import Problem
    from paceline.methods.heads.training import ExampleStore

PerPrompt = Annotated[int, "Most mismatches labelled per prompt.", at_least(1)]
_SAVE_EVERY = 8
"""Prompts between two writes of the examples."""


def run(job: HeadOptions, asked: Options, as_json: bool) -> None:
    """Label, fit, judge, write, report."""
    job = job.sized()
    job.check(asked)

    from paceline.cli.output import end, print_json
    from paceline.lab.training.data import prompts_digest, read_texts
    from paceline.methods.heads.grading import read_problems
    from paceline.methods.heads.training import ExampleStore, train_head
    from paceline.methods.heads.verifiers import save_head
    from paceline.registry import loading

    problems = read_problems(job.prompts) if job.graded else []
    every = [each.prompt for each in problems] or read_texts(job.prompts)
    texts = every[: job.limit]
    loaded = loading.load_model(asked)
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
    command = job.command(asked.model)
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
            "command": command,
            "model_name": loaded.source.name,
            "paceline": __version__,
            "prompts_labelled": str(store.done),
        },
    )
    save_head(job.out, head)
    if as_json:
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
                "command": command,
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
    from paceline.methods.heads.training import RolloutOptions, collect
    from paceline.registry import loading

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


Kind = Literal["judge", "pivot"]

_UNSAID = ("prompts", "out", "examples", "graded")
"""Options that `HeadOptions.command` says otherwise, or not at all."""


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """What both commands take; each adds its own defaults. InvalidOption out of bounds."""

    kind: ClassVar[Kind]
    prompts: Annotated[
        list[Path], typer.Argument(help="JSONL files: turns, prompt, question or instruction.")
    ]
    out: Annotated[Path, "Where the head goes (safetensors)."]
    examples: Annotated[
        Path | None, "Where labelled examples are kept; resumes. Default: beside --out."
    ] = None
    drafters: Annotated[str, "Whose mistakes to label, in turn by prompt."] = (
        "recycling,prompt-lookup"
    )
    draft_model: Annotated[str | None, "Model of drafter draft-model."] = None
    graded: Annotated[
        bool,
        "Files hold problems (question, and answer or tests): label by whether answers are right. "
        "Tests run what the model writes.",
    ] = False
    limit: Annotated[int | None, "So many prompts, the first of the files.", at_least(1)] = None
    new_tokens: Annotated[
        int | None, "Length of each answer in tokens. Default: 64, or 512 if graded.", at_least(1)
    ] = None
    per_prompt: PerPrompt
    ahead: Annotated[
        int | None,
        "Tokens that the model goes on for behind a mismatch. Default: 12, or if graded as many "
        "as --new-tokens.",
        at_least(1),
    ] = None
    samples: Annotated[int, "One: the continuation is greedy."] = field(init=False, default=1)
    margin: Annotated[float, "Of the loss."]
    cost: Annotated[
        float, "How much worse it is to pass a bad token than to refuse a good one.", RATE
    ] = 2.0
    penalty: Annotated[float, "L2 penalty of the fit.", RATE] = 0.3
    held_out: Annotated[
        float, "Share of prompts to judge the head on.", Allowed(lambda x: 0 < x < 1, "in (0, 1)")
    ] = 0.25
    seed: Annotated[int, "Keys all randomness."] = 0

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def names(self) -> list[str]:
        """The drafters."""
        return split_lists([self.drafters], "--drafters")

    def command(self, model: str) -> str:
        """Return a command line that makes the same head; files by their names alone."""
        parts = ["paceline", "train", self.kind, *(path.name for path in self.prompts)]
        said = [each.name for each in fields(self) if each.init and each.name not in _UNSAID]
        for key, value in [*((key, getattr(self, key)) for key in said), ("model", model)]:
            if value is not None:
                parts += [f"--{key.replace('_', '-')}", str(value)]
        return " ".join([*parts, *(["--graded"] if self.graded else [])])

    def sized(self) -> Self:
        """Return the options with lengths: only a whole answer has a grade."""
        new_tokens = self.new_tokens or (512 if self.graded else 64)
        ahead = self.ahead or (new_tokens if self.graded else 12)
        return replace(self, new_tokens=new_tokens, ahead=ahead)

    def check(self, asked: Options) -> None:
        """Raise InvalidOption if options do not fit each other or are unknown."""
        asked.check(*self.names)
        if set(self.names) & ({"none"} if self.draft_model else {"none", "draft-model"}):
            raise InvalidOption(
                "--drafters must name drafters that draft, draft-model only with --draft-model"
            )
        assert self.ahead is not None
        assert self.new_tokens is not None
        if not self.graded and self.ahead >= self.new_tokens:
            raise InvalidOption(f"--ahead must be less than --new-tokens, not {self.ahead}")


@dataclass(frozen=True, kw_only=True)
class JudgeOptions(HeadOptions):
    """Those of `judge`, whose continuations are greedy: one is all there are."""

    kind: ClassVar[Kind] = "judge"
    out: Annotated[Path, "Where the head goes (safetensors)."] = Path("judge.safetensors")
    per_prompt: PerPrompt = 12
    margin: Annotated[float, "Acceptable: at most so many nats per token lost."] = 0.3


@dataclass(frozen=True, kw_only=True)
class PivotOptions(HeadOptions):
    """Those of `pivot`."""

    kind: ClassVar[Kind] = "pivot"
    out: Annotated[Path, "Where the head goes (safetensors)."] = Path("pivot.safetensors")
    per_prompt: PerPrompt = 8
    samples: Annotated[int, "Sampled continuations per token.", at_least(1)] = 2
    margin: Annotated[float, "Pivotal: more than such a share of agreement lost."] = 0.1


Model = Annotated[Options, o.Takes("model", "runtime", "precision", "threads")]


def judge(job: JudgeOptions, *, asked: Model, as_json: o.AsJson = False) -> None:
    """Train the head of verifier judge: which mismatches are acceptable.

    Ctrl-C keeps what was labelled and trains on it; the same command goes on labelling.
    """
    run(job, asked, as_json)


def pivot(job: PivotOptions, *, asked: Model, as_json: o.AsJson = False) -> None:
    """Train the head of verifier pivot: which mismatches turn the text.

    Ctrl-C keeps what was labelled and trains on it; the same command goes on labelling.
    """
    run(job, asked, as_json)
