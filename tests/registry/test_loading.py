"""From names to engines: defaults, refusals, and which runtime "auto" means."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.helpers.tiny_model import save_directory, save_gguf, tiny_config

import paceline
from paceline.core.target import RuntimeOptions
from paceline.drafters.base import NoDrafter
from paceline.drafters.resources import Loaded, Resources
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption, ModelError, PacelineError, RuntimeUnavailable
from paceline.models.source import DirectorySource, GGUFSource, ModelSource
from paceline.models.text import Tokenizer
from paceline.policy.cost import CostModel
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.registry import assembly, loading
from paceline.registry import table as registry
from paceline.registry.assembly import DEFAULT_DRAFTER
from paceline.registry.loading import choose_runtime, load, load_draft, load_model, make_engine
from paceline.registry.table import Method
from paceline.verifiers.matching import Coupled

VOCABULARY = 320
MODEL = TabularModel(VOCABULARY, 1, seed=3, sharpness=2.0)


class FakeTarget(TabularTarget):
    """A runtime that takes any model and remembers how it was asked to load it."""

    loads: ClassVar[list[tuple[ModelSource, RuntimeOptions]]] = []

    @classmethod
    def load(cls, source: ModelSource, options: RuntimeOptions) -> FakeTarget:
        cls.loads.append((source, options))
        vocabulary = source.config.vocab_size
        return cls(TabularModel(vocabulary, 1, seed=3).logits, vocabulary, options.limit(400))


@pytest.fixture(autouse=True)
def tabular_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A runtime named "tabular", as a plugin would add it; measurements stay in `tmp_path`."""
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    FakeTarget.loads = []
    method = Method("tabular", "runtime", f"{__name__}:FakeTarget")
    everything = (*registry.methods(), method)
    monkeypatch.setattr(registry, "methods", lambda: everything)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(save_directory(tmp_path / "model", tiny_config()))


@pytest.fixture
def loaded(model: str) -> Loaded:
    return load_model(model, runtime="tabular", progress=False)


def one_line(error: PacelineError) -> str:
    assert "\n" not in str(error)
    return str(error)


# Engines


def test_defaults(loaded: Loaded) -> None:
    engine = make_engine(loaded)
    assert engine.config["drafter"] == DEFAULT_DRAFTER
    assert engine.config["verifier"] == "coupled"
    assert engine.config["controller"] == "cost-model"
    assert engine.config["lossless"] is True
    assert engine.config["runtime"] == "tabular"
    assert engine.config["model"] == "model"
    assert engine.generate("dog", max_new_tokens=4).token_ids


def test_sizes_mean_a_fixed_controller(loaded: Loaded) -> None:
    assert make_engine(loaded, nodes=4).config["controller"] == "fixed"
    assert make_engine(loaded, depth=4).config["controller"] == "fixed"
    limited = make_engine(loaded, nodes=4, controller="cost-model")
    assert limited.config["controller"] == "cost-model"


