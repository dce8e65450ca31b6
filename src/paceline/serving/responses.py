"""Answers of the Responses API, whole and as its stream of named events."""

from __future__ import annotations

from typing import Any

from paceline.engine.engine import Event
from paceline.serving.answers.parser import Delta
from paceline.serving.kept import input_items
from paceline.serving.objects import ItemAnswer, chat_logprobs
from paceline.serving.protocol import ResponsesRequest

Json = dict[str, Any]


class ResponseAnswer(ItemAnswer):
    object = "response"
    prefix = "resp"

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        assert isinstance(self.body, ResponsesRequest)
        self._asked = self.body
        self._number = 0  # of the next event
        self._held: list[Json] = []  # log-probabilities until there is a message

    def opening(self) -> list[Json]:
        response = self._response("in_progress")
        return [
            self._event("created", response=response),
            self._event("in_progress", response=response),
        ]

    def feed(self, place: int, event: Event) -> list[Delta]:
        if self.plan.params.logprobs is not None:
            self._held += chat_logprobs(self.model.tokens, event.logprobs)
        return super().feed(place, event)

    def closing(self) -> list[Json]:
        whole = self.whole()
        return [self._event(whole["status"], response=whole)]

    def failing(self, error: Json) -> list[Json]:
        what = error["error"]
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": what["message"]}
        return [self._event("failed", response=response)]

    def waiting(self) -> list[Json]:
        # Codex CLI leaves a stream without events, whatever its comments.
        return [self._event("in_progress", response=self._response("in_progress"))]

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

    @property
    def _status(self) -> str:
        return "incomplete" if self.choices[0].finish_reason == "length" else "completed"

    @property
    def _place(self) -> Json:
        return {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}

    def _begin(self, kind: str, call: Json) -> None:
        index = len(self._items)
        short, type = {
            "content": ("msg", "message"),
            "reasoning": ("rs", "reasoning"),
            "call": ("fc", "function_call"),
        }[kind]
        item: Json = {"id": f"{short}_{self.id}_{index}", "type": type, "status": "in_progress"}
        if kind == "call":
            shown = call["function"]["name"]
            space, name = self.plan.notes.spaces.get(shown, ("", shown))
            item |= {"call_id": call["id"], "name": name, "arguments": ""}
            item |= {"namespace": space} if space else {}
        else:
            own: Json = {"role": "assistant"} if kind == "content" else {"summary": []}
            item |= {"content": [], **own}
        self._items.append(item)
        self._tell("output_item.added", output_index=index, item={**item})
        if kind == "reasoning":
            item["content"] = [{"type": "reasoning_text", "text": ""}]
        if kind == "content":
            part: Json = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            item["content"] = [part]
            place = self._place | {"content_index": 0}
            self._tell("content_part.added", **place, part={**part, "logprobs": []})

    def _more(self, delta: Delta) -> None:
        item, place = self._items[-1], self._place
        if delta.kind == "call":
            item["arguments"] += delta.text
            if delta.text:
                self._tell("function_call_arguments.delta", **place, delta=delta.text)
            return
        part, place = item["content"][0], place | {"content_index": 0}
        part["text"] += delta.text
        if delta.kind == "reasoning":
            self._tell("reasoning_text.delta", **place, delta=delta.text)
            return
        logprobs, self._held = self._held, []
        part["logprobs"] += logprobs
        self._tell("output_text.delta", **place, delta=delta.text, logprobs=logprobs)

    def _finish(self) -> None:
        if not self._items:  # an answer without a word is an empty message
            self._open(Delta("content", ""))
        self._close()

    def _end(self) -> None:
        if self._held and self._kind == "content":
            self._more(Delta("content", ""))
        item, place = self._items[-1], self._place
        item["status"] = self._status if self.done else "completed"
        if self._kind == "call":
            said = {"name": item["name"], "arguments": item["arguments"]}
            self._tell("function_call_arguments.done", **place, **said)
        else:
            part, inner = item["content"][0], place | {"content_index": 0}
            if self._kind == "reasoning":
                self._tell("reasoning_text.done", **inner, text=part["text"])
            else:
                said = {"text": part["text"], "logprobs": part["logprobs"]}
                self._tell("output_text.done", **inner, **said)
                self._tell("content_part.done", **inner, part=part)
        self._tell("output_item.done", output_index=place["output_index"], item=item)

    def _tell(self, name: str, /, **fields: Any) -> None:
        self._new.append(self._event(name, **fields))

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
