"""Shared inputs of a training run: target, its texts, draft vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from paceline.core.options import split_options
from paceline.core.target import RuntimeOptions
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.models.source import ModelSource
from paceline.networks.base import Geometry, Network
from paceline.networks.catalogue import build
from paceline.registry import loading
from paceline.training.batches import FeatureSource, TokenSource, feature_source
from paceline.training.losses import CrossEntropy, find_loss
from paceline.training.module import share_target_weights
from paceline.training.on_policy import OnPolicy
from paceline.training.store import read_folders
from paceline.training.trainer import Recipe, Trainer
from paceline.training.vocabulary import count_tokens, keep_frequent


class Material:
    """Load a target and the texts that it wrote; build networks and trainers for them.

    Attributes:
        computed: runtime and precision of the features.
        data: settings of the texts.
        counts: int64 `[vocabulary]`, occurrences of each token in answers.
        kept: the draft vocabulary.
    """

    def __init__(
        self,
        data: Sequence[Path],
        model: str,
        runtime: str,
        options: RuntimeOptions,
        *,
        vocabulary: int,
        keep_features: Path | None = None,
    ) -> None:
        """Load everything; PyTorch gets as many threads as the runtime.

        Args:
            data: folders of `paceline train data`.
            vocabulary: size limit of the draft vocabulary.
            keep_features: folder to cache hidden states in.

        Raises:
            InvalidOption: there are no texts, or another model wrote them.
        """
        if options.threads is not None:
            torch.set_num_threads(options.threads)
        self.texts, self.data = read_folders(data)
        loaded = loading.load_model(model, runtime=runtime, options=options)
        self.source: ModelSource = loaded.source
        if self.data["model"] != self.source.fingerprint:
            raise InvalidOption(
                f"{data[0]} was written by another model: write text of {self.source.name} with "
                "`paceline train data`"
            )
        self._target = loaded.target
        capabilities = loaded.target.capabilities
        self.computed = {"runtime": capabilities.runtime, "precision": capabilities.precision}
        self._device = options.device or "cpu"
        self._weights = self.source.weights()
        self._keep_features = keep_features
        config = self.source.config
        answers = (text.tokens[text.prompt_length :] for text in self.texts)
        self.counts = count_tokens(answers, config.vocab_size)
        size = min(vocabulary, config.vocab_size)
        self.kept = keep_frequent(self.counts, size, config.eos_token_ids)

    def network(self, text: str) -> Network:
        """Build a network from NAME:key=value,...; InvalidOption if it is unknown."""
        name, sizes = split_options(text, "network")
        return build(name, Geometry.of(self.source.config), sizes)

    def trainer(
        self,
        network: Network,
        recipe: Recipe,
        *,
        place: Path,
        start: Mapping[str, LogitArray] | None = None,
    ) -> Trainer:
        """Begin a training run, or resume the checkpoint at `place`; raises as `Trainer`."""
        config, tensors = self.source.config, self._weights
        embedding = tensors["model.embed_tokens.weight"]
        return Trainer(
            network,
            self.kept,
            embedding,
            embedding if config.tied_embeddings else tensors["lm_head.weight"],
            self.texts,
            self._source(network, recipe),
            recipe,
            device=self._device,
            place=place,
            target_weights=share_target_weights(network, config, tensors),
            start=start,
            own=OnPolicy(self._target, self.kept.ids),
        )

    def _source(self, network: Network, recipe: Recipe) -> FeatureSource:
        if not network.reads_features and isinstance(find_loss(recipe.loss), CrossEntropy):
            return TokenSource(self.source.config.hidden_size)
        return feature_source(self._target, self._keep_features)
