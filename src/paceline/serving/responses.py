"""Answers of the Responses API, whole and as its stream of named events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.engine.engine import Event, Prepared
from paceline.serving.answers.parser import Delta
from paceline.serving.http import sse
from paceline.serving.kept import input_items
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer, Choice, chat_choice, chat_logprobs
from paceline.serving.plan import Plan
from paceline.serving.protocol import Body, ResponsesRequest

Json = dict[str, Any]


class ResponseAnswer(Answer):
    object = "response"
    prefix = "resp"
    end = b""

    def __init__(
        self,
        model: ServedModel,
        plan: Plan,
        body: Body,
        id: str,
        accepted: Mapping[int, Counter[int]],
    ) -> None:
        super().__init__(model, plan, body, id, accepted)
        assert isinstance(body, ResponsesRequest)
        self._asked = body
        self._number = 0  # of the next event
        self._items: list[Json] = []
        self._kind = ""  # of the item that is open
        self._held: list[Json] = []  # log-probabilities until there is a message
        self._new: list[Json] = []

    def opening(self) -> list[Json]:
        response = self._response("in_progress")
        return [
            self._event("created", response=response),
            self._event("in_progress", response=response),
        ]

    def feed(self, place: int, event: Event) -> list[Delta]:
        deltas = super().feed(place, event)
        if self.plan.params.logprobs is not None:
            self._held += chat_logprobs(self.model.tokens, event.logprobs)
        new: list[Json] = []
        for delta in deltas:
            if delta.kind != self._kind or delta.name:
                new += self._end() + self._begin(delta)
            new += self._more(delta)
        if self._held and self._kind == "content":
            new += self._more(Delta("content", ""))
        if self.done:
            if not self._items:  # an answer without a word is an empty message
                new += self._begin(Delta("content", ""))
            new += self._end()
        self._new = new
        return deltas

    def chunks(self, place: int, event: Event) -> list[Json]:
        self.feed(place, event)
        return self._new

    def closing(self) -> list[Json]:
        whole = self.whole()
        return [self._event(whole["status"], response=whole)]

    def failing(self, error: Json) -> list[Json]:
        what = error["error"]
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": what["message"]}
        return [self._event("failed", response=response)]

    def encode(self, chunks: Sequence[Json]) -> bytes:
        return sse(chunks, named=True)

    def whole(self) -> Json:
        response = self._response(self._status)
        response["output"] = self._items
        cut = self._status == "incomplete"
        response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
        counts = self.usage()
        reasoned = counts["completion_tokens_details"]["reasoning_tokens"]
        response["usage"] = {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": reasoned},
            "total_tokens": counts["total_tokens"],
        }
        response["metrics"] = self.metrics()
        if response["store"]:
            own = input_items(self._asked.input, self.id)
            self.model.kept.put(response, [*self.plan.before, *own])
        return response

    def _choice(self, prompt: Prepared) -> Choice:
        return chat_choice(self.model, self.plan, prompt, self.id)

    @property
    def _status(self) -> str:
        return "incomplete" if self.choices[0].finish_reason == "length" else "completed"

    # Items of the output: each is begun, gets more, and ends, with the events of all that.

    @property
    def _place(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _begin(self, delta: Delta) -> list[Json]:
        self._kind, index = delta.kind, len(self._items)
        short, type = {
            "content": ("msg", "message"),
            "reasoning": ("rs", "reasoning"),
            "call": ("fc", "function_call"),
        }[delta.kind]
        item: Json = {"id": f"{short}_{self.id}_{index}", "type": type, "status": "in_progress"}
        if delta.kind == "call":
            call = next(c for c in self.choices[0].calls if delta.id in (c["id"], ""))
            shown = call["function"]["name"]
            space, name = self.plan.notes.spaces.get(shown, ("", shown))
            item |= {"call_id": call["id"], "name": name, "arguments": ""}
            item |= {"namespace": space} if space else {}
        else:
            own: Json = {"role": "assistant"} if delta.kind == "content" else {"summary": []}
            item |= {"content": [], **own}
        self._items.append(item)
        out = [self._event("output_item.added", output_index=index, item={**item})]
        if delta.kind == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        if delta.kind == "content":
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"] = [part]
            place = self._place | {"content_index": 0}
            out.append(self._event("content_part.added", **place, part={**part, "logprobs": []}))
        return out

    def _more(self, delta: Delta) -> list[Json]:
        item, place = self._items[-1], self._place
        if delta.kind == "call":
            item["arguments"] += delta.text
            if not delta.text:
                return []
            return [self._event("function_call_arguments.delta", **place, delta=delta.text)]
        part, place = item["content"][0], place | {"content_index": 0}
        part["text"] += delta.text
        if delta.kind == "reasoning":
            return [self._event("reasoning_text.delta", **place, delta=delta.text)]
        logprobs, self._held = self._held, []
        part["logprobs"] += logprobs
        return [self._event("output_text.delta", **place, delta=delta.text, logprobs=logprobs)]

    def _end(self) -> list[Json]:
        if not self._kind:
            return []
        item, place, kind = self._items[-1], self._place, self._kind
        item["status"], self._kind = self._status if self.done else "completed", ""
        out = []
        if kind == "call":
            said = {"name": item["name"], "arguments": item["arguments"]}
            out.append(self._event("function_call_arguments.done", **place, **said))
        else:
            part, inner = item["content"][0], place | {"content_index": 0}
            if kind == "reasoning":
                out.append(self._event("reasoning_text.done", **inner, text=part["text"]))
            else:
                said = {"text": part["text"], "logprobs": part["logprobs"]}
                out.append(self._event("output_text.done", **inner, **said))
                out.append(self._event("content_part.done", **inner, part=part))
        index = place["output_index"]
        return [*out, self._event("output_item.done", output_index=index, item=item)]

    def _event(self, name: str, /, **fields: Any) -> Json:
        self._number += 1
        return {"type": f"response.{name}", "sequence_number": self._number - 1, **fields}

    def _response(self, status: str) -> Json:
        body, params = self._asked, self.plan.params
        head = {key: value for key, value in self._head.items() if key != "created"}
        text: Json = {"format": {"type": "text"}}
        if body.text is not None and body.text.format is not None:
            format = body.text.format
            text = {"format": {k: v for k in format.__struct_fields__ if (v := getattr(format, k))}}
        return head | {
            "created_at": self._head["created"],
            "status": status,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": None, "summary": None},
            "store": bool(self.model.kept) and body.store is not False,
            "temperature": params.temperature,
            "text": text,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "user": body.user,
            "usage": None,
        }
