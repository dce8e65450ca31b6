"""Training of Whisper's drafters on the transcripts that it writes, whose labels they learn.

The block learns by glancing (GLAT: Qian et al. 2021, arXiv:2008.07905), as GAD's does: it drafts
once; of its Hamming distance to the text a share, which falls as training goes on, is how many
slots of each block show their token in a second pass. The loss is that of the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import IntArray, LogitArray
from paceline.engine.client_drafts import Follower
from paceline.lab.training.batches import Batch, FeatureSource
from paceline.lab.training.card import Judged
from paceline.lab.training.data import Text
from paceline.lab.training.drafter import DrafterTask
from paceline.lab.training.module import ahead
from paceline.lab.training.objective import Hits, hits, labels
from paceline.lab.training.recipe import DrafterRecipe
from paceline.lab.training.vocabulary import DraftVocabulary
from paceline.methods.gad.block import Gad
from paceline.methods.gad.ctc import RowsCTC
from paceline.methods.gad.windows import KeptWindows
from paceline.methods.networks.ctc import collapse
from paceline.methods.networks.glancing import some
from paceline.models.config import ModelConfig
from paceline.models.ops import KV, Heads, Sight
from paceline.models.weights import Weights
from paceline.networks.base import Network
from paceline.networks.blocks import opened_slots
from paceline.networks.torch_ops import NetworkTensors, Qkv, TextAttention, TorchOps

# Share of the Hamming distance that is shown at the start and at the end of training (GLAT's).
_FIRST, _LAST = 0.5, 0.3

_ANCHORS = 8  # places of a transcript at which an update drafts

DEPTH = 16
"""Tokens of a transcript that are drafted at once where it is judged."""

USED = {"tokens", "batch_tokens", "rate", "warm_up", "clip", "seed"}
"""Fields of the recipe; the loss is that of labels."""


class AtAnchors(TextAttention):
    """Whole texts, and drafts after some positions of each, which look at its sound."""

    def __init__(self, anchors: Tensor, looked_at: Tensor) -> None:
        """Bind int64 `[texts, anchors]` and `[texts, 2, rows, 2, kv_heads, head_dim]`."""
        super().__init__()
        self._anchors, self._looked_at = anchors, looked_at

    def last(self, x: Tensor, count: int) -> Tensor:
        return x[torch.arange(len(x))[:, None], self._anchors][:, :, None]

    def attend(self, kv: int | KV, qkv: Qkv, heads: Heads, sees: Sight) -> Tensor:
        if not isinstance(kv, KV):
            return super().attend(kv, qkv, heads, sees)
        keys, values = self._looked_at[:, kv.layer].transpose(1, 3).unbind(2)
        queries = qkv.queries
        out = functional.scaled_dot_product_attention(
            queries.flatten(1, 2).transpose(1, 2), keys, values, scale=heads.scale, enable_gqa=True
        )
        return out.transpose(1, 2).reshape(queries.shape)


class HeardSource(FeatureSource):
    """A part of what is kept of windows."""

    def __init__(self, windows: KeptWindows, part: str) -> None:
        self.windows, self._part = windows, part

    def of(self, text: Text) -> LogitArray:
        return self.windows.read(text, self._part)


class HeardTask(DrafterTask):
    """A network that drafts what is said in a sound."""

    taught = "whose transcripts and features it was trained on"
    source = "transcripts that the target wrote of sounds"
    more = "by more sounds"
    reads: ClassVar[str]
    marks: ClassVar[bool] = True
    """Times and ends are drafted too."""

    def __init__(
        self,
        network: Network,
        windows: KeptWindows,
        vocabulary: DraftVocabulary,
        embedding: LogitArray,
        head: LogitArray,
        recipe: DrafterRecipe,
        start: Mapping[str, LogitArray] = MappingProxyType({}),
        times: int = 0,
    ) -> None:
        """Draw the weights, as `DrafterTask` does; of its recipe `USED` has a say.

        `times` is the first of the tokens that tell times, each 20 ms later than the one before.
        """
        heard, texts = HeardSource(windows, self.reads), windows.texts()
        super().__init__(network, vocabulary, embedding, head, texts, heard, recipe, start=start)
        self._windows, self._times = windows, times

    @classmethod
    def begins(
        cls, network: Network, model: ModelConfig, weights: Weights
    ) -> dict[str, LogitArray]:
        """Return the parameters that begin as weights of the model."""
        return {}

    @property
    def chosen(self) -> dict[str, Any]:
        unused = asdict(self.recipe).keys() - USED
        return {key: each for key, each in super().chosen.items() if key not in unused}

    @property
    def settings(self) -> dict[str, Any]:
        return {**super().settings, "windows": self._windows.digest()}

    def ops(self, attention: TextAttention) -> TorchOps:
        """Return the operations of a forward."""
        parts = (self.module.get_buffer(each) for each in ("embedding", "head"))
        weights = NetworkTensors(self.module.named(), *parts)
        return TorchOps(weights, self.network.config.norm_eps, attention)


class BlockTask(HeardTask):
    """The block of masks."""

    network: Gad
    reads = "features"
    conditions = "drafts of full depth against transcripts as they stand"

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        # Named by the step, so that a run which resumes draws the same.
        draws = np.random.default_rng((self.recipe.seed, step))
        # The first draft stands behind the prompt's last token but one: that is the root.
        first = [max(0, min(each.prompt_length, len(each.tokens)) - 2) for each in texts]
        anchors = [
            draws.integers(begin, max(begin + 1, len(text.tokens) - 2), _ANCHORS)
            for begin, text in zip(first, texts, strict=True)
        ]
        share = _LAST + (_FIRST - _LAST) * (1 - step / self.steps)
        generator = torch.Generator().manual_seed(int(draws.integers(1 << 62)))
        _, right, logits, shown = self._drafted(texts, np.stack(anchors), share, generator)
        loss = _mean(logits, right.masked_fill(shown, -1))
        yield loss, float(loss.detach())

    @torch.no_grad()
    def judge(self) -> Judged:
        losses: list[float] = []
        found = Hits(0, np.zeros(self.network.width, dtype=np.int64))
        for text in self.held_out:
            anchors = np.arange(len(text.tokens))[None]
            batch, right, logits, _ = self._drafted([text], anchors)
            losses.append(float(_mean(logits, right)))
            found += hits(logits.argmax(-1).unbind(-1), batch, self._places)
        return Judged(float(np.mean(losses)), found)

    def _drafted(
        self,
        texts: Sequence[Text],
        anchors: IntArray,
        share: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Batch, Tensor, Tensor, Tensor]:
        # Texts; then of the slots behind anchors, `[texts, anchors, width]`: draft indices of what
        # is right, -1 for none, logits, and which were shown.
        network, batch = self.network, self._source.batch(texts)
        at, tokens = torch.from_numpy(anchors), torch.from_numpy(batch.tokens)
        looked_at = np.stack([self._windows.read(each, "looked_at") for each in texts])
        ops = self.ops(AtAnchors(at, torch.from_numpy(looked_at)))
        following = ahead(tokens, 1)
        slots = opened_slots(ops, network.config, torch.from_numpy(batch.features), following)
        depths = range(1, network.width + 1)
        inside = torch.from_numpy(np.arange(tokens.shape[1]) < batch.lengths[:, None])
        every = [labels(batch, self._places, depth) for depth in depths]
        every = [
            each.masked_fill(~ahead(inside, 1 + depth), -1)
            for each, depth in zip(every, depths, strict=True)
        ]
        right = torch.stack([each.gather(1, at) for each in every], dim=-1)
        shown = torch.zeros_like(right, dtype=torch.bool)
        if generator is not None:
            with torch.no_grad():
                said = network.logits(ops, network.fill(ops, slots), 0).argmax(-1)
            known = (right >= 0).flatten(0, 1)
            distance = (share * ((said != right).flatten(0, 1) & known).sum(1)).round()
            shown = some(known, distance, generator).reshape(right.shape)
            answers = torch.from_numpy(self.vocabulary.ids)[right.clamp_min(0)]
            told = ops.norm(ops.embed(answers), "embed_norm")
            slots = slots + torch.where(shown[..., None], told, 0.0)
        return batch, right, network.logits(ops, network.fill(ops, slots), 0), shown


class RowsTask(HeardTask):
    """The CTC head; what is judged are drafts of `DEPTH` tokens of the whole transcript."""

    network: RowsCTC
    reads = "rows"
    conditions = "drafts of what the head says against transcripts as they stand"

    def losses(self, texts: Sequence[Text], step: int) -> Iterator[tuple[Tensor, float]]:
        loss = torch.stack([self._nats(self._said(text), text) for text in texts]).mean()
        yield loss, float(loss.detach())

    @torch.no_grad()
    def judge(self) -> Judged:
        losses: list[float] = []
        found = Hits(0, np.zeros(DEPTH, dtype=np.int64))
        ids = [*self.vocabulary.ids.tolist(), -1]
        for text in self.held_out:
            logits = self._said(text)
            losses.append(float(self._nats(logits, text)))
            slots = [ids[each] for each in logits.argmax(-1).tolist()]
            said = [slots[at] for at in collapse(slots, -1)]
            found += followed(said, text.tokens.tolist(), text.prompt_length)
        return Judged(float(np.mean(losses)), found)

    def _said(self, text: Text) -> Tensor:
        ops, rows = self.ops(TextAttention()), torch.from_numpy(self._source.of(text))
        state = self.network.read(ops, rows * ops.weight("scale"))
        logits: Tensor = self.network.logits(ops, state, 0)
        return logits

    def _nats(self, logits: Tensor, text: Text) -> Tensor:
        answer = self._places[torch.from_numpy(text.tokens[text.prompt_length :])]
        answer = answer[answer >= 0]
        sizes = torch.tensor([len(logits)]), torch.tensor([len(answer)])
        chances = logits.log_softmax(-1)[:, None]
        blank = logits.shape[-1] - 1
        return functional.ctc_loss(chances, answer[None], *sizes, blank=blank, zero_infinity=True)


def followed(said: Sequence[int], tokens: Sequence[int], at: int) -> Hits:
    """Count what stands of drafts of `DEPTH` tokens of a transcript, of a text from `at` on."""
    follower, first = Follower(said), at
    found = Hits(0, np.zeros(DEPTH, dtype=np.int64))
    while at + DEPTH < len(tokens):
        follower.read(tokens[:at], first)
        pairs = zip(follower.next(DEPTH), tokens[at:], strict=False)
        run = int(np.cumprod([a == b for a, b in pairs]).sum())
        found += Hits(1, (np.arange(DEPTH) < run).astype(np.int64))
        at += run + 1
    return found


def _mean(logits: Tensor, right: Tensor) -> Tensor:
    return functional.cross_entropy(
        logits.flatten(0, -2), right.flatten(), ignore_index=-1, reduction="sum"
    ) / (right >= 0).sum().clamp_min(1)
