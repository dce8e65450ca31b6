"""The card of trained prompt tokens."""

from __future__ import annotations

import platform
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from paceline.networks.prompt_tokens import NETWORK, PromptTokens
from paceline.training.card import Card, Cost, Data, HeldOut
from paceline.training.data.writing import Text
from paceline.training.prompt_tokens import Judged
from paceline.training.prompt_tokens_recipe import PromptRecipe
from paceline.training.run_card import Course


def card_of(
    out: Path,
    trained: PromptTokens,
    course: Course,
    recipe: PromptRecipe,
    data: Mapping[str, str],
    texts: Sequence[Text],
    held_out: Sequence[Text],
    judged: Judged,
) -> Card:
    """What to tell of a run.

    Args:
        out: file of the prompt tokens, which is there.
        trained: what was trained.
        course: how it went.
        recipe: how it was trained.
        data: settings of the data set.
        texts: the data set.
        held_out: those that were not trained on.
        judged: how the prompt tokens do there.
    """
    return Card(
        drafter=NETWORK,
        target=trained.metadata["model_name"],
        target_digest=trained.metadata["model"],
        licence="as the base model's, whose text they were trained on",
        command=trained.metadata["command"],
        parameters=trained.embeddings.size,
        file_bytes=out.stat().st_size,
        settings=asdict(recipe),
        data=Data(
            ("answers of the target to prompts from files, and to user turns of its own",),
            len(texts),
            sum(len(text.tokens) - text.prompt_length for text in texts),
            data["prompts"],
            dict(data),
        ),
        losses=tuple(course.points),
        held_out=HeldOut(
            len(held_out),
            judged.hits.starts,
            "chains of likeliest guesses against texts as they stand, a chain behind every node",
            judged.hits.block_efficiency,
            judged.hits.acceptance,
        ),
        cost=Cost(
            f"{platform.machine()}, {platform.system()}",
            course.seconds,
            course.tokens,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        ),
    )
