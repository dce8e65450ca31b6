"""How a family writes calls and reasoning, found from its chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from paceline.models.calls import OBJECT, PYTHON, CallForm, Notation
from paceline.models.template import reasoning_tags
from paceline.models.text import Tokenizer
from paceline.serving.answers.call import (
    Reader,
    element_arguments,
    marked_arguments,
    pair_arguments,
    python_arguments,
)


@dataclass(frozen=True, slots=True)
class Style:
    """Text around calls and around reasoning.

    Attributes:
        begin: marker before one call or a list of calls.
        end: marker after it; empty if there is none.
        before: text up to a call, as the template writes it.
        after: text behind a call, as the template writes it.
        between: text between two calls, as the template writes it; None closes and opens again.
        form: how a call is written.
        read: reads its arguments where they are no JSON.
        think: opening and closing tag of reasoning.
        turn: text between reasoning and what follows it.
        said: text before an answer that calls nothing, where an answer is messages in channels.
    """

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    before: str = "<tool_call>\n"
    after: str = "\n</tool_call>"
    between: str | None = None
    form: CallForm = OBJECT
    read: Reader | None = None
    think: tuple[str, str] | None = None
    turn: str = ""
    said: str = ""

    def inside(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends with the opening tag, so that answers reason."""
        return self.think is not None and prompt.rstrip().endswith(self.think[0])

    def shown_tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Ids of the special tokens in these texts: see `SamplingParams.shown_tokens`."""
        form = self.form
        quote = form.notation.quote if form.notation else ""
        texts = (self.begin, self.end, self.before, self.after, self.turn, self.said, quote)
        texts += (form.head, form.mark, form.neck, form.tail, *(self.think or ()))
        spelled = "\n".join(texts)
        return tuple(i for text, i in tokenizer.special_ids.items() if text in spelled)


PYTHON_TAG = "<|python_tag|>"
HERMES = Style()
LLAMA = Style(PYTHON_TAG, "", "", "", form=OBJECT._replace(neck='", "parameters": '))
BARE = Style("", "", "", "")  # a call is the whole answer
# Forms of their own, by family. Of Qwen3-Coder and after, Nemotron 3:
_PARAMETERS = Notation("<parameter=", ">\n", "\n</parameter>\n")
_PARAMETERS = _PARAMETERS._replace(stops=("</parameter>", "<parameter=", "</function>"))
ELEMENTS = replace(
    HERMES,
    form=CallForm("<function=", ">\n", "</function>", _PARAMETERS),
    read=element_arguments,
)
# Of GLM, and since 4.7 without line breaks:
_PAIRS = Notation("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")
_PAIRS = _PAIRS._replace(stops=("</arg_value>", "</tool_call>"))
_TIGHT = _PAIRS._replace(value="</arg_key><arg_value>", close="</arg_value>")
GLM = Style(
    before="<tool_call>",
    after="</tool_call>",
    form=CallForm(neck="\n", notation=_PAIRS),
    read=pair_arguments,
)
TIGHT_GLM = replace(GLM, form=CallForm(notation=_TIGHT), between="</tool_call><tool_call>")
LFM2 = Style(
    "<|tool_call_start|>",
    "<|tool_call_end|>",
    before="<|tool_call_start|>[",
    after="]<|tool_call_end|>",
    between=", ",
    form=PYTHON,
    read=python_arguments,
)
GEMMA4 = Style(
    "<|tool_call>",
    "<tool_call|>",
    before="<|tool_call>",
    after="<tool_call|>",
    between="<tool_call|><|tool_call>",
    form=CallForm("call:", "{", "}", Notation(value=":", comma=",", quote='<|"|>')),
    read=marked_arguments,
)
MINISTRAL3 = Style("[TOOL_CALLS]", "", "[TOOL_CALLS]", "", "[TOOL_CALLS]", CallForm(neck="[ARGS]"))
# Of Mistral Small 3.2, Magistral and Devstral of 2025:
MISTRAL_IDS = replace(MINISTRAL3, form=CallForm(neck="[ARGS]", mark="[CALL_ID]"))
# gpt-oss:
HARMONY = Style(
    begin="",
    end="",
    before="<|channel|>commentary to=functions.",
    after="",
    form=CallForm(neck=" <|constrain|>json<|message|>"),
    think=("<|channel|>analysis<|message|>", "<|end|>"),
    turn="<|start|>assistant",
    said="<|channel|>final<|message|>",
)
# What a template shows its model, and how calls are written then: the first that is found.
_STYLES = (
    (r"<\|tool_call>call:", GEMMA4),
    (r"<\|tool_(?:call|list)_start\|>", LFM2),
    ("</arg_key><arg_value>", TIGHT_GLM),
    ("<arg_key>", GLM),
    ("<function=", ELEMENTS),
    (r"<(?:\w+:)?tool_call>", HERMES),
    (r"\[CALL_ID\]", MISTRAL_IDS),
    (r"\[ARGS\]", MINISTRAL3),
    (r"\[TOOL_CALLS\] \[", Style("[TOOL_CALLS]", "", "[TOOL_CALLS] [", "]", ", ")),
    (r"\[TOOL_CALLS\]", Style("[TOOL_CALLS]", "", "[TOOL_CALLS][", "]", ", ")),
    (r"<\|tool_call\|>", Style("<|tool_call|>", "", "<|tool_call|>[", "]", ", ")),
    ("```tool_code", Style("```tool_code", "```", "```tool_code\n", "\n```")),
    ("```tool_call", Style("```tool_call", "```", "```tool_call\n", "\n```")),
    (r"<\|python_tag\|>", LLAMA),
    ("", BARE),
)


def find_style(template: str | None) -> Style:
    """Return the style that a chat template shows its model.

    Models whose template reads no tools get HERMES, which `messages.describe_tools` teaches them.
    """
    template = template or ""
    if "<|channel|>analysis" in template:
        return HARMONY
    style = HERMES
    if re.search(r"\btools\b", template):
        style = next(each for shown, each in _STYLES if re.search(shown, template))
    tag = re.search(r"<(\w+:tool_call)>", template)
    if tag is not None and style in (HERMES, ELEMENTS):
        begin, end = tag[0], f"</{tag[1]}>"
        style = replace(style, begin=begin, end=end, before=f"{begin}\n", after=f"\n{end}")
    return replace(style, think=reasoning_tags(template))
