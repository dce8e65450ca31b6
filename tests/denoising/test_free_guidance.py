"""Classifier-free guidance beside LLaDA's formula over transformers' logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.canvases import decode_text
from tests.models.golden_denoisers import MASK, PROMPT
from tests.models.test_denoisers import save, target, trunk

from paceline.core.types import CanvasParams
from paceline.errors import InvalidOption
from paceline.models.source import DirectorySource

ROOM = 10


def logits(model: Any, tokens: list[int]) -> Any:
    size = len(tokens)
    with torch.inference_mode():
        sees = torch.zeros(1, 1, size, size)  # all see all
        return model(torch.tensor([tokens]), attention_mask=sees).logits[0].numpy()


def by_llada(model: Any, scale: float, shift: int) -> list[int]:
    """One place a forward, the surest, at temperature 0; unguided logits where the prompt is."""
    tokens = [*PROMPT, *[MASK] * ROOM]
    while MASK in tokens:
        led = logits(model, tokens)
        unled = logits(model, [MASK] * len(PROMPT) + tokens[len(PROMPT) :])
        found = (unled + (scale + 1) * (led - unled)).astype(np.float64)
        found[:, MASK] = -np.inf
        found = np.exp(found - found.max(1, keepdims=True))
        found /= found.sum(1, keepdims=True)
        places = [at for at, token in enumerate(tokens) if token == MASK]
        place = max(places, key=lambda at: found[at - shift].max())
        tokens[place] = int(found[place - shift].argmax())
    return tokens[len(PROMPT) :]


@pytest.mark.parametrize("family", ["llada", "Dream"])
def test_texts_are_those_of_the_formula(family: str, tmp_path: Path) -> None:
    made = target("cpu", DirectorySource(save(tmp_path, family)))
    judge, texts = trunk(family), []
    for scale in (0.0, 0.5, 2.0, 8.0):
        options = CanvasParams(f"cfg:scale={scale}>counts", cache="none")
        found = decode_text(made, options, PROMPT, max_new_tokens=ROOM)
        assert list(found.generated) == by_llada(judge, scale, int(family == "Dream")), scale
        assert found.stats.target_forwards == ROOM * (2 if scale else 1)
        texts.append(found.generated)
    plain = decode_text(made, CanvasParams("counts", cache="none"), PROMPT, max_new_tokens=ROOM)
    assert plain.generated == texts[0]
    assert len(set(map(tuple, texts))) > 1  # it does something


def test_kept_keys_of_the_prompt_are_refused(tmp_path: Path) -> None:
    made = target("cpu", DirectorySource(save(tmp_path, "llada")))
    with pytest.raises(InvalidOption, match="cache 'prefix' keeps keys of the prompt: use cache n"):
        decode_text(made, CanvasParams("cfg>counts", cache="prefix"))
