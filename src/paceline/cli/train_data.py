"""`paceline train data` and `corpus`: text that the target writes, or any, to train on."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import interruptible, progress_bar, report
from paceline.core.options import within
from paceline.errors import PromptError
from paceline.registry.options import Options
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.lab.training.data import Text


def data(
    prompts: Annotated[
        list[Path] | None,
        typer.Argument(
            help="JSONL files: turns, prompt, question or instruction; and image, for a picture."
        ),
    ] = None,
    *,
    out: Annotated[Path, "Folder for the shards; resumes."] = Path("data"),
    texts: Annotated[int, "How many, in shards of 256; later runs may add."] = 1024,
    new_tokens: Annotated[int, "Longest answer in tokens."] = 256,
    self_written: Annotated[float, "Share of texts whose user turn the model writes, too."] = 0.5,
    temperatures: Annotated[str, "Of the answers, by turns; 0 is greedy."] = "0,0,0,1",
    past_end: Annotated[bool, "Answers go on, whatever ends there."] = False,
    batch: Annotated[int, "Texts decoded together."] = 32,
    keep_features: o.KeepFeatures = None,
    seed: o.Seed = 0,
    asked: Annotated[Options, o.Takes("model", "mmproj", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Let the model write training text: answers to prompts, and to user turns of its own.

    Ctrl-C keeps every finished shard; the same command goes on.
    """
    within("--texts", texts, 1, 10**8)
    within("--batch", batch, 1, 10**5)
    warmth = o.numbers("--temperatures", temperatures, float)

    from paceline.lab.training.batches import FeatureRecorder, feature_source
    from paceline.lab.training.data import (
        SHARD,
        DataPlan,
        Shards,
        prompts_digest,
        read_images,
        read_texts,
        write_texts,
    )
    from paceline.registry import loading

    given = read_texts(prompts) if prompts else []
    images = read_images(prompts) if prompts else []
    shown = [str(each) for each in images if each is not None]
    plan = DataPlan(
        given,
        self_written,
        tuple(warmth),
        new_tokens,
        seed=seed,
        images=images if shown else (),
        past_end=past_end,
    )
    loaded = loading.load_model(asked)
    capabilities = loaded.target.capabilities
    shards = Shards(
        out,
        {
            "model": loaded.source.fingerprint,
            "model_name": loaded.source.name,
            "runtime": capabilities.runtime,
            "precision": capabilities.precision,
            "prompts": prompts_digest(given),
            "self_written": str(self_written),
            "temperatures": temperatures,
            "new_tokens": str(new_tokens),
            "seed": str(seed),
            "paceline": __version__,
            **({"images": prompts_digest(shown)} if shown else {}),
            **({"past_end": "true"} if past_end else {}),
        },
    )
    engine = loading.make_engine(loaded, drafter="none", verifier="coupled", max_batch=batch)
    recorder = FeatureRecorder()
    source = None
    if keep_features is not None:
        source = feature_source(loaded.target, keep_features)
        engine.loop.drafter = recorder

    def ended(request: int, text: Text | None) -> None:
        if source is not None:
            features = recorder.take(request)
            if text is not None:
                source.keep(text, features)

    indices = list(shards.missing(-(-texts // SHARD) * SHARD))
    waiting: dict[int, int] = defaultdict(int)
    for index in indices:
        waiting[index // SHARD] += 1
    done: dict[int, list[Text]] = defaultdict(list)
    speed = "{task.completed:.0f}/{task.total:.0f} texts, {task.fields[rate]} tokens/s"
    begin, written = perf_counter(), 0
    with progress_bar(speed) as bar, interruptible() as interrupt:
        task = bar.add_task("writing", total=len(indices), rate="0")
        made = write_texts(engine, plan, indices, batch, lambda: bool(interrupt), ended)
        for index, text in made:
            shard = index // SHARD
            waiting[shard] -= 1
            if text is not None:
                done[shard].append(text)
                written += len(text.tokens) - text.prompt_length
            if not waiting[shard]:
                shards.write(shard, done.pop(shard, []))
            bar.update(task, advance=1, rate=f"{written / (perf_counter() - begin):.0f}")
    seconds = perf_counter() - begin
    every = shards.read()
    figures = {
        "folder": str(out),
        "texts": len(every),
        "tokens": sum(len(each.tokens) for each in every),
        "answer_tokens": sum(len(each.tokens) - each.prompt_length for each in every),
        "written_now": written,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(written / seconds, 1),
        "complete": not interrupt,
        "settings": shards.settings,
    }
    line = (
        f"{out}: {figures['texts']} texts of {figures['tokens']} tokens "
        f"({figures['answer_tokens']} in answers); wrote {written} tokens in {seconds:.0f} s, "
        f"{figures['tokens_per_second']} per second"
    )
    report(figures, line, as_json=as_json, finished=not interrupt)


def corpus(
    files: Annotated[
        list[Path], typer.Argument(help="Text, in paragraphs; or JSONL with text or content.")
    ],
    *,
    out: Annotated[Path, "Folder for the shards; resumes."] = Path("corpus"),
    texts: Annotated[int | None, "At most so many texts. Default: all of it."] = None,
    length: Annotated[int, "Tokens of a text."] = 512,
    model: o.Model = "smollm2-135m",
    as_json: o.AsJson = False,
) -> None:
    """Cut files into training text, with the model's tokens.

    For the first stage of FastDraft and of direct alignment: `train drafter --data corpus --loss
    cross-entropy`, then --from that on what the target wrote, by a divergence. Ctrl-C keeps
    finished shards.
    """
    o.check_at_least_one(texts=texts, length=length)

    from paceline.lab.training.data import SHARD, Shards, cut_corpus, read_corpus
    from paceline.models.source import resolve

    source = resolve(model)
    tokenizer = source.tokenizer()
    shards = Shards(
        out,
        {
            "model": source.fingerprint,
            "model_name": source.name,
            "corpus": " ".join(path.name for path in files),
            "length": str(length),
            "paceline": __version__,
        },
    )
    written = tokens = 0
    with progress_bar("{task.fields[said]}") as bar, interruptible() as interrupt:
        task = bar.add_task("cutting", total=None, said="")
        every = cut_corpus(read_corpus(files), tokenizer.encode, length)
        for shard, group in groupby(every, lambda text: text.index // SHARD):
            some = [text for text in group if texts is None or text.index < texts]
            if not some or interrupt:
                break
            if shards.lacks(shard):
                shards.write(shard, some)
            written += len(some)
            tokens += sum(len(text.tokens) for text in some)
            bar.update(task, said=f"{written} texts, {tokens} tokens")
    if not written and not interrupt:
        raise PromptError(f"{', '.join(map(str, files))} holds no text: give another corpus")
    figures = {"folder": str(out), "texts": written, "tokens": tokens, "complete": not interrupt}
    line = f"{out}: {written} texts of {tokens} tokens"
    report(figures, line, as_json=as_json, finished=not interrupt)
