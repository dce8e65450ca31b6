"""Assistants of Gemma 4 against transformers' own module, which reads the target's keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tests.helpers import tiny_model
from tests.models.test_families import TOKENS, original
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig

import paceline
from paceline.cli.app import run
from paceline.errors import InvalidOption, ModelError
from paceline.models.families.base import GGUF_ENDS
from paceline.models.families.gemma4 import GEMMA4
from paceline.models.source import DirectorySource
from paceline.models.tokenizer import read_json
from paceline.models.weights import FileWeights
from paceline.networks.assistant import ARCHITECTURE, Assistant, PublishedAssistant, assistant_in
from paceline.networks.published import open_head
from paceline.networks.runner import ContextUpdate
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

STEPS = 4
WINDOW = 6
BACKBONE = 64


def text_config(case: str, **more: Any) -> Any:
    """Layers for the target of a case, narrower than its own."""
    sizes: dict[str, Any] = {
        "vocab_size": 96,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "global_head_dim": 64,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
        "sliding_window": WINDOW,
        "hidden_size_per_layer_input": 0,
        "vocab_size_per_layer_input": 0,
        "initializer_range": 0.3,
        "attn_implementation": "eager",
    }
    if case == "gemma4-keys":
        sizes |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    return transformers.AutoConfig.for_model("gemma4_text", **{**sizes, **more})


MODES = Gemma4TextConfig.kv_sharing_modes


def modes(config: Gemma4TextConfig) -> list[str | None]:
    """Their rule asks for a layer that stores, also of an assistant, which has none."""
    layers = config.num_hidden_layers
    if config.num_kv_shared_layers == layers:
        return ["reuse"] * layers
    return list(MODES.fget(config))  # type: ignore[attr-defined]


@pytest.fixture(scope="module", autouse=True)
def shared() -> Iterator[None]:
    """Assistants can be made at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gemma4TextConfig, "kv_sharing_modes", property(modes))
        yield


