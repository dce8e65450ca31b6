"""Options in dataclasses, and lists of drafters whose options hold commas."""

from __future__ import annotations

import dataclasses
import inspect
import json
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import typer
from tests.cli import fakes
from tests.cli.conftest import Command, one_line
from tests.helpers.tiny_model import save_directory, tiny_config
from typer.testing import CliRunner

from paceline.cli import options as o
from paceline.errors import InvalidOption, PromptError
from paceline.models.text import Tokenizer
from paceline.registry import loading
from paceline.registry.options import Options
from paceline.serving.settings import Settings

# Blocks


def test_a_block_s_fields_are_options_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[Any, ...]] = []

    @o.spread_options
    def command(
        text: Annotated[str, typer.Argument()],
        *,
        asked: Annotated[Options, o.Takes("model", "device", "fold_system", model="tiny")],
        more: Annotated[int, typer.Option()] = 3,
        settings: Settings,
    ) -> None:
        """What it does."""
        seen.append((text, asked, more, settings.port, settings.served_name))

    assert list(inspect.signature(command).parameters)[:6] == [
        *("text", "model", "device", "fold_system", "more", "host")
    ]
    app = typer.Typer()
    app.command()(command)
    app(["hello", "--device", "cuda", "--port", "2", "--served-name", "a"], standalone_mode=False)
    app(["hi", "--more", "5", "--fold-system"], standalone_mode=False)
    assert seen == [
        ("hello", Options(model="tiny", device="cuda"), 3, 2, ["a"]),
        ("hi", Options(model="tiny", fold_system=True), 5, 8000, None),
    ]
    with pytest.raises(InvalidOption, match=r"^--port must be 0 to 65535, not 70000"):
        app(["hi", "--port", "70000"], standalone_mode=False)
    app(["--help"], standalone_mode=False)
    assert "What it does." in capsys.readouterr().out


@pytest.mark.usefixtures("loads")
def test_bench_takes_drafters_with_several_options_and_several_lists(
    command: Command, tmp_path: Path
) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"category": "qa", "turns": ["the quick fox"]}\n')
    call = ("bench", "--prompts", str(prompts), "--max-new-tokens", "4", "--json")
    searched = "aded-mcts:trials=3,seed=1"
    done = command(*call, "--drafters", f"{searched},recycling", "--drafters", "prompt-lookup,none")
    assert done.code == 0, done.err
    settings = json.loads(done.out)["settings"]
    assert settings["drafters"] == ["none", searched, "recycling", "prompt-lookup"]
    wrong = command(*call, "--drafters", "aded-mcts:trials=3,depth=3,recycling")
    assert one_line(wrong)
    assert "drafter 'aded-mcts' has no option 'depth'" in wrong.err
    empty = command(*call, "--drafters", "recycling,")
    assert one_line(empty)


# Dataclasses of options that several commands take:

Size = Annotated[int, typer.Option(help="How large.")]


@dataclass(frozen=True)
class Shape:
    size: Size = 3
    colours: Annotated[list[str] | None, typer.Option("--colour", help="Which.")] = None
    sides: int = field(init=False, default=4)


@dataclass(frozen=True, kw_only=True)
class Large(Shape):
    """Its own default where the option stood, and one more."""

    size: Size = 30
    name: Annotated[str, typer.Option(help="What it is called.")]


def run(command: Any, *arguments: str) -> tuple[int, str]:
    app = typer.Typer(rich_markup_mode=None)
    app.command()(o.spread_options(command))
    done = CliRunner().invoke(app, arguments)
    return done.exit_code, done.output


def draw(
    place: Annotated[str, typer.Argument(help="Where.")],
    *,
    before: int = 1,
    shape: Shape,
    after: int = 2,
) -> None:
    """Draw it."""
    typer.echo(f"{place} {before} {shape} {after}")


def test_fields_are_options_with_their_defaults() -> None:
    assert run(draw, "here") == (0, f"here 1 {Shape()} 2\n")
    given = ("here", "--size", "5", "--colour", "red", "--colour", "blue", "--after", "9")
    assert run(draw, *given) == (0, f"here 1 {Shape(5, ['red', 'blue'])} 9\n")


