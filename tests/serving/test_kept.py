"""Responses that are kept: going on from one is sending its conversation, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses import Response
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, Json, run
from tests.serving.test_answers_over_http import NUMBERS, SAID, speaking

from paceline.serving import kept
from paceline.serving.kept import KeptAnswers, input_items, listed
from paceline.serving.protocol import BadRequest

PATH = "/v1/responses"
ASK: Json = {"temperature": 0, "max_output_tokens": 9, "ignore_eos": True}


@pytest.mark.parametrize("stream", [False, True])
def test_going_on_is_sending_the_whole_conversation(stream: bool) -> None:
    async def asks(client: Client) -> None:
        async def ask(**fields: Any) -> Json:
            if not stream:
                answer = await client.ask(PATH, ASK | fields)
            else:
                answer = (await client.stream(PATH, ASK | fields))[-1]["response"]
            Response.model_validate(answer, strict=True)
            return answer

        first = await ask(input="the quick", instructions="be brief")
        assert first["store"] is True
        second = await ask(input="dog", previous_response_id=first["id"])
        third = await ask(input="fox", previous_response_id=second["id"], instructions="again")
        items = [{"role": "user", "content": "the quick"}, *first["output"]]
        items += [{"role": "user", "content": "dog"}, *second["output"]]
        items += [{"role": "user", "content": "fox"}]
        whole = await ask(input=items, instructions="again", store=False)
        assert whole["store"] is False
        assert whole["output"][0]["content"] == third["output"][0]["content"]
        assert third["previous_response_id"] == second["id"]

        get = client.http.get
        assert (await get(f"{PATH}/{third['id']}")).json() == third
        listed = (await get(f"{PATH}/{third['id']}/input_items")).json()
        texts = [part["text"] for each in listed["data"] for part in each["content"]]
        assert texts[0] == "fox"
        assert texts[-1] == "the quick"
        assert len(texts) == 5
        page = f"{PATH}/{third['id']}/input_items?order=asc&limit=2&after={listed['last_id']}"
        two = (await get(page)).json()
        assert [each["id"] for each in two["data"]] == [e["id"] for e in listed["data"][-2:-4:-1]]
        assert two["has_more"] is True
        for wrong in ("0", "x", "101"):
            assert (await get(f"{PATH}/{third['id']}/input_items?limit={wrong}")).status_code == 400

        gone = (await client.http.delete(f"{PATH}/{first['id']}")).json()
        assert gone == {"id": first["id"], "object": "response", "deleted": True}
        for id in (first["id"], whole["id"], "x"):
            assert (await get(f"{PATH}/{id}")).status_code == 404
            assert (await client.http.delete(f"{PATH}/{id}")).status_code == 404
            body = ASK | {"input": "x", "previous_response_id": id}
            error = await client.refused(PATH, body, 404)
            assert (error["param"], error["code"]) == (
                "previous_response_id",
                "previous_response_not_found",
            )

    run(asks, engines.make())


def test_a_call_that_was_cut_is_not_gone_on_from() -> None:
    tools = [{"type": "function", "name": "add", "parameters": NUMBERS, "strict": False}]
    body = {"input": "1", "tools": tools, "temperature": 0}

    async def asks(client: Client) -> None:
        whole = await client.ask(PATH, body)
        most = whole["usage"]["output_tokens"]
        cut = whole
        while cut["output"][-1].get("arguments", "}").endswith("}"):
            most -= 1
            cut = await client.ask(PATH, body | {"max_output_tokens": most})
        assert cut["output"][-1]["type"] == "function_call"
        assert cut["output"][-1]["status"] == "incomplete"
        for before in (cut, whole):
            then = body | {"input": "2", "previous_response_id": before["id"]}
            assert (await client.ask(PATH, then))["output"]

    run(asks, speaking(SAID.replace("1}", '1, "b": 22, "c": 333}')))


def test_items_and_lists_are_as_openai_has_them() -> None:
    given: list[Json] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"id": "x", "type": "item_reference"},
        {"id": "y"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
    ]
    first, second, third, fourth, fifth = input_items(given, "r")
    text = {"type": "input_text", "text": "a"}
    assert first == {
        **{"id": "item_r_0", "type": "message", "status": "completed", "role": "user"},
        "content": [text],
    }
    assert second["content"] == [{"type": "output_text", "text": "b", "annotations": []}]
    assert (third, fourth) == (given[2], given[3])
    assert fifth == {"id": "item_r_4", **given[4]}
    items = [{"id": str(i)} for i in range(30)]
    page = listed(items, {})
    assert [each["id"] for each in page["data"]] == [str(i) for i in range(29, 9, -1)]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, "29", "10")
    rest = listed(items, {"after": page["last_id"]})
    assert ([each["id"] for each in rest["data"]][-1], rest["has_more"]) == ("0", False)
    assert listed([], {})["first_id"] is None
    for query, named in (
        ({"order": "up"}, "order"),
        ({"after": "x"}, "after"),
        ({"limit": "0"}, "limit"),
    ):
        with pytest.raises(BadRequest, match=named):
            listed(items, query)


def test_a_server_that_keeps_none_says_so() -> None:
    async def asks(client: Client) -> None:
        answer = await client.ask(PATH, ASK | {"input": "x"})
        assert answer["store"] is False
        body = ASK | {"input": "x", "previous_response_id": answer["id"]}
        assert "keeps no answers" in (await client.refused(PATH, body))["message"]

    run(asks, keep_responses=0)


def test_count_size_and_age_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = KeptAnswers(3)
    for i in range(4):
        turns.put({"id": str(i)}, [])
        turns.get("0" if i < 3 else "3")
    for id in ("0", "2", "3"):  # 1 was used last before all others
        turns.get(id)
    with pytest.raises(BadRequest):
        turns.get("1")
    monkeypatch.setattr(kept, "_BYTES", 130)
    turns.put({"id": "large"}, [{"text": "x" * 80}])
    turns.get("large")
    with pytest.raises(BadRequest):
        turns.get("0")
    monkeypatch.setattr(kept, "_SECONDS", -1.0)
    with pytest.raises(BadRequest, match="is gone"):
        turns.get("large")
