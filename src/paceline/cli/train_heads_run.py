"""How a head of a verifier comes about: label, fit, judge, write, report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from paceline.cli import options as o
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.cli.train_heads import HeadOptions
    from paceline.loading import Loaded
    from paceline.training.quality import Figure, Quality
    from paceline.training.store import ExampleStore

_SAVE_EVERY = 8
"""Prompts between two writes of the examples."""


def run(job: HeadOptions) -> None:
    """Label, fit, judge, write, report."""
    job.check()
    checked = o.runtime_options(precision=job.precision, threads=job.threads)

    from paceline import loading
    from paceline.cli.output import print_json
    from paceline.training.head import train_head
    from paceline.training.prompts import digest, read_texts
    from paceline.training.store import ExampleStore
    from paceline.verifiers.heads import save_head

    every = read_texts(job.prompts)
    texts = every[: job.limit]
    loaded = loading.load_model(job.model, runtime=job.runtime, options=checked)
    capabilities = loaded.target.capabilities
    settings = {
        "kind": job.kind,
        "model": loaded.source.fingerprint,
        "runtime": capabilities.runtime,
        "precision": capabilities.precision,
        "prompts": digest(every),
        "drafters": ",".join(job.names),
        "new_tokens": job.new_tokens,
        "per_prompt": job.per_prompt,
        "ahead": job.ahead,
        "samples": job.samples,
        "seed": job.seed,
    }
    store = ExampleStore(job.examples or job.out.with_suffix(".examples.safetensors"), settings)
    interrupted = _label(job, loaded, texts, store)
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
    if interrupted:
        raise typer.Exit(130)


def _label(job: HeadOptions, loaded: Loaded, texts: list[str], store: ExampleStore) -> bool:
    """Label the prompts that are left, with a progress bar; whether Ctrl-C ended it early."""
    from rich.console import Console
    from rich.progress import track

    from paceline import loading
    from paceline.cli.interrupt import interruptible
    from paceline.training.collect import collect
    from paceline.training.labels import Rollouts

    rollouts = Rollouts(ahead=job.ahead, samples=job.samples, seed=job.seed)
    engines = [loading.make_engine(loaded, drafter=name, nodes=8, depth=4) for name in job.names]
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
                )
                store.add(labelled)
                if store.done % _SAVE_EVERY == 0:
                    store.save()
        finally:
            store.save()
        return bool(interrupt)


def _lines(job: HeadOptions, quality: Quality, done: int, wanted: int) -> list[str]:
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
