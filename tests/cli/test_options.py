"""Options in dataclasses, and lists of drafters whose options hold commas."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Command, one_line
from typer.testing import CliRunner

from paceline.cli import options as o
from paceline.errors import InvalidOption

# Lists of drafters


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["a"], ["a"]),
        (["a,b , c"], ["a", "b", "c"]),
        (["a", "b,c"], ["a", "b", "c"]),
        (["a:x=1,y=2,b"], ["a:x=1,y=2", "b"]),
        (["hydra:steps=4,growth=expand-rerank-4.6-0.02"],) * 2,
        (["a:x=1, y = 2 ,z-w=3,b:q=4,r=5"], ["a:x=1,y = 2,z-w=3", "b:q=4,r=5"]),
        (["graft:floor=0.3+a+b:x=1,y=2,c"], ["graft:floor=0.3+a+b:x=1,y=2", "c"]),
        (["a:x=1,y=2>b:z=3,c"], ["a:x=1,y=2>b:z=3", "c"]),
        (["choose:seed=1|a:x=1,y=2|b,c"], ["choose:seed=1|a:x=1,y=2|b", "c"]),
        (["a:file=/x=y:z,n=2"], ["a:file=/x=y:z,n=2"]),
        (["a:x=1", "y=2"], ["a:x=1", "y=2"]),  # options do not go over to another list
        (["a,y=2"], ["a", "y=2"]),  # nor to a name that has none
    ],
)
def test_lists_are_split_between_drafters_and_not_inside(texts: list[str], names: Any) -> None:
    assert o.drafter_names(texts, "--drafters") == names


keys = st.from_regex(r"[a-z][a-z_-]{0,5}", fullmatch=True)
values = st.from_regex(r"[a-z0-9./-]{1,6}", fullmatch=True)
drafters = st.builds(
    lambda name, options: ":".join(
        filter(None, (name, ",".join(f"{key}={value}" for key, value in options)))
    ),
    keys,
    st.lists(st.tuples(keys, values), max_size=3),
)


@given(st.lists(drafters, min_size=1, max_size=5, unique=True), st.data())
def test_joined_names_come_apart_again_however_they_were_given(
    names: list[str], data: st.DataObject
) -> None:
    between = range(1, len(names))
    chosen = data.draw(st.sets(st.sampled_from(between)) if between else st.just(set()))
    cuts = [0, *sorted(chosen), len(names)]
    texts = [",".join(names[begin:end]) for begin, end in itertools.pairwise(cuts)]
    assert o.drafter_names(texts, "--drafters") == names


@pytest.mark.parametrize("text", ["", "a,", ",a", "a,,b", " , "])
def test_an_empty_name_is_an_error(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"--drafters .* has an empty name"):
        o.drafter_names(["x", text], "--drafters")


def test_a_name_given_twice_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="--drafters names a:x=1,y=2 twice"):
        o.drafter_names(["a:x=1,y=2", "b,a:x=1,y=2"], "--drafters")


# Blocks


def test_a_block_s_fields_are_options_in_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[Any, ...]] = []

    @o.spread_options
    def command(
        text: Annotated[str, typer.Argument()],
        *,
        place: o.ModelOptions,
        more: Annotated[int, typer.Option()] = 3,
        room: o.ResourceOptions,
    ) -> None:
        """What it does."""
        seen.append((text, place, more, room))

    assert list(inspect.signature(command).parameters) == [
        *("text", "model", "runtime", "device", "precision", "denoiser"),
        *("more", "threads", "max_context", "kv_precision"),
    ]
    app = typer.Typer()
    app.command()(command)
    app(["hello", "--device", "cuda", "--threads", "2"], standalone_mode=False)
    app(["hi", "--more", "5"], standalone_mode=False)
    assert seen == [
        ("hello", o.ModelOptions(device="cuda"), 3, o.ResourceOptions(threads=2)),
        ("hi", o.ModelOptions(), 5, o.ResourceOptions()),
    ]
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
