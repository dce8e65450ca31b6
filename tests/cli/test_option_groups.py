"""Options that are declared once, as a dataclass, and taken by several commands."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from inspect import signature
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from paceline.cli.option_groups import grouped

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
    app.command()(grouped(command))
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
    assert list(signature(grouped(make)).parameters) == ["size", "colours", "name"]


def test_it_can_be_called_as_a_function_too(capsys: pytest.CaptureFixture[str]) -> None:
    grouped(draw)("here", size=7)
    assert capsys.readouterr().out == f"here 1 {dataclasses.replace(Shape(), size=7)} 2\n"
    with pytest.raises(TypeError, match="sides"):
        grouped(draw)("here", sides=5)


def test_one_name_twice_is_refused() -> None:
    def twice(*, size: int = 1, shape: Shape) -> None: ...

    with pytest.raises(ValueError, match="size"):
        grouped(twice)
