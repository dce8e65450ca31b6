"""Random chat templates and messages, and what jinja2 makes of them as transformers sets it up.

`python -m tests.net.random_templates 2000` tries so many seeds and prints what was seen.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.errors import PromptError
from paceline.models.text import Tokenizer

# Tokens that templates write, by family: what begins a turn, and what ends one.
FAMILIES = (
    ("<|im_start|>", "<|im_end|>"),
    ("<|start_header_id|>", "<|eot_id|>"),
    ("[INST]", "[/INST]"),
    ("<start_of_turn>", "<end_of_turn>"),
    ("<｜User｜>", "<｜end▁of▁sentence｜>"),  # noqa: RUF001
    ("<s>", "</s>"),
    ("<|start_of_role|>", "<|end_of_text|>"),
)
ASKED = "<|endoftext|>"  # a token that templates ask for and never write
ROLES = ("system", "user", "assistant", "tool")
# Tokens that templates write around a role.
TURNS = {role: f"<|{role}|>" for role in ROLES}
AROUND = "'<|' + m.role + '|>'"
TOKENS = sorted({ASKED, *TURNS.values(), *(token for family in FAMILIES for token in family)})
_WORDS = [
    "",
    " ",
    "a",
    "ab",
    "hi",
    "Hello there",
    "  padded ",
    "x\ny\n",
    "日本",
    "e\u0301🙂",
    "ẞßŉİΣς",
    "<|im_",
    "end|>",
    "<|",
    "|>",
    "start|>",
    "IM_END|>",
    "<|IM_END|>",
    "<start_of",
    "[/",
    "INST]",
    "<think>",
    "</think>",
    "\n\nAnswer",
    "%s",
    "%(a)s",
    "{{ x }}",
    "{% if %}",
    "{0}",
    "a,b,c",
    '"',
    "\\",
    "\x7f",
    "\r\n",
    "\x0b\x1c\x85\u2028",
    "\u200d\u202e\ufeff",
    "\x00",
    "\ue000",
    "&<'",
]
_FIELDS = {"name", "content", "text", "tool_calls", "tool_call_id", "reasoning_content"}
_FIELDS |= {"thinking", "function", "arguments"}
_LISTS = ("messages", "messages[1:]", "messages[::-1]", "messages[:2]")


class _Body(Extension):
    # As transformers has it: the body of a block that prints what it is.
    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> nodes.CallBlock:
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body, lineno=line)

    def _same(self, caller: Any) -> Any:
        return caller()


def environment() -> ImmutableSandboxedEnvironment:
    out = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Body]
    )

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(x: Any, ensure_ascii: bool = False, **options: Any) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, **options)

    out.filters["tojson"] = tojson
    out.globals["raise_exception"] = refuse
    out.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return out


class Writer:
    """Writes a template and what it is given, by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.own = self.rng.choice(FAMILIES)
        self._words = [*_WORDS, *self.own, *self.rng.sample(TOKENS, 3)]
        self._depth = 0

    def given(self, template: str) -> dict[str, Any]:
        rng = self.rng
        out: dict[str, Any] = {"messages": [self._message() for _ in range(rng.randrange(1, 6))]}
        if "tools" in template:
            out["tools"] = [self._tool() for _ in range(rng.randrange(3))] or None
        out["thinks"] = rng.choice([True, False, self._text()])
        out["add_generation_prompt"] = rng.random() < 0.7
        return out

    def template(self) -> str:
        pick, begin = self.rng.choice, self.own[0]
        out = pick(["", "{{ bos_token }}", "{#- a comment -#}\n", "  {%- set z = 1 %}\n"])
        out += (
            f"{{% set ns = namespace(seen={pick([repr(self.own[1]), repr('')])}, n=0, all=[]) %}}"
        )
        out += "{% macro wrap(x, y='q') %}" + self._own() + "{{ x }}{{ y | trim }}{% endmacro %}"
        out += "{% macro around() -%}\n (" + self._own() + "{{ caller() }})\n{%- endmacro %}"
        if self.rng.random() < 0.3:
            tool = pick(
                ["t | tojson", "t | tojson(indent=2)", "t", "t.function.name", "t | string"]
            )
            each = f"{self._own()}{{{{ {tool} }}}}{{{{ loop.index ~ '/' ~ loop.length }}}}"
            out += f"{{% for t in tools or [] %}}{each}{{% else %}}none{{% endfor %}}"
        only = pick(["", "", "", " if m.role != 'tool'", " if m.content"])
        out += f"{{% for m in {pick([*_LISTS, 'messages'])}{only} %}}"
        out += "".join(self._part() for _ in range(4))
        out += pick(["", "{{ ns.seen }}", "{% if loop.last %}{{ ns.n }}{% endif %}"])
        out += pick(["{% endfor %}", "{%- endfor -%}\n", "{% else %}-{% endfor %}\n"])
        out += pick(["", "{{ ns.all | join(' ') }}", f"{{{{ {self._whole()} }}}}"])
        return out + f"{{% if add_generation_prompt %}}{begin}assistant\n{{% endif %}}"

    # What is given:

    def _text(self) -> str:
        if self.rng.random() < 0.1:
            return f"<think>\n{self._some()}</think>\n\n{self._some()}"
        return self._some()

    def _some(self) -> str:
        return "".join(self.rng.choices(self._words, k=self.rng.randrange(5)))

    def _object(self, depth: int = 0) -> Any:
        kind = self.rng.randrange(4 if depth > 2 else 6)
        if kind < 2:
            return self._some()
        if kind < 4:
            return self.rng.choice([1, -2.5, 1e22, True, None, 0, 2**60])
        inside = [self._object(depth + 1) for _ in range(self.rng.randrange(3))]
        return inside if kind == 4 else {self._some(): each for each in inside}

    def _tool(self) -> dict[str, Any]:
        properties = {self._some(): {"type": "string", "description": self._some()}}
        parameters = {"type": "object", "properties": properties, "default": self._object()}
        function = {"name": self._some(), "description": self._text(), "parameters": parameters}
        return {"type": "function", "function": function}

    def _message(self) -> dict[str, Any]:
        rng = self.rng
        out: dict[str, Any] = {"role": rng.choice(ROLES), "content": self._text()}
        if out["role"] == "assistant" and rng.random() < 0.4:
            arguments: Any = {self._some(): self._object() for _ in range(rng.randrange(3))}
            if rng.random() < 0.5:
                arguments = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
            called = {"name": self._some(), "arguments": arguments}
            out["tool_calls"] = [{"type": "function", "id": self._some(), "function": called}]
        for name in ("reasoning_content", "name", "tool_call_id", "thinking"):
            if rng.random() < 0.1:
                out[name] = self._text()
        if rng.random() < 0.15:
            parts = [self._text() for _ in range(rng.randrange(3))]
            out["content"] = [{"type": "text", "text": each} for each in parts]
        return out

    # The template:

    def _own(self) -> str:
        return self.rng.choice([*self.own, "\n", "text ", "", "<|", "|>", "  ", "{# no #}"])

    def _literal(self) -> str:
        begin, end = self.own
        return self.rng.choice(
            [f"'{begin}'", f"'{end}\\n'", "'a'", "' '", "''", "'<|im_'", '"q\'"', AROUND]
        )

    def _asked(self) -> str:
        found = ["'</think>'", f"'{ASKED}'", "'a'", "' '", "'ab'", "'\\n'", "','", "'|'", "'>'"]
        return self.rng.choice(found)

    def _told(self) -> str:
        names = ["m.content", "m.role", "m['content']", "m.name", "m.get('thinking', '')", "thinks"]
        return self.rng.choice([*names, "m.content", "m.content", "(m.reasoning_content or '')"])

    def _value(self) -> str:
        self._depth += 1
        try:
            if self._depth > 4 or self.rng.random() < 0.3:
                return self.rng.choice([self._told(), self._told(), self._literal()])
            return self._made()
        finally:
            self._depth -= 1

    def _made(self) -> str:
        rng, x, asked, own = self.rng, self._value, self._asked, self._literal
        integer = rng.randrange(-3, 9)
        return rng.choice(
            [
                lambda: f"({x()} + {x()})",
                lambda: f"({x()} ~ {x()} ~ loop.index)",
                lambda: f"('<|' ~ {x()} ~ '|>')",
                lambda: f"{x()}.split({asked()})[-1]",
                lambda: f"{x()}.split({asked()}, 1)[0]",
                lambda: f"({x()}.rsplit({asked()}, 1) | last)",
                lambda: f"({x()}.rsplit(none, 1) | first)",
                lambda: f"({x()}.split() | join({own()}))",
                lambda: f"({x()}.splitlines({rng.choice(['', 'true'])}) | join({own()}))",
                lambda: f"{x()}.partition({asked()})[2]",
                lambda: f"{x()}.rpartition({asked()})[0]",
                lambda: f"({x()} | {rng.choice(['trim', 'string', 'title', 'capitalize'])})",
                lambda: f"{x()}.strip('\\n')",
                lambda: f"{x()}.lstrip('<|')",
                lambda: f"{x()}.rstrip()",
                lambda: f"{x()}[{integer}:]",
                lambda: f"{x()}[:{integer}]",
                lambda: f"{x()}[::-1][::-1]",
                lambda: f"({x()} | reverse | reverse)",
                lambda: f"({x()} | replace({asked()}, {own()}))",
                lambda: f"{x()}.replace({asked()}, '', {abs(integer)})",
                lambda: f"{x()}.replace('', '-')",
                lambda: f"({x()} | upper | lower)",
                lambda: f"{x()}.{rng.choice(['swapcase().swapcase', 'casefold', 'lower'])}()",
                lambda: f"({x()} | default({own()}, true))",
                lambda: f"({x()} | tojson)",
                lambda: f"({self._whole()} | tojson(indent={rng.choice(['none', '2'])}))",
                lambda: f"([{self._told()}, 'é'] | tojson(ensure_ascii=true))",
                lambda: f"([{x()}, {own()}] | tojson)",
                lambda: f"({{'a': {x()}, {own()}: m}} | tojson(separators=(',', ':')))",
                lambda: f"({{'b': {x()}, 'a': [1.5, none, {x()}]}} | tojson(sort_keys=true))",
                lambda: f"([{x()}, {x()}] | join)",
                lambda: f"({x()} | list | join({own()}))",
                lambda: f"wrap({x()})",
                lambda: f"wrap({x()}, y={own()})",
                lambda: f"({x()} if {self._test()} else {x()})",
                lambda: f"({x()} or {own()})",
                lambda: f"({x()} * {rng.randrange(3)})",
                lambda: f"({x()} | length | string)",
                lambda: f"({x()} | first | default('', true))",
                lambda: f"('{self._own_in()}%s' | format({x()}))",
                lambda: f"('[%s]%%{self._own_in()}%5s|%-4s' % ({x()}, {x()}, {x()}))",
                lambda: f"('%(a)s%(b).3s{self._own_in()}' % {{'a': {x()}, 'b': {x()}}})",
                lambda: f"'{{}}{self._own_in()}{{}}'.format({x()}, loop.index)",
                lambda: f"'{{1}}{{0!r}}{{a:>9}}'.format({x()}, {own()}, a={x()})",
                lambda: f"({x()} | indent({rng.choice(['2', '2, true', '1, false, true'])}))",
                lambda: f"{x()}.removeprefix('a').removesuffix('|>')",
                lambda: f"({x()} | safe)",
                lambda: f"({x()} | escape)",
                lambda: f"({self._whole()})",
                lambda: (
                    f"({self._told()} | {rng.choice(['center(9)', 'truncate(7)', 'wordwrap(5)'])})"
                ),
                lambda: f"({self._told()} | {rng.choice(['urlencode', 'striptags', 'wordcount'])})",
                lambda: f"{self._told()}.{rng.choice(['zfill(4)', 'ljust(6)', 'expandtabs(2)'])}",
                lambda: f"({self._told()} | string).encode('utf-8') | string",
                lambda: f"loop.cycle({own()}, {x()})",
                lambda: "(loop.previtem or m).content ~ (loop.nextitem or m).role",
                lambda: "(loop.index0 ~ loop.revindex ~ loop.length ~ loop.depth)",
                lambda: f"({x()} | int ~ {x()} | float)",
                lambda: f"'{{}}'.format(m.items() if {self._test()} else m.values())",
                lambda: "('%s' % m.items())",
            ]
        )()  # type: ignore[no-untyped-call]

    def _own_in(self) -> str:
        return self.rng.choice([*self.own, "", "-"])

    def _whole(self) -> str:
        # Of all messages.
        rng = self.rng
        return rng.choice(
            [
                lambda: f"(messages | map(attribute='role') | join({self._literal()}))",
                lambda: "(messages | selectattr('role', 'equalto', 'user') | list)",
                lambda: f"(messages | map('string') | join({self._literal()}))",
                lambda: "(messages | map(attribute='name', default='') | list)",
                lambda: "(messages | rejectattr('role', 'in', ['tool']) | list | length)",
                lambda: "(messages | map(attribute='role') | unique | sort | join)",
                lambda: "(messages[0] | dictsort)",
                lambda: "messages[-1]",
                lambda: "messages[0].content",
                lambda: "(messages[0].items() | list)",
                lambda: "(messages | groupby('role') | map('first') | join(','))",
                lambda: "(messages | batch(2, {}) | first | length)",
                lambda: "(messages | map(attribute='role') | max)",
                lambda: (
                    f"(([{self._literal()}] + (messages | map(attribute='role') | list)) | last)"
                ),
                lambda: "strftime_now('%Y')",
                lambda: "(messages | length)",
            ]
        )()

    def _test(self) -> str:
        rng, x = self.rng, self._value
        return rng.choice(
            [
                lambda: f"{x()} == {x()}",
                lambda: f"{self._asked()} in {x()}",
                lambda: f"{self._asked()} not in m.content",
                lambda: f"{x()}.endswith({self._asked()})",
                lambda: f"m.content.startswith(({self._asked()}, 'x'))",
                lambda: f"{x()} | length > {rng.randrange(12)}",
                lambda: "m.role in ['user', 'tool']",
                lambda: "m.role == 'assistant' and m.tool_calls",
                lambda: "m.reasoning_content is defined",
                lambda: "m.name is not none and m.name is defined",
                lambda: (
                    f"{x()} is {rng.choice(['string', 'lower', 'upper', 'iterable', 'mapping'])}"
                ),
                lambda: f"{x()} < {x()}",
                lambda: f"{x()}.find({self._asked()}) > 2",
                lambda: f"{x()}.count('a') is {rng.choice(['odd', 'even', 'divisibleby(3)'])}",
                lambda: f"loop.first or not ({x()})",
                lambda: f"m.content.{rng.choice(['isdigit', 'isalpha', 'isspace', 'islower'])}()",
                lambda: "loop.changed(m.role)",
                lambda: "thinks is true or thinks is false",
                lambda: "loop.nextitem is defined and loop.nextitem.role == 'tool'",
                lambda: "messages[-1].role != 'user'",
            ]
        )()

    def _part(self) -> str:
        rng = self.rng
        self._depth += 1
        try:
            return self._made_part(rng.randrange(16 if self._depth < 3 else 4))
        finally:
            self._depth -= 1

    def _made_part(self, kind: int) -> str:
        pick = self.rng.choice
        begin, end = pick(
            [("{%", "%}"), ("{%-", "%}"), ("{%", "-%}"), ("{%+", "%}"), ("\n  {%", "%}\n")]
        )
        if kind == 0:
            return self._own()
        if kind < 4:
            return "{{" + pick(["-", ""]) + f" {self._value()} " + pick(["-", ""]) + "}}"
        if kind == 4:
            other = pick(["", f"{begin} else {end}{self._part()}"])
            other = pick([other, f"{begin} elif {self._test()} {end}x{other}"])
            return f"{begin} if {self._test()} {end}\n{self._part()}{other}{{% endif %}}\n"
        if kind == 5:
            return f"{begin} set v = {self._value()} {end}{{{{ v }}}}"
        if kind == 6:
            return (
                f"{begin} set b {end}{self._part()}{{{{ m.role }}}}{{% endset %}}{{{{ b | trim }}}}"
            )
        if kind == 7:
            grow = pick([f"ns.seen + {self._value()}", self._value()])
            return f"{begin} set ns.seen = {grow} {end}{{% set ns.n = ns.n + 1 %}}"
        if kind == 8:
            each = pick(
                [
                    "{{ c.function.name }}{{ c.function.arguments | tojson }}",
                    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}",
                    "{% for k in c.function.arguments | dictsort %}{{ k[0] ~ k[1] }};{% endfor %}",
                    "{{ c | tojson }}{{ c.id }}",
                ]
            )
            return f"{begin} for c in m.tool_calls or [] {end}{each}{self._part()}{{% endfor %}}"
        if kind == 9:
            name = pick(["trim", "upper", "indent"])
            return f"{begin} filter {name} {end}{self._part()}{{% endfilter %}}"
        if kind == 10:
            return f"{begin} call around() {end}{self._part()}{{% endcall %}}"
        if kind == 11:
            inside = f"{{% set v = 1 %}}{self._part()}"
            return f"{begin} generation {end}{inside}{{% endgeneration %}}{{{{ v }}}}"
        if kind == 12:
            return f"{begin} with w = {self._value()} {end}{{{{ w }}}}{self._part()}{{% endwith %}}"
        if kind == 13:
            return f"{{% if {self._test()} %}}{{% {pick(['break', 'continue'])} %}}{{% endif %}}"
        if kind == 14:
            no = f"{{{{ raise_exception({self._value()}) }}}}"
            return pick(
                [
                    "{% raw %}{{ x }}{% endraw %}",
                    f"{{% if m.content | length > 40 %}}{no}{{% endif %}}",
                    f"{{% set ns.all = ns.all + [{self._value()}] %}}",
                    "{% for l in m.content.split('\\n') %}{{ loop.index }}{{ l }}{% endfor %}",
                ]
            )
        return "{% for p in m.content if p.text %}{{ p.text | trim }},{% endfor %}"