def test_help_has_the_texts_where_the_group_stood() -> None:
    code, text = run(draw, "--help")
    assert code == 0
    places = [text.index(word) for word in ("Draw it", "--before", "--size", "--colour", "--after")]
    assert places == sorted(places)
    assert "How large.  [default: 3]" in text
    assert "--sides" not in text


def test_what_is_no_field_of_init_is_no_option() -> None:
    code, _ = run(draw, "here", "--sides", "5")
    assert code == 2


def test_defaults_of_a_subclass_count_and_what_has_none_is_required() -> None:
    def make(large: Large) -> None:
        typer.echo(f"{large.size} {large.name}")

    code, text = run(make)
    assert code == 2
    assert "--name" in text
    assert list(signature(o.spread_options(make)).parameters) == ["size", "colours", "name"]


def test_it_can_be_called_as_a_function_too(capsys: pytest.CaptureFixture[str]) -> None:
    o.spread_options(draw)("here", size=7)
    assert capsys.readouterr().out == f"here 1 {dataclasses.replace(Shape(), size=7)} 2\n"
    with pytest.raises(TypeError, match="sides"):
        o.spread_options(draw)("here", sides=5)


def test_one_name_twice_is_refused() -> None:
    def twice(*, size: int = 1, shape: Shape) -> None: ...

    with pytest.raises(ValueError, match="size"):
        o.spread_options(twice)


class TestChatOptions:
    """What stands in the model's files, and what is given in its place."""

    ASKED: ClassVar[dict[str, float]] = {"temperature": 0.7, "top_k": 20}

    @pytest.fixture
    def asking(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def load_model(*_: Any, **__: Any) -> Any:
            made = fakes.loaded()
            made.source.sampling = self.ASKED
            return made

        monkeypatch.setattr(loading, "load_model", load_model)

    @pytest.mark.usefixtures("asking")
    def test_defaults_of_the_model_are_told_and_options_are_stronger(
        self, command: Command
    ) -> None:
        few = ("--max-new-tokens", "3", "--json")
        done = command("generate", "hi", *few)
        assert "as the model's files ask: temperature 0.7, top_k 20" in done.err
        config = json.loads(done.out)["config"]
        assert (config["temperature"], config["top_k"], config["top_p"]) == (0.7, 20, 1.0)
        done = command("generate", "hi", *few, "--temperature", "0")
        assert "files ask: top_k 20 (" in done.err
        assert json.loads(done.out)["config"]["temperature"] == 0
        done = command("generate", "hi", *few, "--no-generation-config")
        assert "files" not in done.err
        assert json.loads(done.out)["config"]["temperature"] == 0

    @pytest.mark.usefixtures("asking")
    def test_what_is_out_of_range_there_is_named(
        self, command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(self.ASKED, "top_p", 7.0)
        done = command("generate", "hi")
        assert done.code == 2
        assert "the model's files ask for temperature 0.7, top_k 20, top_p 7" in done.err

    def test_a_template_of_ones_own(self, tmp_path: Path) -> None:
        save_directory(tmp_path / "m", tiny_config())
        path = tmp_path / "mine.jinja"
        path.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
        for mine in (str(path), path.read_text()):
            made = loading.load_model(
                str(tmp_path / "m"), runtime="reference", chat_template=mine
            ).tokenizer
            assert made.decode(made.prompt("fox")) == "<fox>"
        with pytest.raises(InvalidOption, match=r"absent\.jinja cannot be read \(No such file"):
            loading.load_model(str(tmp_path / "m"), chat_template=str(tmp_path / "absent.jinja"))

    @pytest.mark.parametrize(
        "template",
        [
            "{% if messages[0].role == 'system' %}{{ raise_exception('no such word') }}{% endif %}"
            "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
            "{% for m in messages if m.role != 'system' %}"
            "<{{ m.role }}>{{ m.content }}{% endfor %}",
        ],
    )
    def test_a_system_message_is_never_dropped(self, template: str) -> None:
        core = fakes.loaded().tokenizer.core
        made = Tokenizer(core, chat_template=template)
        with pytest.raises(PromptError, match=r"--fold-system|no such word"):
            made.prompt("fox", system="be short")
        made.fold_system = True
        assert made.decode(made.prompt("fox", system="be short")) == "<user>be short\n\nfox"
        for raw, plain in ((True, made), (False, Tokenizer(core))):
            with pytest.raises(PromptError, match="no system message"):
                plain.prompt("fox", raw=raw, system="be short")