def test_plain_decoding_measures_nothing(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> CostModel:
        raise AssertionError("plain decoding needs no costs")

    monkeypatch.setattr("paceline.drafters.resources.load_or_measure", refuse)
    engine = make_engine(loaded, drafter="none")
    assert isinstance(engine.decoder.drafter, NoDrafter)
    assert len(engine.generate("dog", max_new_tokens=4, ignore_eos=True).token_ids) == 4
    with pytest.raises(AssertionError):
        make_engine(loaded)


def test_the_first_layers_load_as_a_model_of_their_own(model: str) -> None:
    early = load_model(model, runtime="tabular", layers=1, progress=False)
    [(source, _)] = FakeTarget.loads
    assert source is early.source
    assert source.config.layers == 1


def test_a_runtime_that_reads_files_itself_refuses_an_early_exit(model: str) -> None:
    with pytest.raises(InvalidOption, match="whole models"):
        load_model(model, runtime="transformers", layers=1, progress=False)


def test_draft_models_take_over_the_options_of_the_target(model: str) -> None:
    options = RuntimeOptions(threads=3, precision="fp32", max_context=200)
    loaded = load_model(options, model=model, runtime="tabular", progress=False)
    for precision in (None, "int4"):
        draft = load_draft(loaded, model, precision=precision, layers=1, progress=False)
        assert draft.options == RuntimeOptions(threads=3, precision=precision, max_context=200)
        assert draft.source.config.layers == 1


def test_costs_are_measured_once_per_model(loaded: Loaded, tmp_path: Path) -> None:
    assert loaded.costs is loaded.costs
    [path] = (tmp_path / "cache" / "costs").iterdir()
    before = path.stat().st_mtime_ns
    again = load_model(str(loaded.source.path), runtime="tabular", progress=False)
    assert again.costs.seconds == loaded.costs.seconds
    assert path.stat().st_mtime_ns == before
    assert again.costs is not loaded.costs


def test_engines_of_one_model_give_the_same_text(loaded: Loaded, model: str) -> None:
    engines = [
        make_engine(loaded, drafter=drafter, nodes=6, draft_model=model, progress=False)
        if drafter == "draft-model"
        else make_engine(loaded, drafter=drafter, nodes=6)
        for drafter in ("none", "prompt-lookup", "recycling", "draft-model")
    ]
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_new_tokens": 20}
    texts = {engine.generate("dog", **options).text for engine in engines}
    assert len(texts) == 1


@pytest.mark.parametrize("kind", ["drafter", "verifier", "controller"])
def test_unknown_names_are_answered_with_the_choices(kind: Any, loaded: Loaded) -> None:
    options: dict[str, Any] = {kind: "magic"}
    with pytest.raises(InvalidOption) as caught:
        make_engine(loaded, **options)
    message = one_line(caught.value)
    assert f"{kind} 'magic' is unknown" in message
    for name in registry.names(kind):
        assert name in message


def test_an_unknown_controller_is_refused_for_plain_decoding_too(loaded: Loaded) -> None:
    with pytest.raises(InvalidOption, match="controller 'magic' is unknown"):
        make_engine(loaded, drafter="none", controller="magic")


@pytest.mark.parametrize("size", ["nodes", "depth"])
def test_sizes_below_one_are_refused(size: str, loaded: Loaded) -> None:
    sizes: dict[str, Any] = {size: 0}
    with pytest.raises(InvalidOption, match=f"{size} must be 1 or more"):
        make_engine(loaded, drafter="recycling", **sizes)


@pytest.mark.parametrize("drafter", ["auto", "prompt-lookup", "recycling"])
def test_rejection_refuses_drafters_that_draw_nothing(drafter: str, loaded: Loaded) -> None:
    with pytest.raises(InvalidOption) as caught:
        make_engine(loaded, drafter=drafter, verifier="rejection")
    assert "use verifier 'coupled' or drafter 'draft-model'" in one_line(caught.value)


def test_rejection_takes_a_draft_model_and_plain_decoding(loaded: Loaded, model: str) -> None:
    choices: list[dict[str, Any]] = [
        {"drafter": "none"},
        {"drafter": "draft-model", "draft_model": model},
    ]
    for options in choices:
        engine = make_engine(loaded, verifier="rejection", progress=False, nodes=3, **options)
        out = engine.generate("dog", temperature=1.0, max_new_tokens=9, ignore_eos=True)
        assert len(out.token_ids) == 9


# Draft models


def test_a_draft_model_must_be_named(loaded: Loaded) -> None:
    with pytest.raises(InvalidOption, match="name one with --draft-model"):
        make_engine(loaded, drafter="draft-model")


def test_a_cascade_needs_the_same_vocabulary(loaded: Loaded, tmp_path: Path) -> None:
    other = str(save_directory(tmp_path / "other", tiny_config(vocab_size=300)))
    with pytest.raises(InvalidOption) as caught:
        make_engine(loaded, drafter="cascade", draft_model=other, progress=False)
    assert "300 tokens and the target 320" in one_line(caught.value)


@pytest.mark.parametrize("drafter", ["draft-model", "string-level", "omnidraft", "auto"])
def test_a_draft_model_of_another_vocabulary_drafts_as_text(
    loaded: Loaded, tmp_path: Path, drafter: str
) -> None:
    other = str(save_directory(tmp_path / "other", tiny_config(vocab_size=300)))
    engine = make_engine(loaded, drafter=drafter, nodes=3, draft_model=other, progress=False)
    plain = make_engine(loaded, drafter="none", progress=False)
    for temperature in (0.0, 1.0):
        options: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 20}
        drafted = engine.generate("the quick", **options)
        assert drafted.token_ids == plain.generate("the quick", **options).token_ids
        assert drafted.stats.drafter_errors == 0