# What stands for characters of messages in a second rendering, so that they spell no token.
_OTHER = str.maketrans("<|>[]_/｜▁", "^$~`@#?＄＃")  # noqa: RUF001
_TOKEN = re.compile("|".join(map(re.escape, sorted(TOKENS, key=len, reverse=True))))


def _altered(value: Any) -> Any:
    if isinstance(value, str):
        return value.translate(_OTHER)
    if isinstance(value, dict):
        # Names of fields and roles are what a template knows them by.
        known = {"role", "type", "properties", "parameters", *_FIELDS}
        return {
            key if key in known else _altered(key): each if key == "role" else _altered(each)
            for key, each in value.items()
        }
    return [_altered(each) for each in value] if isinstance(value, list) else value


def judged(
    template: str, own: tuple[str, str], given: dict[str, Any]
) -> tuple[str, Counter[str] | None] | None:
    """Return jinja2's text and the special tokens of the template in it; None if it refuses.

    The tokens are None where the template asks about characters that messages spell tokens with.
    """
    try:
        made = environment().from_string(template)
        text = made.render(**given, bos_token=own[0])
    except Exception:
        return None
    try:
        other = {name: _altered(each) for name, each in given.items()}
        shown = made.render(**other, bos_token=own[0])
    except Exception:
        return text, None
    alike = zip(shown, text.translate(_OTHER), text, strict=False)
    same = len(shown) == len(text) and all(one in either for one, *either in alike)
    return text, Counter(_TOKEN.findall(shown)) if same else None


