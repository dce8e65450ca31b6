"""Mask rows on the CPU: they are what was trained, and no other row changes by a bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.canvases import finish, start
from tests.helpers.decoding_loop import decode as autoregressive
from tests.helpers.target_contract import all_rows
from tests.runtimes import tiny_cpu

from paceline.core.target import Rows
from paceline.core.types import CanvasParams, SamplingParams
from paceline.denoising.decoder import DenoisingDecoder
from paceline.drafters.base import NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.networks.mask_rows import PARTS, MaskRows, load_mask_rows, save_mask_rows
from paceline.policy.controller import Fixed
from paceline.registry.samplers import make_parts
from paceline.verifiers.matching import Coupled

PROMPT = [5, 9, 17, 23, 9, 42, 7]
WIDTH, LENGTH = 2, 12
SHAPE = tiny_cpu.config()
NARROW = SHAPE.kv_heads * SHAPE.head_dim
SHAPES = {
    f"layers.{i}.{part}": (NARROW if part in "kv" else SHAPE.hidden_size, SHAPE.hidden_size)
    for i in range(SHAPE.layers)
    for part in PARTS
}


def mask_rows(scale: float = 0.5, rank: int = 8) -> MaskRows:
    """Drawn in numbers that fp16 has; q, k and v are no whole groups of 32 together."""
    rng = np.random.default_rng(4)

    def drawn(*shape: int) -> Any:
        return (rng.standard_normal(shape) * scale / 4).astype(np.float16).astype(np.float32)

    down = {name: drawn(rank, inputs) for name, (_, inputs) in SHAPES.items()}
    up = {name: drawn(outputs, rank) for name, (outputs, _) in SHAPES.items()}
    return MaskRows(drawn(SHAPE.hidden_size), down, up, {"model": "m"})


def made(precision: str = "fp32", scale: float = 0.5) -> Any:
    return tiny_cpu.target(precision, mask_rows=mask_rows(scale))


def group(target: Any, cache: Any, tokens: list[int]) -> Rows:
    """The tokens, and a group of masks behind the last of them."""
    clean, count = len(tokens), len(tokens) + WIDTH
    sees = np.tri(count, dtype=np.bool_)
    sees[clean:] = True
    ids = np.array([*tokens, *[target.capabilities.denoises.mask] * WIDTH])
    return Rows.block(cache, ids, cache.length + np.arange(count), sees)


def logits(target: Any, tokens: list[int] = PROMPT) -> Any:
    return target.forward([group(target, target.open(), tokens)])[0].logits.copy()


def test_mask_rows_are_those_of_the_trainer() -> None:
    torch = pytest.importorskip("torch")
    from paceline.lab.training.chains import Chains
    from paceline.methods.mask_rows.training import Adapted, Adapter
    from paceline.methods.ppd.training import guesses
    from paceline.runtimes.torch.model import TorchModel

    target, trained = made(), mask_rows()
    network = TorchModel(SHAPE, tiny_cpu.weights(SHAPE), torch.device("cpu"), torch.float32)
    adapter = Adapter(network, 8, torch.Generator())
    with torch.no_grad():
        for name, down, up in zip(adapter.names, adapter.down, adapter.up, strict=True):
            down.copy_(torch.from_numpy(trained.down[name]))
            up.copy_(torch.from_numpy(trained.up[name]))
        rows = torch.from_numpy(trained.embedding).expand(WIDTH, -1)
        at = Chains(np.array([*PROMPT, 3, 3, 3]), np.array([len(PROMPT) - 1]))
        both = Adapted(network, adapter)
        student, teacher, _ = guesses(network, rows, [at], adapted=both, causal=False)
        plain, _, _ = guesses(network, rows, [at], causal=False)
    found = logits(target)[len(PROMPT) :]
    np.testing.assert_allclose(found, student.numpy(), atol=2e-4)
    assert abs(found - plain.numpy()).max() > 0.01  # the adapter has a say
    assert teacher.shape == student.shape


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_clean_rows_keep_every_bit(precision: str) -> None:
    target, bare = made(precision), tiny_cpu.target(precision)
    clean = logits(target)[: len(PROMPT)]
    block = all_rows(bare.open(), PROMPT)
    np.testing.assert_array_equal(clean, bare.forward([block])[0].logits)
    cache = target.open()
    (output,) = target.forward([Rows.draft(cache, PROMPT)])
    np.testing.assert_array_equal(output.logits[0], clean[-1])
    # The same adapter, had it been on all rows, would show.
    target._masks.rows = lambda ids: list(range(len(ids)))
    assert not np.array_equal(logits(target)[: len(PROMPT)], clean)


def test_mask_rows_do_not_depend_on_the_batch() -> None:
    target = made("int8")
    alone = [logits(target, PROMPT[: 3 + i]) for i in range(3)]
    blocks = [group(target, target.open(), PROMPT[: 3 + i]) for i in range(3)]
    for one, output in zip(alone, target.forward(blocks), strict=True):
        np.testing.assert_array_equal(output.logits, one)


@pytest.mark.parametrize(
    "sampler", ["tidar:width=3", "tidar:prune=0.01", "linear-spec", "lexical-units:tau=1"]
)
@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "seed": 11}])
def test_text_is_that_of_plain_decoding_in_a_batch_and_alone(
    sampler: str, params: dict[str, Any]
) -> None:
    target, bare = made("int8"), tiny_cpu.target("int8")
    stops = StopRules((), 256)
    plain = AutoregressiveDecoder(bare, NoDrafter(), Coupled(), Fixed(0, 0), stops)
    prompts = [[*PROMPT[: 3 + i % 4], 60 + i] for i in range(8)]
    given = SamplingParams(max_new_tokens=LENGTH, **params)
    wanted = [each.generated for each in autoregressive(plain, prompts, given)]
    facts = target.capabilities.denoises
    decoder = DenoisingDecoder(target, facts, stops, make_parts)

    def texts(some: list[list[int]]) -> list[list[int]]:
        sizes = {"max_new_tokens": LENGTH, **params}
        batch = [start(target, CanvasParams(sampler), p, i, **sizes) for i, p in enumerate(some)]
        finish(decoder, batch)
        return [each.generated for each in batch]

    assert texts(prompts) == wanted
    assert [texts([prompt])[0] for prompt in prompts] == wanted


def test_a_sampler_that_fills_masks_for_good_is_refused() -> None:
    facts = made().capabilities.denoises
    with pytest.raises(InvalidOption, match="causal"):
        DenoisingDecoder(made(), facts, StopRules((), 256), make_parts).check(
            SamplingParams(), CanvasParams("threshold")
        )


def test_files_are_read_back_and_strange_ones_refused(tmp_path: Path) -> None:
    path, trained = tmp_path / "rows.safetensors", mask_rows()
    save_mask_rows(path, trained)
    found = load_mask_rows(path, "m", SHAPES)
    np.testing.assert_array_equal(found.embedding, trained.embedding)
    for name in SHAPES:
        np.testing.assert_array_equal(found.down[name], trained.down[name])
        np.testing.assert_array_equal(found.up[name], trained.up[name])
    with pytest.raises(InvalidOption, match="another model"):
        load_mask_rows(path, "other", SHAPES)
    with pytest.raises(InvalidOption, match="another shape"):
        load_mask_rows(path, "m", {**SHAPES, "layers.9.q": (64, 64)})
    damaged = MaskRows(trained.embedding * np.nan, trained.down, trained.up, trained.metadata)
    save_mask_rows(path, damaged)
    with pytest.raises(InvalidOption, match="damaged"):
        load_mask_rows(path, "m", SHAPES)