def test_string_level_also_takes_the_same_vocabulary(loaded: Loaded, model: str) -> None:
    engine = make_engine(loaded, drafter="string-level", nodes=3, draft_model=model, progress=False)
    drafted = engine.generate("the quick", max_new_tokens=20, ignore_eos=True)
    assert drafted.stats.accepted_tokens > 0


def test_a_draft_model_is_loaded_like_its_target(model: str) -> None:
    options = RuntimeOptions(precision="int8", threads=2, max_context=100)
    loaded = load_model(options, model=model, runtime="tabular", progress=False)
    FakeTarget.loads = []
    make_engine(loaded, drafter="draft-model", draft_model=model, nodes=2, progress=False)
    [(source, found)] = FakeTarget.loads
    assert str(source.path) == model
    assert (found.threads, found.max_context) == (2, 100)
    assert found.precision is None  # the draft model's own default


def test_more_context_than_the_model_reads_is_refused(model: str) -> None:
    for asked, refused in ((256, False), (257, True), (10**6, True)):
        options = RuntimeOptions(max_context=asked)
        if refused:
            with pytest.raises(InvalidOption, match=rf"max_context is {asked}, but .* 256 tokens"):
                load_model(options, model=model, runtime="tabular", progress=False)
        else:
            load_model(options, model=model, runtime="tabular", progress=False)


def test_a_missing_draft_model_is_a_model_error(loaded: Loaded) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        make_engine(loaded, drafter="draft-model", draft_model="nowhere.gguf", progress=False)


# Models and runtimes


@pytest.mark.parametrize("name", ["nowhere", "", "no such model", "./nowhere.gguf"])
def test_unknown_models_are_named(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(name, runtime="tabular", progress=False)
    message = one_line(caught.value)
    assert repr(name) in message
    assert "smollm2-135m" in message


def test_an_unknown_runtime_is_refused_before_the_model_is_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "resolve", lambda *args, **options: pytest.fail("fetched"))
    with pytest.raises(InvalidOption) as caught:
        load_model(runtime="magic")
    assert "cpu, torch, transformers" in one_line(caught.value)


