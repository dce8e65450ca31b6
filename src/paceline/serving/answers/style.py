"""How a family writes calls and reasoning, found from its chat template."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from paceline.models.template import reasoning_tags
from paceline.models.text import Tokenizer


@dataclass(frozen=True, slots=True)
class Style:
    """Text around calls and around reasoning.

    Attributes:
        begin: marker before one call or a JSON list of calls.
        end: marker after it; empty if there is none.
        before: text up to a call, as the template writes it.
        after: text behind a call, as the template writes it.
        arguments: key of the arguments, as the template writes it.
        think: opening and closing tag of reasoning.
        elements: calls are XML, `<function=name><parameter=key>value</parameter></function>`.
    """

    begin: str = "<tool_call>"
    end: str = "</tool_call>"
    before: str = "<tool_call>\n"
    after: str = "\n</tool_call>"
    arguments: str = "arguments"
    think: tuple[str, str] | None = None
    elements: bool = False

    def inside(self, prompt: str) -> bool:
        """Return whether a rendered prompt ends with the opening tag, so that answers reason."""
        return self.think is not None and prompt.rstrip().endswith(self.think[0])

    def shown_tokens(self, tokenizer: Tokenizer) -> tuple[int, ...]:
        """Ids of the markers that are special tokens: see `SamplingParams.shown_tokens`."""
        ids = tokenizer.special_ids
        markers = (self.begin, self.end, *(self.think or ()))
        return tuple(ids[marker] for marker in markers if marker in ids)


PYTHON_TAG = "<|python_tag|>"
HERMES = Style()
LLAMA = Style(PYTHON_TAG, "", "", "", "parameters")
BARE = Style("", "", "", "")  # a call is the whole answer


def find_style(template: str | None) -> Style:
    """Return the style that a chat template shows its model.

    Models whose template reads no tools get HERMES, which `messages.describe_tools` teaches them.
    """
    elements = "<function=" in (template or "")
    return replace(_calls(template or ""), think=reasoning_tags(template), elements=elements)


def call_grammar(style: Style) -> tuple[str, str, str, str]:
    """Return what a grammar of one call is made of: text before and after, name and arguments key.

    A marker in these texts that is a special token (`Style.shown_tokens`) must be that token.
    """
    return style.before, style.after, "name", style.arguments


def _calls(template: str) -> Style:
    if not re.search(r"\btools\b", template):
        return HERMES
    tag = re.search(r"<((?:\w+:)?tool_call)>", template)
    if tag is not None:
        begin, end = tag[0], f"</{tag[1]}>"
        return Style(begin, end, f"{begin}\n", f"\n{end}")
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        before = "[TOOL_CALLS] [" if "[TOOL_CALLS] [" in template else "[TOOL_CALLS]["
        return Style("[TOOL_CALLS]", "", before, "]")
    if "<|tool_call|>" in template:
        return Style("<|tool_call|>", "", "<|tool_call|>[", "]")
    fence = re.search(r"```tool_(?:code|call)", template)
    if fence is not None:
        return Style(fence[0], "```", fence[0] + "\n", "\n```")
    return LLAMA if "<|python_tag|>" in template else BARE
