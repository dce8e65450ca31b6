"""The loss curve of a card."""

from __future__ import annotations

from matplotlib.axes import Axes

from paceline.training.card import Card
from paceline.training.plotting import COLOURS, png


def loss_plot(card: Card) -> bytes:
    """PNG of the loss by step, in training and held out."""

    def draw(axes: Axes) -> None:
        steps = [point.step for point in card.losses]
        losses = [point.training for point in card.losses]
        axes.plot(steps, losses, color=COLOURS[0], label="training")
        held = [(each.step, each.held_out) for each in card.losses if each.held_out is not None]
        if held:
            axes.plot(*zip(*held, strict=True), "o-", color=COLOURS[1], label="held out")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")

    return png(draw)
