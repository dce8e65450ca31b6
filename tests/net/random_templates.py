"""Random chat templates and messages, and what jinja2 makes of them as transformers sets it up."""

from __future__ import annotations

import json
import random
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

OWN = ("<|im_start|>", "<|im_end|>")  # tokens that templates write
ASKED = "<|endoftext|>"  # a token that templates ask for and never write
# What stands for tokens of the template in the judge's second rendering: as long, and no token.
HIDDEN = {token: token.replace("i", "!", 1) for token in OWN}
_WORDS = [
    *("", " ", "a", "ab", "hi", "Hello there", "  padded ", "x\ny\n", "日本", "e\u0301🙂", "ẞß"),
    *(*OWN, ASKED, "<|im_", "end|>", "<|", "|>", "start|>", "IM_END|>", "<|IM_END|>"),
    *("<think>", "</think>", "\n\nAnswer", "%s", "{{ x }}", "{% if %}", "a,b,c", '"', "\\", "\x7f"),
]
_ROLES = ("system", "user", "assistant", "tool")


def environment() -> ImmutableSandboxedEnvironment:
    out = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )

    def tojson(x: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent)

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    out.filters["tojson"] = tojson
    out.globals["raise_exception"] = refuse
    out.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return out


class Writer:
    """Writes a template and its messages by a seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self._names = ["m.content", "m.role", "m['content']"]
        self._depth = 0

    def messages(self) -> list[dict[str, Any]]:
        return [self._message() for _ in range(self.rng.randrange(1, 5))]

    def _text(self) -> str:
        if self.rng.random() < 0.1:
            return f"<think>\n{self._words()}</think>\n\n{self._words()}"
        return self._words()

    def _words(self) -> str:
        return "".join(self.rng.choices(_WORDS, k=self.rng.randrange(5)))

    def _message(self) -> dict[str, Any]:
        out: dict[str, Any] = {"role": self.rng.choice(_ROLES), "content": self._text()}
        if out["role"] == "assistant" and self.rng.random() < 0.4:
            out["tool_calls"] = [
                {"function": {"name": self._words(), "arguments": {self._words(): self._words()}}}
            ]
        if self.rng.random() < 0.1:
            out["reasoning_content"] = self._text()
        return out

    def template(self) -> str:
        out = self.rng.choice(["", "{{ bos_token }}", "{% set ns = namespace(seen='', n=0) %}"])
        if "ns" not in out:
            out += "{% set ns = namespace(seen='<|im_end|>', n=1) %}"
        out += "{% macro wrap(x, y='q') %}" + self._own() + "{{ x }}{{ y | trim }}{% endmacro %}"
        out += "{% for m in messages %}" + "".join(self._part() for _ in range(4))
        out += self.rng.choice(["", "{{ ns.seen }}", "{% if loop.last %}{{ ns.n }}{% endif %}"])
        return out + "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

    def _own(self) -> str:
        return self.rng.choice([*OWN, "\n", "text ", "", "<|", "|>"])

    def _literal(self) -> str:
        return self.rng.choice(["'<|im_start|>'", "'<|im_end|>\\n'", "'a'", "' '", "''", "'<|im_'"])

    def _asked(self) -> str:
        found = ["'</think>'", f"'{ASKED}'", "'a'", "' '", "'ab'", "'\\n'", "','", "'|'", "'>'"]
        return self.rng.choice(found)

    def _value(self) -> str:
        self._depth += 1
        try:
            if self._depth > 4 or self.rng.random() < 0.3:
                return self.rng.choice([*self._names, *self._names, self._literal()])
            return self._made()
        finally:
            self._depth -= 1

    def _made(self) -> str:
        rng, x = self.rng, self._value
        integer = rng.randrange(-3, 9)
        return rng.choice(
            [
                lambda: f"({x()} + {x()})",
                lambda: f"({x()} ~ {x()} ~ loop.index)",
                lambda: f"{x()}.split({self._asked()})[-1]",
                lambda: f"{x()}.split({self._asked()}, 1)[0]",
                lambda: f"({x()}.rsplit({self._asked()}, 1) | last)",
                lambda: f"({x()}.split() | join({self._literal()}))",
                lambda: f"({x()}.splitlines() | join('<|im_end|>'))",
                lambda: f"{x()}.partition({self._asked()})[2]",
                lambda: f"({x()} | trim)",
                lambda: f"{x()}.strip('\\n')",
                lambda: f"{x()}.lstrip('<|')",
                lambda: f"{x()}.rstrip()",
                lambda: f"{x()}[{integer}:]",
                lambda: f"{x()}[:{integer}]",
                lambda: f"{x()}[::-1][::-1]",
                lambda: f"({x()} | reverse | reverse)",
                lambda: f"({x()} | replace({self._asked()}, {self._literal()}))",
                lambda: f"{x()}.replace('_', '')",
                lambda: f"({x()} | upper | lower)",
                lambda: f"({x()} | title)",
                lambda: f"({x()} | capitalize)",
                lambda: f"({x()} | string | default('none'))",
                lambda: f"({x()} | tojson)",
                lambda: f"(m | tojson(indent={rng.choice(['none', '2'])}))",
                lambda: f"([{x()}, {self._literal()}] | tojson(ensure_ascii=true))",
                lambda: f"([{x()}, {x()}] | join)",
                lambda: f"({x()} | list | join('-'))",
                lambda: f"wrap({x()})",
                lambda: f"wrap({x()}, y={self._literal()})",
                lambda: f"({x()} if {self._test()} else {x()})",
                lambda: f"({x()} or {self._literal()})",
                lambda: f"({x()} * {rng.randrange(3)})",
                lambda: f"({x()} | length | string)",
                lambda: f"({x()} | first | default('', true))",
                lambda: f"('%s' | format({x()}))",
                lambda: f"('[%s]' % {x()})",
                lambda: f"'{{}}'.format({x()})",
                lambda: f"({x()} | indent(2))",
                lambda: f"{x()}.removeprefix('a').removesuffix('|>')",
                lambda: "(messages | map(attribute='role') | join('<|im_end|>'))",
                lambda: "(messages | selectattr('role', 'equalto', 'user') | list | length)",
                lambda: f"({x()} | escape | string)",
            ]
        )()  # type: ignore[no-untyped-call]

    def _test(self) -> str:
        rng, x = self.rng, self._value
        return rng.choice(
            [
                lambda: f"{x()} == {x()}",
                lambda: f"{self._asked()} in {x()}",
                lambda: f"{self._asked()} not in m.content",
                lambda: f"{x()}.endswith({self._asked()})",
                lambda: f"m.content.startswith({self._asked()})",
                lambda: f"{x()} | length > {rng.randrange(12)}",
                lambda: "m.role in ['user', 'tool']",
                lambda: "m.role == 'assistant' and m.tool_calls",
                lambda: "m.reasoning_content is defined",
                lambda: f"{x()} is string",
                lambda: f"{x()} is lower",
                lambda: f"{x()} < {x()}",
                lambda: f"{x()}.find({self._asked()}) > 2",
                lambda: f"{x()}.count('a') is odd",
                lambda: f"loop.first or not ({x()})",
                lambda: "m.content.isdigit()",
            ]
        )()

    def _part(self) -> str:
        rng = self.rng
        self._depth += 1
        try:
            kind = rng.randrange(9 if self._depth < 3 else 3)
            if kind == 0:
                return self._own()
            if kind < 3:
                return "{{" + rng.choice(["-", ""]) + f" {self._value()} " + "}}"
            if kind == 3:
                other = "{% else %}" + self._part() if rng.random() < 0.5 else ""
                return f"{{% if {self._test()} %}}\n{self._part()}{other}{{% endif %}}\n"
            if kind == 4:
                return f"{{% set v = {self._value()} %}}{{{{ v }}}}"
            if kind == 5:
                return (
                    f"{{% set b %}}{self._part()}{{{{ m.role }}}}{{% endset %}}{{{{ b | trim }}}}"
                )
            if kind == 6:
                grow = rng.choice([f"ns.seen + {self._value()}", self._value()])
                return f"{{% set ns.seen = {grow} %}}{{% set ns.n = ns.n + 1 %}}"
            if kind == 7:
                body = self._part()
                each = "{{ c.function.name }}{{ c.function.arguments | tojson }}"
                return f"{{% for c in m.tool_calls or [] %}}{each}{body}{{% endfor %}}"
            return f"{{% filter {rng.choice(['trim', 'upper'])} %}}{self._part()}{{% endfilter %}}"
        finally:
            self._depth -= 1


def judged(template: str, messages: list[dict[str, Any]]) -> tuple[str, list[str] | None] | None:
    """Return jinja2's text and the special tokens of the template in it; None if it refuses.

    The tokens are None where the template asks about its own, which cannot be told apart then.
    """
    given = {"messages": messages, "add_generation_prompt": True, "tools": None}
    hidden = template
    for token, stand_in in HIDDEN.items():
        hidden = hidden.replace(token, stand_in)
    try:
        text = environment().from_string(template).render(**given, bos_token=OWN[0])
        shown = environment().from_string(hidden).render(**given, bos_token=HIDDEN[OWN[0]])
    except Exception:
        return None
    back = {stand_in: token for token, stand_in in HIDDEN.items()}
    found: list[tuple[int, str]] = []
    for stand_in, token in back.items():
        at = shown.find(stand_in)
        while at >= 0:
            found.append((at, token))
            at = shown.find(stand_in, at + 1)
    for stand_in, token in back.items():
        shown = shown.replace(stand_in, token)
    if shown != text:
        return text, None  # what is asked about a token of the template shows in the text
    return text, [token for _, token in sorted(found)]
