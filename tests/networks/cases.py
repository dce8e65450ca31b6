"""Networks of a tiny size with random weights, for tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.lab.training.module import DraftModule
from paceline.methods.layers.imitation import Imitation
from paceline.methods.networks.block_parallel import BlockParallel
from paceline.methods.networks.chimera import Chimera
from paceline.methods.networks.clover import Clover
from paceline.methods.networks.ctc import CTC
from paceline.methods.networks.draft_lm import DraftLM
from paceline.methods.networks.eagle import Eagle
from paceline.methods.networks.falcon import Falcon
from paceline.methods.networks.hidden_transfer import HiddenTransfer
from paceline.methods.networks.hydra import Hydra
from paceline.methods.networks.kangaroo import Kangaroo
from paceline.methods.networks.longspec import LongSpec
from paceline.methods.networks.medusa import Medusa
from paceline.methods.networks.s2d import S2D
from paceline.methods.networks.specformer import SpecFormer
from paceline.methods.seeing.msd import Msd
from paceline.methods.seeing.specvlm import SpecVlm
from paceline.methods.seeing.vispec import ViSpec
from paceline.models.config import ModelConfig
from paceline.networks.base import Network, Shapes
from paceline.networks.dflash import DFlash
from paceline.networks.eagle3 import Eagle3

TINY = ModelConfig(
    family="llama",
    hidden_size=32,
    layers=5,
    heads=4,
    kv_heads=2,
    head_dim=16,  # heads are wider together than the width, as in some models
    ffn_size=64,
    rope_base=100.0,
    norm_eps=1e-5,
    vocab_size=17,
    max_context=0,
    tied_embeddings=False,
)
DRAFT_VOCABULARY = 11

NETWORKS: dict[str, Callable[[], Network]] = {
    "medusa": lambda: Medusa(TINY, width=3),
    "hydra": lambda: Hydra(TINY, steps=4, hidden=32),
    "hydra-without-prefix": lambda: Hydra(TINY, steps=3, prefix=False),
    "clover": lambda: Clover(TINY, steps=3),
    "eagle": lambda: Eagle(TINY, steps=3),
    "eagle3": lambda: Eagle3(TINY, steps=4, ffn_size=32),
    "chimera": lambda: Chimera(TINY, steps=4),
    "falcon": lambda: Falcon(TINY, steps=3),
    "falcon-of-three": lambda: Falcon(TINY, steps=2, width=3),
    "ctc": lambda: CTC(TINY, width=5, tokens=2),
    "specformer": lambda: SpecFormer(TINY, width=4, hook_width=32),
    "s2d": lambda: S2D(TINY, steps=3, layers=2),
    "block-parallel": lambda: BlockParallel(TINY, width=4),
    "dflash": lambda: DFlash(TINY, width=3),
    "msd": lambda: Msd(TINY, steps=4, picture=6),
    "vispec": lambda: ViSpec(TINY, steps=4, picture=6, queries=3),
    "specvlm": lambda: SpecVlm(TINY, steps=4, picture=6, keep=2),
    "draft-lm": lambda: DraftLM(TINY, steps=4, layers=2, ffn_size=32),
    "kangaroo": lambda: Kangaroo(TINY, steps=4, exit=2),
    "imitation": lambda: Imitation(TINY, steps=4, exit=2, ffn_size=32),
    "hidden-transfer": lambda: HiddenTransfer(TINY, width=3),
    "longspec": lambda: LongSpec(TINY, steps=4, reach=4, cross=False),
    "longspec-of-two": lambda: LongSpec(
        TINY, steps=4, reach=2, cross=False
    ),  # drafts outgrow the window
}
"""Those that run without a target beside them."""

EVERY: dict[str, Callable[[], Network]] = {
    **NETWORKS,
    "longspec-across": lambda: LongSpec(TINY, steps=4, reach=2),
}


def lent_shapes(network: Network) -> Shapes:
    """Weights of the target that a network runs with, by the target's names."""
    shape = network.config
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    of_part = {
        "q": (wide, shape.hidden_size),
        **dict.fromkeys("kv", (narrow, shape.hidden_size)),
        "o": (shape.hidden_size, wide),
        **dict.fromkeys(("gate", "up"), (shape.ffn_size, shape.hidden_size)),
        "down": (shape.hidden_size, shape.ffn_size),
    }
    names = network.target_weights()
    return {name: of_part.get(name.rpartition(".")[2], (shape.hidden_size,)) for name in names}


def module(network: Network, seed: int = 0, randomise: bool = True) -> DraftModule:
    """In float64, by default with no parameter left at zero or one."""
    generator = torch.Generator().manual_seed(seed)
    embedding = torch.randn(TINY.vocab_size, TINY.hidden_size, generator=generator)
    head = torch.randn(DRAFT_VOCABULARY, TINY.hidden_size, generator=generator)
    lent = {
        name: torch.randn(shape, generator=generator) / 2
        for name, shape in lent_shapes(network).items()
    }
    if "norm" in lent:
        lent["norm"] = torch.rand(TINY.hidden_size, generator=generator) + 0.5
    out = DraftModule(network, embedding, head, generator, lent).double()
    if randomise:
        with torch.no_grad():
            for parameter in out.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    return out


def texts(count: int, time: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Float64 `[count, time, 4 * width]` features and int64 `[count, time]` tokens."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, time, 4 * TINY.hidden_size, generator=generator).double()
    return features, torch.randint(TINY.vocab_size, (count, time), generator=generator)


def context_rows(
    network: Network, features: Tensor, tokens: Tensor, begin: int, end: int
) -> tuple[npt.NDArray[np.float64], list[int]]:
    """What decoding takes in as the context grows: of positions `begin` to `end` of one text.

    Networks that read tokens alone have a row for the first token, too, and features of no width.
    """
    following = tokens[begin + 1 : end + 1].tolist()
    if network.reads_features:
        return np.pad(features[begin:end].numpy(), ((0, 0), (0, network.more))), following
    if begin == 0:
        following = [int(tokens[0]), *following]
    return np.zeros((len(following), 0)), following
