"""What drafters that are shown pictures do beside those of trained networks."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from paceline.core.rows import RowStore
from paceline.core.types import LogitArray
from paceline.drafters.base import DrafterContext
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.errors import InvalidOption
from paceline.methods.seeing.sight import QUESTION, SeeingNetwork
from paceline.policy.constants import PROMPT_ROWS
from paceline.sampling.generation import Generation


class SeeingDrafter(TrainedDrafter):
    """Draft with a network that is shown the pictures of a prompt."""

    network: SeeingNetwork
    _store: RowStore
    _beside: dict[int, LogitArray]  # by request, what stands beside its rows from now on

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load weights as `TrainedDrafter` does.

        Raises InvalidOption also for option online, which learns of texts alone, and for a model
        whose pictures have other rows than those the network was trained on.
        """
        drafter = super().create(context)
        if drafter._online is not None:
            raise InvalidOption(
                f"drafter '{cls.name}' is shown pictures, and option online learns of texts alone: "
                "leave it out"
            )
        loaded: Any = context.resources.loaded
        own, wanted = drafter.network.picture, loaded.reader and loaded.reader.vision.rows
        if own and wanted and own != wanted:
            raise InvalidOption(
                f"the weights of drafter '{cls.name}' are for pictures of {own} rows, and the "
                f"model's have {wanted}: train some with `paceline train drafter "
                f"{cls.name}:picture={wanted}`"
            )
        drafter._store, drafter._beside = loaded.target.rows, {}
        return drafter

    def read(self, sequence: Generation, features: LogitArray) -> None:
        tokens, kept = sequence.tokens, self.network.kept
        width, most = self.network.config.hidden_size, PROMPT_ROWS - kept * len(sequence.pictures)
        features = self._parts(features)[-max(most, QUESTION) :]  # pictures stay in long prompts
        at = begin = len(tokens) - 1 - len(features)
        self._beside[sequence.id] = np.zeros(width, np.float32)
        following: list[int] = []
        rows: list[LogitArray] = []
        for place, run in sequence.pictures:
            end = place + len(run.places)
            if place > at:
                rows.append(self._wide(sequence, features[at - begin : place - begin]))
                following += [*tokens[at + 1 : place], tokens[end]]
            asked = features[-QUESTION:, -width:].mean(0)
            given = self.network.given(self._store.numbers[run.places], asked)
            said = self._newest.runner.digest(given)
            stood = self.network.stood(said, _best)
            shown = np.zeros((kept, self.network.feature_width), np.float32)
            shown[:, -width - 1 : -1], shown[:, -1] = stood.rows, 1
            rows.append(shown)
            following += [tokens[place]] * kept
            self._beside[sequence.id], at = stood.beside, max(at, end)
        rows.append(self._wide(sequence, features[at - begin :]))
        following += tokens[at + 1 :]
        if following:
            following[-1] = tokens[-1]  # drafts start after the root, be it behind a picture
            self._note(sequence, following, np.concatenate(rows))

    def _note(self, sequence: Generation, tokens: list[int], features: LogitArray) -> None:
        if features.shape[1] < self.network.feature_width:
            features = self._wide(sequence, features)
        super()._note(sequence, tokens, features)

    def _wide(self, sequence: Generation, features: LogitArray) -> LogitArray:
        # Rows of a text, with what stands beside them.
        beside = np.append(self._beside[sequence.id], np.float32(0))
        return np.concatenate([features, np.tile(beside, (len(features), 1))], axis=1)

    def close(self, sequence: Generation) -> None:
        self._beside.pop(sequence.id, None)
        super().close(sequence)


def _best(scores: LogitArray) -> LogitArray:
    # The best alone.
    out: LogitArray = np.eye(scores.shape[-1], dtype=np.float32)[scores.argmax(-1)]
    return out