def assistant(case: str, path: Path, **more: Any) -> Any:
    """A random assistant, saved."""
    torch.manual_seed(7)
    size = more.pop("vocab_size", 96)
    config = transformers.AutoConfig.for_model(
        "gemma4_assistant",
        text_config=text_config(case, vocab_size=size),
        backbone_hidden_size=BACKBONE,
        **more,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(
                1 + 0.2 * torch.randn_like(parameter)
                if "norm" in name
                else 0.3 * torch.randn_like(parameter)
            )
        for name, number in model.named_buffers():
            if name.endswith("layer_scalar"):
                number.copy_(0.5 + torch.rand(1))
            if name.endswith("token_ordering"):
                number.copy_(torch.randperm(size))
    model.save_pretrained(path)
    return model


@dataclass
class Judge:
    """A target and its assistant, as transformers runs them."""

    target: Any
    assistant: Any

    @torch.inference_mode()
    def drafts(
        self, tokens: list[int], drafted: list[int], place: int = -1, window: int = WINDOW - 1
    ) -> list[Any]:
        """Logits after the root, which is the last token, and after each that is drafted."""
        ids = torch.tensor([tokens[:-1]])
        known = self.target(ids, output_hidden_states=True, use_cache=True)
        # Of the last layers that store. The root is in its window, and has no key.
        kinds = self.target.config.layer_types
        pairs = zip(kinds, known.past_key_values.layers, strict=False)
        stored = {kind: each for kind, each in pairs if each.keys is not None}
        reach = {"sliding_attention": window, "full_attention": 0}
        keys = {
            kind: (each.keys[:, :, -reach[kind] :], each.values[:, :, -reach[kind] :])
            for kind, each in stored.items()
        }
        state = known.hidden_states[-1][:, -1:]
        at = torch.tensor([[len(tokens) + place]])
        embed, out = self.target.get_input_embeddings(), []
        for token in (tokens[-1], *drafted):
            inputs = torch.cat([embed(torch.tensor([[token]])), state], dim=-1)
            made = self.assistant(inputs_embeds=inputs, position_ids=at, shared_kv_states=keys)
            out.append(made.logits[0, 0].numpy())
            state = made.last_hidden_state
        return out


DRAFTED = [33, 7, 12]
CASES = ("gemma4", "gemma4-keys", "gemma4-moe")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp(request.param)
    judge = Judge(original(request.param, path / "target"), assistant(request.param, path / "own"))
    return judge, DirectorySource(path / "target"), opened(path / "own")


def opened(path: Path) -> PublishedAssistant:
    return assistant_in(path, read_json(path / "config.json"))


def made(runtime: str, source: DirectorySource) -> Any:
    if runtime == "torch":
        return TorchTarget(source.config, source.weights())
    kind = CpuTarget if runtime == "cpu" else ReferenceTarget
    more = {"kv_tokens": 256, "kv_precision": "fp32"} if runtime == "cpu" else {}
    return kind(source.config, source.weights(), "fp32", **more)


def drafts(target: Any, source: DirectorySource, own: PublishedAssistant, tokens: list[int]) -> Any:
    """Logits by step in branches."""
    trained = own.fit(source.config, source.weights(), "of this test")
    runner, cache = target.run_network(trained), target.open()
    features = target.prefill(cache, tokens[:-1], features=True)[-1:, -BACKBONE:]
    [branch] = runner.start([ContextUpdate(runner.open(), features, tokens[-1:], cache)])
    out = [branch.logits[0].copy()]
    for token in DRAFTED:
        [branch] = runner.advance([(branch, [token])])
        out.append(branch.logits[0].copy())
    return out


def apart(found: Any, expected: Any) -> float:
    return max(
        float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("runtime", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("length", [3, len(TOKENS)])
def test_it_drafts_what_its_module_says(case: Any, runtime: str, length: int) -> None:
    judge, source, own = case
    found = drafts(made(runtime, source), source, own, TOKENS[:length])
    assert apart(found, judge.drafts(TOKENS[:length], DRAFTED)) < 1e-5


@pytest.mark.parametrize("wrong", [{"place": -2}, {"window": WINDOW - 2}], ids=str)
def test_other_places_and_windows_are_seen(case: Any, wrong: dict[str, int]) -> None:
    """Control: queries before the root, and a key less."""
    judge, source, own = case
    found = drafts(made("cpu", source), source, own, TOKENS)
    assert apart(found, judge.drafts(TOKENS, DRAFTED, **wrong)) > 1e-3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda network: {"lent": [0, *network.lent[1:]]},
        lambda network: {"target": replace(network.target, embedding_scale=1.0)},
    ],
    ids=["keys of another layer", "embeddings not scaled"],
)
def test_another_wiring_is_seen(case: Any, wrong: Any) -> None:
    judge, source, own = case
    with pytest.MonkeyPatch.context() as patch:
        begin = Assistant.__init__

        def otherwise(network: Any, *sizes: Any) -> None:
            begin(network, *sizes)
            for name, value in wrong(network).items():
                setattr(network, name, value)

        patch.setattr(Assistant, "__init__", otherwise)
        found = drafts(made("cpu", source), source, own, TOKENS)
    assert apart(found, judge.drafts(TOKENS, DRAFTED)) > 1e-3


def test_a_projected_state_goes_on(case: Any) -> None:
    """Control: with the target's state at every step, only the first draft is the same."""
    judge, source, own = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge.assistant, "post_projection", torch.nn.Identity())
        patch.setattr(judge.assistant.post_projection, "forward", lambda x: x.repeat(1, 1, 2))
        wrong = judge.drafts(TOKENS, DRAFTED)
    found = drafts(made("cpu", source), source, own, TOKENS)
    assert apart(found[:1], wrong[:1]) < 1e-5
    assert apart(found[1:], wrong[1:]) > 1e-2


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_kernels_and_reference_agree_to_the_bit(case: Any, precision: str) -> None:
    _, source, own = case
    both = (
        kind(source.config, source.weights(), precision) for kind in (CpuTarget, ReferenceTarget)
    )
    first, second = (drafts(target, source, own, TOKENS) for target in both)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("runtime", ["cpu", "torch"])