@pytest.fixture
def have(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Runtimes that count as installed."""
    names = {"cpu", "torch", "transformers"}
    monkeypatch.setattr(loading, "installed", lambda runtime: runtime in names)
    return names


def unknown_family(tmp_path: Path) -> DirectorySource:
    directory = save_directory(tmp_path / "foreign", tiny_config())
    (directory / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    return DirectorySource(directory)


@pytest.mark.parametrize(
    ("device", "missing", "expected"),
    [
        (None, {"torch", "transformers"}, "cpu"),
        ("cpu", {"torch"}, "cpu"),
        ("cuda", set(), "torch"),
        ("cuda:1", {"transformers"}, "torch"),
    ],
)
def test_auto_chooses_by_device(
    device: str | None, missing: set[str], expected: str, have: set[str], tmp_path: Path
) -> None:
    have -= missing
    for source in (
        DirectorySource(save_directory(tmp_path / "model", tiny_config())),
        GGUFSource(save_gguf(tmp_path / "model.gguf", tiny_config())),
    ):
        assert choose_runtime(device, source) == expected


def test_auto_leaves_other_families_to_transformers(have: set[str], tmp_path: Path) -> None:
    assert choose_runtime(None, unknown_family(tmp_path)) == "transformers"
    assert choose_runtime("cuda", unknown_family(tmp_path)) == "transformers"


def test_auto_leaves_no_broken_model_to_transformers(have: set[str], tmp_path: Path) -> None:
    path = save_directory(tmp_path / "model", tiny_config())
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_attention_heads": "four"}))
    with pytest.raises(ModelError, match="not that of a complete"):
        choose_runtime(None, DirectorySource(path))


@pytest.mark.parametrize(
    ("device", "foreign", "advice"),
    [("cuda", False, "torch"), (None, True, "transformers")],
)
def test_auto_says_what_to_install(
    device: str | None, foreign: bool, advice: str, have: set[str], tmp_path: Path
) -> None:
    have -= {"cpu", "torch", "transformers"}
    known = save_directory(tmp_path / "model", tiny_config())
    source = unknown_family(tmp_path) if foreign else DirectorySource(known)
    with pytest.raises(RuntimeUnavailable) as caught:
        choose_runtime(device, source)
    assert one_line(caught.value).endswith(f"pip install 'paceline[{advice}]'")


@pytest.mark.parametrize("runtime", ["torch", "transformers"])
def test_a_runtime_that_is_not_installed_is_named(runtime: str, have: set[str], model: str) -> None:
    have.discard(runtime)
    with pytest.raises(RuntimeUnavailable) as caught:
        load_model(model, runtime=runtime, progress=False)
    assert f"pip install 'paceline[{runtime}]'" in one_line(caught.value)


def test_packages_are_looked_for_without_importing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find(name: str) -> object:
        asked.append(name)
        return None if name == "torch" else object()

    monkeypatch.setattr("importlib.util.find_spec", find)
    assert loading.installed("cpu")
    assert not loading.installed("torch")
    assert not loading.installed("transformers")
    assert loading.installed("of-a-plugin")
    assert set(asked) == {"torch", "transformers"}


def test_load_passes_every_option_on(model: str) -> None:
    engine = load(
        model,
        runtime="tabular",
        device="cpu",
        precision="fp32",
        threads=1,
        max_context=50,
        drafter="recycling",
        verifier="sample-match",
        nodes=7,
        depth=3,
        max_batch=2,
        progress=False,
    )
    assert isinstance(engine, Engine)
    [(source, options)] = FakeTarget.loads
    assert str(source.path) == model
    assert options == RuntimeOptions("cpu", "fp32", 1, 50)
    wanted = {"drafter": "recycling", "verifier": "sample-match", "nodes": 7, "depth": 3}
    assert wanted.items() <= engine.config.items()
    assert paceline.load is load


@pytest.mark.parametrize("context", [0, 1, -5])
def test_a_context_without_room_is_refused(context: int, model: str) -> None:
    with pytest.raises(InvalidOption, match="max_context must be 2 or more"):
        load(model, runtime="tabular", max_context=context, progress=False)


def test_no_threads_at_all_are_refused(model: str) -> None:
    with pytest.raises(InvalidOption, match="threads must be 1 or more, not 0"):
        load(model, runtime="tabular", threads=0, progress=False)
    with pytest.raises(InvalidOption, match="threads must be 1 or more, not '2'"):
        load(model, runtime="tabular", threads="2", progress=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"threads must be 1 or more, not 2\.5"):
        load(model, runtime="tabular", threads=2.5, progress=False)
    with pytest.raises(InvalidOption, match="model must be a name or a path as text, not None"):
        load(None, progress=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("context", [2, 20, 256])
def test_short_contexts_work_with_the_cost_model(context: int, model: str) -> None:
    engine = load(model, runtime="tabular", max_context=context, progress=False)
    out = engine.generate([5], ignore_eos=True, max_new_tokens=30)
    assert len(out.token_ids) == min(context - 1, 30)


@pytest.mark.parametrize(
    ("runtime", "option", "value"),
    [
        ("tabular", "kv_precision", "fp16"),
        ("tabular", "kv_tokens", 100),
        ("reference", "kv_tokens", 100),
        ("reference", "prefix_tokens", 100),
        ("reference", "device", "cuda"),
        ("torch", "kv_tokens", 100),
        ("torch", "kv_precision", "fp16"),
    ],
)
def test_what_a_runtime_does_not_have_is_refused(
    runtime: str, option: str, value: Any, model: str
) -> None:
    with pytest.raises(InvalidOption, match=f"{option} {value}|not '{value}'"):
        load_model(model, runtime=runtime, **{option: value})


@pytest.mark.parametrize("runtime", ["cpu", "torch", "transformers", "reference"])
def test_what_a_target_declares_is_what_it_has(runtime: str, model: str) -> None:
    """So nobody has to look at it; what a runtime cannot change is refused by its name."""
    target = load_model(model, runtime=runtime).target
    facts = target.capabilities
    declared = {"run_network": facts.networks, "add_embeddings": facts.embeddings}
    declared |= {"memory": facts.paged, "inference_seconds": facts.timed, "counted": facts.timed}
    assert {name: hasattr(target, name) for name in declared} == declared
    assert facts.head is None

    def first(rows: int) -> Any:
        return np.arange(rows // 2)

    if "head" in registry.find("runtime", runtime).load().changes:
        trimmed = load_model(model, runtime=runtime, head=first).target
        assert trimmed.capabilities.head == tuple(range(facts.vocab_size // 2))
    else:
        with pytest.raises(RuntimeUnavailable, match=f"'{runtime}' cannot leave out tokens"):
            load_model(model, runtime=runtime, head=first)
    if runtime != "cpu":
        with pytest.raises(RuntimeUnavailable, match=f"'{runtime}' has no mask rows: use cpu"):
            load_model(model, runtime=runtime, denoiser="rows=some")


def test_a_draft_model_of_another_vocabulary_cannot_leave_out_tokens(
    loaded: Loaded, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tokenizer, "agrees", lambda *_: False)
    monkeypatch.setattr(FakeTarget, "changes", {"head"}, raising=False)
    monkeypatch.setattr(FakeTarget, "load", lambda *_, **__: loaded.target)
    with pytest.raises(InvalidOption, match="'draft-model' without option vocabulary"):
        make_engine(loaded, drafter="draft-model:vocabulary=9", draft_model=model)


def test_the_reference_has_both_precisions_of_keys_and_no_prefixes(model: str) -> None:
    options = RuntimeOptions(kv_precision="fp16", prefix_tokens=0)
    found = load_model(options, model=model, runtime="reference")
    assert found.target.capabilities.kv_precision == "fp16"


def test_a_smaller_sibling_beside_the_file_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same tokens and architecture, at most a fifth as large; others are passed over."""
    large = replace(tiny_config(layers=8), ffn_size=1024)
    path = save_gguf(tmp_path / "large.gguf", large)
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    save_gguf(tmp_path / "other.gguf", tiny_config("qwen2", layers=1))
    engine = load(str(path), runtime="cpu", progress=False)
    assert engine.config["drafter"] == "suffix-automaton"
    assert engine.config["draft_model"] is None
    small = save_gguf(tmp_path / "small.gguf", tiny_config(layers=1))
    engine = load(str(path), runtime="cpu", progress=False)
    assert engine.config["drafter"] == "suffix-automaton+recycling>draft-model"
    assert engine.config["draft_model"] == str(small)
    text = engine.generate([5, 6, 7], max_new_tokens=12, ignore_eos=True)
    plain = load(str(path), runtime="cpu", drafter="none", progress=False)
    assert plain.generate([5, 6, 7], max_new_tokens=12, ignore_eos=True).token_ids == text.token_ids
    fp32 = load(str(path), runtime="cpu", precision="fp32", draft_model=str(small), progress=False)
    assert fp32.config["drafter"] == "suffix-automaton>quantised>draft-model"
    monkeypatch.setattr(assembly, "shipped_file", lambda *_: path)  # as if a network shipped
    loaded = load_model(str(path), runtime="cpu")
    for named, drafter in ((None, ""), (str(small), ">draft-model")):
        builder = assembly.Assembly(Resources(loaded, named), Coupled())
        assert builder._default("greedy") == f"suffix-automaton>eagle3{drafter}"
