"""The grammar of names: texts to trees, wrong texts to messages, and back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.expressions import Expression, parse, split_lists
from paceline.errors import InvalidOption


def method(text: str, name: str, **options: str) -> Expression:
    return Expression(text, name, options)


def together(text: str, sign: str, *parts: Expression, **more: Any) -> Expression:
    return Expression(text, sign=sign, parts=parts, **more)


A, B, C, D = (method(each, each) for each in "abcd")

GOOD: list[tuple[str, str, Expression]] = [
    ("drafter", "a", A),
    ("drafter", " a ", A),
    ("drafter", "auto", method("auto", "auto")),
    ("drafter", "a:k=v", method("a:k=v", "a", k="v")),
    ("drafter", "a: k = v , l=1.5", method("a: k = v , l=1.5", "a", k="v", l="1.5")),
    ("drafter", "a:k=", method("a:k=", "a", k="")),
    ("drafter", "a:k=/x=y:z", method("a:k=/x=y:z", "a", k="/x=y:z")),
    ("drafter", "a + b", together("a + b", "+", A, B)),
    ("drafter", "a>b>c", together("a>b>c", ">", A, B, C)),
    (
        "drafter",
        "a+b>c|d:k=v",
        together(
            "a+b>c|d:k=v",
            "|",
            together("a+b>c", ">", together("a+b", "+", A, B), C),
            method("d:k=v", "d", k="v"),
        ),
    ),
    (
        "drafter",
        "graft:floor=0.3+a+b",
        together("graft:floor=0.3+a+b", "+", A, B, name="graft", options={"floor": "0.3"}),
    ),
    ("drafter", "fuse+a", together("fuse+a", "+", A, name="fuse")),
    ("drafter", "a+fuse", together("a+fuse", "+", A, method("fuse", "fuse"))),
    ("drafter", "graft", method("graft", "graft")),
    ("drafter", "graft|a", together("graft|a", "|", method("graft", "graft"), A)),
    (
        "drafter",
        "choose:seed=1|a|b>c",
        together(
            "choose:seed=1|a|b>c",
            "|",
            A,
            together("b>c", ">", B, C),
            name="choose",
            options={"seed": "1"},
        ),
    ),
    ("sampler", " a:k=v > b", together(" a:k=v > b", ">", method("a:k=v", "a", k="v"), B)),
    ("sampler", "a+b|c", method("a+b|c", "a+b|c")),
    ("sampler", "a>", together("a>", ">", A, method("", ""))),  # the registry has no such name
    ("verifier", "a:file=x+y>z|0", method("a:file=x+y>z|0", "a", file="x+y>z|0")),
    ("controller", "a", A),
    ("network", "a:k=v", method("a:k=v", "a", k="v")),
]


@pytest.mark.parametrize(("kind", "text", "tree"), GOOD)
def test_a_text_is_a_tree(kind: str, text: str, tree: Expression) -> None:
    assert parse(text, kind) == tree
    assert hash(parse(text, kind)) == hash(tree)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        *(
            ("drafter", text, f"drafter {part!r} has an empty part: write A{sign}B")
            for text, part, sign in [
                ("", "", "|"),
                (" ", " ", "|"),
                ("|", "|", "|"),
                ("a|", "a|", "|"),
                ("a>", "a>", ">"),
                (">b|c", ">b", ">"),
                ("a++b", "a++b", "+"),
                ("c > a+ | d", "a+", "+"),
            ]
        ),
        *(
            (kind, text, f"{kind} option {entry!r} is no key=value, or is given twice: write {fix}")
            for kind, text, entry, fix in [
                ("drafter", "a+x:", "", "x:key=value,key=value"),
                ("verifier", "x:beta", "beta", "x:key=value,key=value"),
                ("controller", "x:=3", "=3", "x:key=value,key=value"),
                ("loss", "x:beta=1,", "", "x:key=value,key=value"),
                ("sampler", "y>x:beta=1,beta=2", "beta=2", "x:key=value,key=value"),
            ]
        ),
    ],
)
def test_what_is_no_expression_is_refused_in_one_line(kind: str, text: str, says: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        parse(text, kind)
    assert str(caught.value) == says


HEADS = ("blend", "graft", "fuse", "choose")
words = st.from_regex(r"[a-z][a-z0-9-]{0,5}", fullmatch=True).filter(lambda w: w not in HEADS)
options = st.dictionaries(words, st.from_regex(r"[a-z0-9./:=-]{0,6}", fullmatch=True), max_size=3)


def written(name: str, given: dict[str, str]) -> str:
    return name + ":" * bool(given) + ",".join(f"{key}={value}" for key, value in given.items())


methods = st.builds(
    lambda name, given: Expression(written(name, given), name, given), words, options
)


def joined(sign: str, heads: tuple[str, ...], parts: st.SearchStrategy[Expression]) -> Any:
    """Strategy of parts with a sign between them, and of a part alone."""

    def make(name: str, given: dict[str, str], of: list[Expression]) -> Expression:
        given = given if name else {}
        texts = [written(name, given)] * bool(name) + [part.text for part in of]
        if len(texts) == 1:
            return of[0]
        return Expression(sign.join(texts), name, given, sign, tuple(of))

    found = st.lists(parts, min_size=1, max_size=3)
    return st.builds(make, st.sampled_from(("", *heads)), options, found)


merges = joined("+", ("blend", "graft", "fuse"), methods)
drafters = joined("|", ("choose",), joined(">", (), merges))


def nodes(tree: Expression) -> list[Expression]:
    return [tree, *(node for part in tree.parts for node in nodes(part))]


@given(drafters)
def test_a_tree_is_what_its_text_says_and_so_is_each_part(tree: Expression) -> None:
    assert [parse(node.text, "drafter") for node in nodes(tree)] == nodes(tree)
    assert list(tree.methods()) == [node for node in nodes(tree) if not node.parts]


@given(st.lists(methods, min_size=1, max_size=3), st.booleans())
def test_samplers_too(of: list[Expression], spaced: bool) -> None:
    text = (" > " if spaced else ">").join(part.text for part in of)
    assert list(parse(text, "sampler").methods()) == of


@given(st.text("ab:=,+>| ", max_size=20), st.sampled_from(("drafter", "sampler", "verifier")))
def test_any_text_is_a_tree_or_refused(text: str, kind: str) -> None:
    try:
        tree = parse(text, kind)
    except InvalidOption:
        return
    assert parse(tree.text, kind) == tree


# Lists


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
    assert split_lists(texts, "--drafters") == names


@given(
    st.lists(methods.map(lambda each: each.text), min_size=1, max_size=5, unique=True), st.data()
)
def test_joined_names_come_apart_again_however_they_were_given(
    names: list[str], data: st.DataObject
) -> None:
    between = range(1, len(names))
    chosen = data.draw(st.sets(st.sampled_from(between)) if between else st.just(set()))
    cuts = [0, *sorted(chosen), len(names)]
    texts = [",".join(names[begin:end]) for begin, end in itertools.pairwise(cuts)]
    assert split_lists(texts, "--drafters") == names


@pytest.mark.parametrize("text", ["", "a,", ",a", "a,,b", " , "])
def test_an_empty_name_is_an_error(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"--drafters .* has an empty name"):
        split_lists(["x", text], "--drafters")


def test_a_name_given_twice_is_an_error() -> None:
    with pytest.raises(InvalidOption, match="--drafters names a:x=1,y=2 twice"):
        split_lists(["a:x=1,y=2", "b,a:x=1,y=2"], "--drafters")
