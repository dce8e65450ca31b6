"""A target and text that it wrote: what the training of any drafter network for it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from paceline import loading
from paceline.errors import InvalidOption
from paceline.models.source import ModelSource
from paceline.networks.base import Geometry, Network
from paceline.networks.catalogue import build
from paceline.options import split_options
from paceline.target import RuntimeOptions
from paceline.training.batches import FeatureSource, feature_source
from paceline.training.borrowing import borrow
from paceline.training.data.folders import read_folders
from paceline.training.losses import CrossEntropy, find_loss
from paceline.training.on_policy import OnPolicy
from paceline.training.token_source import TokenSource
from paceline.training.trainer import Recipe, Trainer
from paceline.training.vocabulary import count_tokens, keep_frequent
from paceline.types import LogitArray


class Material:
    """Makes networks, and trainers for them, that share target, texts and draft vocabulary.

    Attributes:
        source: where the target came from.
        computed: runtime and precision that features are computed by.
        texts: what it wrote.
        data: settings of the texts.
        counts: int64 `[vocabulary]`, how often each token occurs in answers.
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
        """Load the target and read the texts; PyTorch gets as many threads as the runtime.

        Args:
            data: folders of `paceline train data`.
            model: name of the target.
            runtime: name of its runtime.
            options: how to load it.
            vocabulary: most tokens that may be drafted.
            keep_features: folder to keep hidden states in.

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
        """A network from its name and sizes, NAME:key=value,...

        Raises:
            InvalidOption: there is no such network or size.
        """
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
        """A run of training: begun, or taken up where its checkpoint left it.

        Args:
            network: what to train.
            recipe: how.
            place: file of the checkpoint.
            start: as for `Trainer`.

        Raises:
            InvalidOption: the runtime gives no features, or as `Trainer` says.
            ModelError: the checkpoint is damaged.
        """
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
            borrowed=borrow(network, config, tensors),
            start=start,
            own=OnPolicy(self._target, self.kept.ids),
        )

    def _source(self, network: Network, recipe: Recipe) -> FeatureSource:
        if not network.reads_features and isinstance(find_loss(recipe.loss), CrossEntropy):
            return TokenSource(self.source.config.hidden_size)
        return feature_source(self._target, self._keep_features)
