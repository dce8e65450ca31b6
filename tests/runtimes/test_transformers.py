"""The transformers runtime, and the torch runtime against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import tests.helpers.target_contract as contract  # noqa: E402
from tests.helpers.tiny_model import FAMILIES, save_directory, save_gguf, tiny_config  # noqa: E402

from paceline.core.target import Pass, Target  # noqa: E402
from paceline.errors import ModelError, RuntimeUnavailable  # noqa: E402
from paceline.models.config import ModelConfig  # noqa: E402
from paceline.models.source import DirectorySource, GGUFSource, resolve  # noqa: E402
from paceline.runtimes.torch.target import TorchTarget  # noqa: E402
from paceline.runtimes.transformers import TransformersTarget  # noqa: E402

TOLERANCE = 1e-4  # float32: kernels with and without a mask add up in different orders


def load(path: Path, family: Any = "llama") -> TransformersTarget:
    return TransformersTarget.load(DirectorySource(save_directory(path, tiny_config(family))))


@pytest.fixture(scope="module", params=["masked", "path by path"])
def target(request: pytest.FixtureRequest, tmp_path_factory: Any) -> TransformersTarget:
    loaded = load(tmp_path_factory.mktemp("llama"))
    assert loaded._masked
    loaded._masked = request.param == "masked"
    return loaded


def test_nodes_equal_their_paths(target: TransformersTarget) -> None:
    contract.check_nodes_equal_their_paths(target, TOLERANCE, contract.DRAFT)


@pytest.mark.parametrize("path", [(), (0,), (0, 2, 6), (1, 3), contract.ACROSS])
def test_keep_equals_recomputation(target: TransformersTarget, path: tuple[int, ...]) -> None:
    contract.check_keep(target, path, TOLERANCE)


def test_cache_operations(target: TransformersTarget) -> None:
    contract.check_forward_alone_changes_nothing(target, TOLERANCE)
    contract.check_truncate(target, TOLERANCE)
    contract.check_fork(target, TOLERANCE)
    contract.check_ragged_batches(target, TOLERANCE)
    contract.check_likeliest(target)
    contract.check_long_prefill(target, TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_torch_agrees_with_transformers(family: Any, tmp_path: Path) -> None:
    theirs = load(tmp_path, family)
    ours = TorchTarget.load(DirectorySource(tmp_path))
    for field in ("vocab_size", "max_context", "hidden_size"):
        assert getattr(ours.capabilities, field) == getattr(theirs.capabilities, field)
    outputs = [
        target.forward([Pass(target.open(), contract.PROMPT, contract.DRAFT, hidden=True)])[0]
        for target in (ours, theirs)
    ]
    assert outputs[0].hidden is not None
    assert outputs[1].hidden is not None
    contract.close(outputs[0].logits, outputs[1].logits, TOLERANCE)
    contract.close(outputs[0].hidden, outputs[1].hidden, TOLERANCE)


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_models_agree_too(family: Any, tmp_path: Path) -> None:
    source = GGUFSource(save_gguf(tmp_path / "m.gguf", tiny_config(family)))
    contract.close(
        contract.logits_of(TransformersTarget.load(source), contract.PROMPT),
        contract.logits_of(TorchTarget.load(source), contract.PROMPT),
        TOLERANCE,
    )


def test_the_library_s_own_gguf_reader_agrees(tmp_path: Path) -> None:
    """It is what reads GGUF files of architectures that paceline does not know."""
    pytest.importorskip("accelerate")
    source = GGUFSource(save_gguf(tmp_path / "m.gguf", tiny_config()))

    class Unknown(GGUFSource):
        @property
        def config(self) -> ModelConfig:
            raise ModelError("not of a known family")

    contract.close(
        contract.logits_of(TransformersTarget.load(Unknown(source.path)), contract.PROMPT),
        contract.logits_of(TorchTarget.load(source), contract.PROMPT),
        TOLERANCE,
    )


def other(kind: str, **sizes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=64, **sizes)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def test_other_architectures_work(tmp_path: Path) -> None:
    model = other("gpt2", n_embd=32, n_layer=2, n_head=4, n_positions=128)
    target = TransformersTarget(model)
    assert target.capabilities.max_context == 128
    contract.check_nodes_equal_their_paths(target, TOLERANCE, contract.DRAFT)
    contract.check_keep(target, contract.ACROSS, TOLERANCE)


@pytest.mark.parametrize(
    ("kind", "sizes"),
    [
        ("bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 4}),  # positions from the mask
        (
            "mistral",  # a window shorter than the sequence
            {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 48,
                "sliding_window": 4,
            },
        ),
    ],
)
def test_models_without_tree_masks_run_path_by_path(kind: str, sizes: dict[str, Any]) -> None:
    target = TransformersTarget(other(kind, **sizes))
    assert not target._masked
    contract.check_nodes_equal_their_paths(target, TOLERANCE, contract.DRAFT)
    contract.check_keep(target, contract.ACROSS, TOLERANCE)


def test_recurrent_models_are_refused() -> None:
    model = other("mamba", hidden_size=32, num_hidden_layers=2, state_size=4)
    with pytest.raises(RuntimeUnavailable, match="mamba"):
        TransformersTarget(model)


def test_an_unreadable_model_is_one_line(tmp_path: Path) -> None:
    directory = save_directory(tmp_path, tiny_config())
    (directory / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(ModelError, match="transformers cannot load") as caught:
        TransformersTarget.load(DirectorySource(directory))
    assert "\n" not in str(caught.value)


def greedy(target: Target, prompt: list[int], count: int) -> list[int]:
    cache = contract.cache_with(target, prompt[:-1])
    tokens = [prompt[-1]]
    for _ in range(count):
        (output,) = target.forward([Pass(cache, tokens[-1:])])
        target.keep(cache, 1, ())
        tokens.append(int(np.argmax(output.logits[0])))
    return tokens[1:]


@pytest.mark.real
def test_the_default_model_says_the_same_on_both() -> None:
    source = resolve("smollm2-135m", progress=False)
    prompt = source.tokenizer().chat(
        [{"role": "user", "content": "What is the capital of France?"}]
    )
    ours = TorchTarget.load(source)
    theirs = TransformersTarget.load(source)
    answer = greedy(ours, prompt, 8)
    assert answer == greedy(theirs, prompt, 8)
    assert "Paris" in source.tokenizer().decode(answer)
    contract.close(contract.logits_of(ours, prompt), contract.logits_of(theirs, prompt), 1e-3)
