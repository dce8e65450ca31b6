"""`paceline train corpus`: any text as training text, for the stage before a target's own."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import interruptible, progress_bar, report
from paceline.errors import PromptError
from paceline.version import __version__


@o.spread_options
def corpus(
    files: Annotated[
        list[Path], typer.Argument(help="Text, in paragraphs; or JSONL with text or content.")
    ],
    *,
    out: Annotated[Path, typer.Option(help="Folder for the shards; resumes.")] = Path("corpus"),
    texts: Annotated[
        int | None, typer.Option(help="At most so many texts. Default: all of it.")
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens of a text.")] = 512,
    model: o.Model = "smollm2-135m",
    as_json: o.AsJson = False,
) -> None:
    """Cut files into training text, with the model's tokens.

    For the first stage of FastDraft and of direct alignment: `train drafter --data corpus --loss
    cross-entropy`, then --from that on what the target wrote, by a divergence. Code is another
    corpus, and another stage. Files are read once, line by line; Ctrl-C keeps finished shards.
    """
    o.check_at_least_one(texts=texts, length=length)

    from paceline.models.source import resolve
    from paceline.training.data import SHARD, Shards, cut_corpus, read_corpus

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