def test_chains_of_a_batch_are_those_of_branches(case: Any, runtime: str) -> None:
    """Texts of different lengths at once, drafted again after more tokens."""
    _, source, own = case
    target = made(runtime, source)
    trained = own.fit(source.config, source.weights(), "of this test")
    runner = target.run_network(trained)
    texts = [TOKENS[:4], TOKENS, TOKENS[:9]]
    caches = [(runner.open(), target.open()) for _ in texts]
    for more in (0, 3):
        updates = []
        for (own_cache, cache), text in zip(caches, texts, strict=True):
            begin = len(text) - 1 if more else 0
            new = (text + TOKENS[:more])[begin : len(text) + more - 1]
            rows = target.prefill(cache, new, features=True)[:, -BACKBONE:]
            tokens = (text + TOKENS[:more])[begin + 1 :]
            updates.append(ContextUpdate(own_cache, rows, tokens, cache))
        alone = []
        for update in updates:
            [branch] = runner.start([update])
            chain = [int(branch.logits[0].argmax())]
            while len(chain) < STEPS:
                [branch] = runner.advance([(branch, chain[-1:])])
                chain.append(int(branch.logits[0].argmax()))
            alone.append(chain)
        assert [list(each.tokens) for each in runner.draft(updates, STEPS)] == alone


CLUSTERED = {"use_ordered_embeddings": True, "num_centroids": 8, "centroid_intermediate_top_k": 3}


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("clusters")
    judge = Judge(
        original("gemma4", path / "target"), assistant("gemma4", path / "own", **CLUSTERED)
    )
    return judge, DirectorySource(path / "target"), opened(path / "own")


def test_clusters_leave_out_tokens_alone(clustered: Any) -> None:
    """Trees draft other tokens than theirs too."""
    judge, source, own = clustered
    assert own.wiring.clusters == (8, 3)
    found = drafts(made("cpu", source), source, own, TOKENS)
    for mine, theirs in zip(found, judge.drafts(TOKENS, DRAFTED), strict=True):
        kept = theirs > theirs.min()
        assert kept.sum() == 36
        assert np.abs(mine - theirs)[kept].max() < 1e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_chains_are_of_the_best_clusters(clustered: Any, precision: str) -> None:
    """As its module drafts them; with the whole head, the control, some are others."""
    judge, source, own = clustered
    target = CpuTarget(source.config, source.weights(), precision, kv_tokens=2048)
    trained = own.fit(source.config, source.weights(), "of this test")
    texts = [[*TOKENS[at:], *TOKENS[:at]] for at in range(12)]
    chains = {}
    for name, network in (("clusters", trained), ("all", replace(trained, clusters=None))):
        runner, updates = target.run_network(network), []
        for text in texts:
            cache = target.open()
            features = target.prefill(cache, text[:-1], features=True)[-1:, -BACKBONE:]
            updates.append(ContextUpdate(runner.open(), features, text[-1:], cache))
        chains[name] = [list(each.tokens) for each in runner.draft(updates, STEPS)]
    expected: list[list[int]] = []
    for text in texts:
        chain: list[int] = []
        while len(chain) < STEPS:
            chain.append(int(judge.drafts(text, chain)[-1].argmax()))
        expected.append(chain)
    same = [mine == theirs for mine, theirs in zip(chains["clusters"], expected, strict=True)]
    others = sum(map(list.__eq__, chains["all"], expected))
    assert all(same) if precision == "fp32" else sum(same) > 4
    assert others < 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"clusters": (7, 3)}, "3 of 7 clusters of 96 tokens"),
        ({"clusters": (8, 9)}, "9 of 8 clusters"),
    ],
)
def test_clusters_that_do_not_fit_are_refused(
    clustered: Any, change: dict[str, Any], said: str
) -> None:
    _, source, own = clustered
    with pytest.raises(InvalidOption, match=said):
        replace(own, **change).fit(source.config, source.weights(), "")