def as_told(given: dict[str, Any], takes: str) -> dict[str, Any]:
    """What a template is to see: arguments as objects, reasoning under its names, contents."""
    messages = []
    for message in given["messages"]:
        out = dict(message)
        thought = next((out[n] for n in ("reasoning_content", "thinking") if n in out), None)
        if thought is not None:
            out = {**out, "thinking": out.get("thinking", thought), "reasoning_content": thought}
        for call in out.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            if isinstance(arguments, str):
                function = {**call["function"], "arguments": json.loads(arguments)}
                out["tool_calls"] = [{**call, "function": function}]
        if isinstance(out["content"], list) and takes == "text":
            out["content"] = "\n".join(part["text"] for part in out["content"])
        if isinstance(out["content"], str) and takes == "parts":
            out["content"] = [{"type": "text", "text": out["content"]}]
        messages.append(out)
    return {**given, "messages": messages}


def core() -> Any:
    out = tiny_tokenizer()
    out.add_special_tokens(TOKENS)
    return out


def tried(seed: int, seen: Counter[str], with_tokens: Any) -> None:
    """Hold what the template of a seed gives against jinja2; AssertionError if it differs."""
    writer = Writer(seed)
    template = writer.template()
    asked = writer.given(template)
    tokenizer = Tokenizer(
        with_tokens, special_tokens={"bos_token": writer.own[0]}, chat_template=template
    )
    try:
        takes = tokenizer._compiled(template).takes
    except PromptError:
        takes = "text"
    given = as_told(asked, takes)
    expected = judged(template, writer.own, given)
    ids, why = [], ""
    try:
        if not tokenizer.reads("tools"):
            asked.pop("tools", None)
        ids = tokenizer.chat(**asked)
    except PromptError as error:
        why = str(error)
    if expected is None:
        assert why, f"{seed}: jinja2 refuses"
        seen["refused"] += 1
        return
    if why:
        # The template drops a system message without a word: another one changes nothing.
        at = int(why.partition("messages[")[2].partition("]")[0])
        assert given["messages"][at]["role"] == "system", (seed, why)
        other = "\x7f" * 7
        parts = [{"type": "text", "text": other}]
        given["messages"][at]["content"] = parts if takes == "parts" else other
        assert (judged(template, writer.own, given) or [""])[0] == expected[0], seed
        seen["dropped"] += 1
        return
    text, own = expected
    seen["rendered"] += 1
    assert tokenizer.decode(ids, skip_special=False) == text, seed
    if own is None:
        seen["of tokens that the template asks about"] += 1
        return
    names = {index: token for token, index in tokenizer.special_ids.items()}
    found = Counter(names[each] for each in ids if each in names)
    assert found == own, (seed, found, own)
    seen["tokens"] += own.total()
    seen["spelled"] += sum(text.count(token) for token in TOKENS) - own.total()


def main() -> None:
    seen: Counter[str] = Counter()
    with_tokens = core()
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    for seed in range(first, first + int(sys.argv[1])):
        try:
            tried(seed, seen, with_tokens)
        except Exception as error:
            seen["differ"] += 1
            print(seed, type(error).__name__, str(error)[:300])
    print(dict(seen))


if __name__ == "__main__":
    main()
