"""Batches of texts about pictures, as networks that see read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import IntArray, LogitArray
from paceline.lab.training.batches import Batch, padded
from paceline.lab.training.data import Text
from paceline.lab.training.module import DraftModule, ahead
from paceline.networks.torch_ops import NetworkTensors, TextAttention, TorchOps


@dataclass(frozen=True, slots=True)
class Sighted:
    """Puts what stands for pictures into the rows of a batch; a `training.module.Reveal`.

    Attributes:
        network: a `SeeingNetwork`, whose `digest` is learnt.
        given: float32 `[pictures, any, width]`, what it reads.
        texts: int64 `[pictures]`, those of the batch that have one.
        places: int64 `[pictures]`, where the first row stands.
    """

    network: Any
    given: LogitArray
    texts: IntArray
    places: IntArray

    def __call__(
        self, module: DraftModule, features: Tensor, tokens: Tensor
    ) -> tuple[Tensor, Tensor]:
        network, width = self.network, self.network.config.hidden_size
        following = ahead(tokens, 1)
        more = features.new_zeros(*tokens.shape, network.more)
        if len(self.given):
            matrices = module.get_buffer("embedding"), module.get_buffer("head")
            weights = NetworkTensors(module.named(), *matrices)
            ops = TorchOps(weights, network.config.norm_eps, TextAttention())
            said = network.digest(ops, torch.from_numpy(self.given).to(features))[:, 0]
            weigh = partial(_weigh, seed=int(tokens.sum()))
            stood = network.stood(said.to(features.dtype), weigh)
            for text, at, rows, beside in zip(self.texts, self.places, *stood, strict=True):
                end = at + network.kept
                more[text, at:end, :width], more[text, at:end, width] = rows, 1
                more[text, end:, :width] = beside
                following[text, max(at - 1, 0)] = tokens[text, end]
        return torch.cat([features, more], dim=-1), following


def _weigh(scores: Tensor, seed: int) -> Tensor:
    # The best alone; while it learns by Gumbel noise, with the gradient of the softmax.
    learns = torch.is_grad_enabled()
    noise = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)).to(scores)
    soft = (scores - learns * (1e-9 - (noise + 1e-9).log()).log()).softmax(-1)
    hard = functional.one_hot(soft.argmax(-1), scores.shape[-1]).to(scores)
    return hard + (soft - soft.detach()) * learns


def arranged(network: Any, batch: Batch, texts: Sequence[Text], question: int) -> Batch:
    """Return texts of which pictures have so many rows as a `SeeingNetwork` keeps.

    `batch` is of the texts as the target reads them; the last `question` rows before the root say
    what is asked. Features of a picture's rows are zeros.
    """
    width, kept = network.config.hidden_size, network.kept
    features, tokens, given, shown = [], [], [], []
    lengths, prompts = batch.lengths.copy(), batch.prompt_lengths.copy()
    for index, text in enumerate(texts):
        own, ids = batch.features[index, : lengths[index]], text.tokens
        if text.picture is not None:
            at, stop = text.begin, text.begin + len(text.picture)
            root = int(prompts[index]) - 1
            asked = own[max(0, root - question) : root, -width:].mean(0)
            given.append(network.given(text.picture.astype(np.float32), asked))
            shown.append((index, at))
            own = np.concatenate([own[:at], np.zeros((kept, own.shape[1]), own.dtype), own[stop:]])
            ids = np.concatenate([ids[:at], np.repeat(ids[at : at + 1], kept), ids[stop:]])
            prompts[index] += kept - len(text.picture)
            lengths[index] = len(ids)
        features.append(own)
        tokens.append(ids)
    where = np.array(shown, np.int64).reshape(-1, 2)
    reveal = Sighted(network, np.array(given, np.float32), where[:, 0], where[:, 1])
    return replace(
        batch,
        features=padded(features),
        tokens=padded(tokens),
        lengths=lengths,
        prompt_lengths=prompts,
        reveal=reveal,
    )