def test_a_token_of_two_clusters_is_refused(tmp_path: Path) -> None:
    original("gemma4", tmp_path / "target")
    assistant("gemma4", tmp_path / "own", **CLUSTERED)
    source, path = DirectorySource(tmp_path / "target"), tmp_path / "own" / "model.safetensors"
    tensors = load_file(path)
    tensors["masked_embedding.token_ordering"][3] = tensors["masked_embedding.token_ordering"][4]
    save_file(tensors, path)
    with pytest.raises(InvalidOption, match="a token is in no cluster, or in two"):
        opened(path.parent).fit(source.config, source.weights(), "")
    del tensors["masked_embedding.token_ordering"]
    save_file(tensors, path)
    with pytest.raises(InvalidOption, match="no tensor for the tokens of its clusters"):
        opened(path.parent).fit(source.config, source.weights(), "")


def gguf_file(own: PublishedAssistant, path: Path) -> Path:
    """The same as llama.cpp's converter writes it."""
    config, files, arch = own.config, own.tensors, ARCHITECTURE
    writer = gguf.GGUFWriter(path, arch)
    sizes = {
        "context_length": config.max_context,
        "embedding_length": config.hidden_size,
        "embedding_length_out": own.width,
        "block_count": config.layers,
        "nextn_predict_layers": config.layers,
        "feed_forward_length": config.ffn_size,
        "attention.head_count": config.heads,
        "attention.shared_kv_layers": config.layers,
        "attention.key_length": config.full_head_dim,
        "attention.value_length": config.full_head_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "rope.dimension_count": config.full_head_dim,
        "rope.dimension_count_swa": config.head_dim,
        "attention.sliding_window": WINDOW,
        "embedding_length_per_layer_input": 0,
    }
    for name, number in sizes.items():
        writer.add_uint32(f"{arch}.{name}", number)
    base = config.local_rope_base
    assert base is not None
    for name, real in {
        "rope.freq_base": config.rope_base,
        "rope.freq_base_swa": base,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
    }.items():
        writer.add_float32(f"{arch}.{name}", real)
    writer.add_head_count_kv([config.kv_shape(each)[0] for each in range(config.layers)])
    writer.add_sliding_window_pattern([bool(each) for each in config.windows])
    factors = np.nan_to_num(np.float32(config.rope_divisors), posinf=1e30)
    writer.add_tensor("rope_freqs.weight", factors)
    weights = FileWeights(files, config, own.path, gguf=False)
    for name, theirs in GGUF_ENDS.items():
        if name != "head":
            writer.add_tensor(theirs, weights[name])
    for name in ("pre_projection", "post_projection"):
        writer.add_tensor(f"nextn.{name}.weight", files.read(f"{name}.weight"))
    for layer in range(config.layers):
        for part, theirs in GEMMA4.gguf_parts.items():
            if (name := f"layers.{layer}.{part}") in weights:
                end = "" if theirs in GEMMA4.bare else ".weight"
                writer.add_tensor(f"blk.{layer}.{theirs}{end}", weights[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_gguf_file_is_the_same(case: Any, tmp_path: Path) -> None:
    _, source, own = case
    other = open_head(gguf_file(own, tmp_path / "assistant.gguf"))
    assert isinstance(other, PublishedAssistant)
    assert other.config.windows == own.config.windows
    target = made("cpu", source)
    found, expected = (drafts(target, source, each, TOKENS) for each in (other, own))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target with a tokenizer, and its assistant."""
    path = tmp_path_factory.mktemp("texts")
    tiny_model.save_directory(path / "target", tiny_model.tiny_config())
    sizes = {"vocab_size": 320, "max_position_embeddings": 512}
    original("gemma4", path / "target", vocab_size_per_layer_input=320, **sizes)
    assistant("gemma4", path / "own", vocab_size=320)
    assistant("gemma4", path / "clusters", vocab_size=320, **CLUSTERED)
    return str(path / "target"), str(path / "own")


@pytest.mark.parametrize("runtime", ["cpu", "torch", "reference"])
@pytest.mark.parametrize("options", ["", ":growth=expand-rerank"])
def test_a_text_is_that_without_drafts(
    folders: tuple[str, str], runtime: str, options: str
) -> None:
    """In a batch, greedy and sampled, behind prompts of any length and prefixes of others."""
    target, own = folders
    slow = runtime == "reference"
    prompts = [TOKENS, TOKENS[:1], 3 * TOKENS, 3 * TOKENS + [5]][: 2 if slow else 4]
    asked = {"max_new_tokens": 6 if slow else 16, "ignore_eos": True}

    def texts(**drafting: Any) -> list[list[tuple[int, ...]]]:
        engine = paceline.load(target, runtime=runtime, precision="fp32", max_batch=2, **drafting)
        found = [engine.generate(prompts, **asked, **how) for how in ({}, {"temperature": 1.0})]
        drafted = sum(each.stats.drafted_tokens for part in found for each in part)
        assert bool(drafted) == (drafting["drafter"] != "none")
        return [[each.token_ids for each in part] for part in found]

    sizes = {"controller": "fixed", "nodes": 4, "depth": 4}
    plain = texts(drafter="none")
    assert texts(drafter=f"assistant{options}", draft_model=own, **sizes) == plain
    if runtime == "cpu" and not options:
        assert texts(drafter="auto", draft_model=own, **sizes) == plain
    if runtime == "cpu":
        clustered = str(Path(own).with_name("clusters"))
        assert texts(drafter=f"assistant{options}", draft_model=clustered, **sizes) == plain


def test_it_is_told_what_it_is(
    folders: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    target, own = folders
    assert run(["inspect", own]) == 0
    said = capsys.readouterr().out
    assert "published Gemma 4 assistant" in said
    assert "cache: the target's" in said
    assert run(["inspect", own, "--model", target]) == 2
    assert "has one wiring" in capsys.readouterr().err
    for asked, message in (
        ({"drafter": "eagle3"}, "use --drafter assistant"),
        ({"drafter": "assistant:shift=1"}, "has one wiring"),
        ({"drafter": "draft-model"}, "use --drafter assistant"),
    ):
        with pytest.raises(InvalidOption, match=message):
            paceline.load(target, draft_model=own, **asked)
    with pytest.raises(InvalidOption, match="needs a published drafter"):
        paceline.load(target, drafter="assistant")
    with pytest.raises(ModelError, match="no model"):
        paceline.load(own)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"family": "llama"}, "keys and values of Gemma 4, and the model is of family llama"),
        ({"hidden_size": 128}, "hidden states of width 64, and the model has 128"),
        ({"vocab_size": 97}, "a vocabulary of 96, and the model has 97"),
        ({"kv_heads": 4}, "2 heads of keys and values of width 32"),
        ({"full_head_dim": 32}, "heads of keys and values of width 64"),
    ],
)
def test_what_is_of_another_model_is_refused(case: Any, change: dict[str, Any], said: str) -> None:
    _, source, own = case
    with pytest.raises(InvalidOption, match=said):
        own.fit(replace(source.config, **change), source.weights(), "")


@pytest.mark.parametrize(
    "name", ["pre_projection", "model.layers.2.self_attn.q_norm", "model.embed_tokens"]
)
def test_half_a_file_is_refused(name: str, tmp_path: Path) -> None:
    original("gemma4", tmp_path / "target")
    assistant("gemma4", tmp_path / "own")
    source, path = DirectorySource(tmp_path / "target"), tmp_path / "own" / "model.safetensors"
    tensors = load_file(path)
    found = tensors.pop(f"{name}.weight")
    save_file(tensors, path)
    with pytest.raises(InvalidOption, match=r"has no tensor for .*download it again"):
        opened(path.parent).fit(source.config, source.weights(), "")
    save_file({**tensors, f"{name}.weight": found[:-1].contiguous()}, path)
    with pytest.raises(InvalidOption, match=r"and not .*download it again"):
        opened(path.parent).fit(source.config, source.weights(), "")
    (path.parent / "config.json").write_text('{"model_type": "gemma4_assistant"}')
    with pytest.raises(InvalidOption, match=r"config\.json: 'text_config'"):
        opened(path.parent)
