"""The page at "/": what it holds, who drafted what in a stream, and the page in a browser."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from PIL import Image
from tests.helpers import browser as browsers
from tests.helpers import table_engines as engines
from tests.helpers.browser import Page
from tests.helpers.serving import CHAT, TEXT, Json, run, served
from tests.helpers.tiny_vision import talking
from tests.listening.test_windows import engine as listener

import paceline
from paceline.engine.engine import Engine
from paceline.methods.prompt_lookup import PromptLookup
from paceline.serving import http
from paceline.serving.app import Service
from paceline.serving.realtime import AppendEvent, CommitEvent, UpdateEvent
from paceline.serving.settings import Settings

CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"
SAMPLED: Json = {"temperature": 1.0, "seed": 11, "ignore_eos": True, "max_tokens": 60}
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
SCRIPT = (
    f"Look: {EVIL} and `x + 1`.\n\n"
    "```python\ndef f(x): return x + 1\n\ndef f(x): return x + 1\n```\n"
    "the quick brown fox, the quick brown fox, \N{SNOWMAN} the quick brown fox"
)


# What the page holds:


def fetched(**kwargs: Any) -> httpx.Response:
    return run(lambda c: c.http.get("/"), **kwargs)


def test_the_page_runs_only_what_stands_in_it() -> None:
    response = fetched()
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    rules = dict(
        rule.split(" ", 1) for rule in response.headers["content-security-policy"].split("; ")
    )
    for name in ("script", "style"):
        [part] = re.findall(f"<{name}>(.*?)</{name}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert rules.pop(f"{name}-src") == f"'sha256-{digest}'"
    assert rules.pop("connect-src") == "'self'"
    assert rules.pop("img-src") == "data:"
    assert set(rules.values()) == {"'none'"}
    assert {"default-src", "frame-ancestors", "base-uri", "form-action"} == set(rules)


def test_the_page_names_no_other_host_and_makes_no_markup_of_text() -> None:
    page = fetched().text
    assert set(re.findall(r"https?://[\w.]+", page)) == {"http://www.w3.org"}  # a namespace
    for word in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval(", "style="):
        assert word not in page


def test_the_microphone_says_what_the_server_reads() -> None:
    page = fetched().text
    part = page[page.index("async function speak") : page.index("// The server: its model")]
    told = set(re.findall(r"tell\(\"([\w.]+)\"", part))
    assert told == {each.__struct_config__.tag for each in (UpdateEvent, AppendEvent, CommitEvent)}
    assert "realtime" in part
    assert re.search(r"`(openai[-\w.]+)\$", part)[1] == http._KEY  # type: ignore[index]
    assert '<button id="mic" type="button" aria-pressed="false" hidden>' in page


def test_the_page_comes_without_a_key_and_all_else_does_not() -> None:
    async def ask(client: Any) -> list[int]:
        return [(await client.http.get(path)).status_code for path in ("/", "/metrics", "/page")]

    assert run(ask, keys=("secret",)) == [200, 401, 401]


# Who drafted what, in a stream:


@pytest.mark.parametrize(("path", "body"), [(CHATS, CHAT), (TEXTS, TEXT)])
def test_tokens_come_with_their_drafters_where_asked_for(path: str, body: Json) -> None:
    body = body | SAMPLED | {"n": 2, "stream_options": {"include_usage": True}}
    body["logit_bias"] = {"40": 12, "41": 12}  # repeats itself, so drafts are accepted

    async def both(client: Any) -> tuple[list[Json], list[Json]]:
        asked = await client.stream(path, body | {"return_sources": True, "return_token_ids": True})
        return asked, await client.stream(path, body)

    asked, plain = run(both, engines.make(drafter=PromptLookup()))
    assert not any("paceline" in chunk for chunk in plain)
    steps = 0
    for place in range(2):
        mine = [c for c in asked if c["choices"] and c["choices"][0]["index"] == place]
        told = [c["paceline"] for c in mine if "paceline" in c]
        tokens = [token for each in told for token in each["tokens"]]
        ids = [token for c in mine for token in c["choices"][0].get("token_ids", [])]
        assert "".join(token["text"] for token in tokens) == engines.TOKENIZER.decode(ids)
        assert len(tokens) == 60
        assert {token["source"] for token in tokens} == {None, "prompt-lookup"}
        steps += told[-1]["steps"]
    counts = asked[-1]["metrics"]["speculative_decoding"]
    assert steps == counts["num_spec_steps"]
    drafted = [t for c in asked for t in c.get("paceline", {}).get("tokens", []) if t["source"]]
    assert len(drafted) == counts["num_accepted_draft_tokens"]


# In a browser:


class Scripted(engines.Target):
    """Says SCRIPT, and waits before a pass while it is held."""

    def __init__(self) -> None:
        super().__init__(self._next, max_context=4000)
        self.free = threading.Event()
        self.free.set()
        self._head = engines.TOKENIZER.encode("<|im_start|>assistant\n")
        self._script = [*engines.TOKENIZER.encode(SCRIPT), engines.EOS]

    def _next(self, tokens: tuple[int, ...]) -> Any:
        size = len(self._head)
        heads = [i for i in range(len(tokens)) if [*tokens[i : i + size]] == self._head]
        begin = heads[-1] if heads else 0
        logits = np.zeros(engines.VOCABULARY, dtype=np.float32)
        said = len(tokens) - begin - size
        logits[self._script[min(said, len(self._script) - 1)]] = 50.0
        return logits

    def forward(self, passes: Any) -> Any:
        if sum(len(cache.tokens) for cache in self.live) > 60:  # some of the answer is there
            self.free.wait(20)
        return super().forward(passes)


class Site:
    """A server on a socket, in a thread."""

    def __init__(self, keys: tuple[str, ...] = (), engine: Engine | None = None) -> None:
        self.target = Scripted()
        self._engine = engine or engines.make(self.target, PromptLookup())
        self._ready = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(keys)), daemon=True)
        self._thread.start()
        self._ready.wait(20)

    async def _serve(self, keys: tuple[str, ...]) -> None:
        self.service = Service(Settings(), keys)
        self.service.open(served(self._engine))
        config = uvicorn.Config(self.service.app, lifespan="off", log_config=None)
        self._server = uvicorn.Server(config)
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        await self._server.serve(sockets=[self._listener])
        self.service.stop()

    def emptied(self) -> None:
        """Wait until the engine has no request left."""
        asyncio.run_coroutine_threadsafe(self.service.emptied(), self._loop).result(20)

    def stop(self) -> None:
        self.target.free.set()
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()


needs_browser = pytest.mark.skipif(browsers.PROGRAM is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browsers.browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.stop()


@pytest.fixture
def page(window: Page, site: Site) -> Iterator[Page]:
    window.look(1280, 800)
    window.console.clear()
    window.open(site.url)
    window.until("$('model').textContent === 'tables'")
    yield window
    window.run("localStorage.clear(); turns = []")
    assert complaints(window) == []


def complaints(page: Page) -> list[str]:
    mild = ('"source": "recommendation"', '"source": "deprecation"')
    return [line for line in page.console if not any(each in line for each in mild)]


def say(page: Page, text: str = "the quick") -> None:
    page.run("$('box').focus()")
    page.type(text)
    page.press("Enter")


def answer(page: Page) -> str:
    text: str = page.run("turns.at(-1).answer.text")
    return text


IDLE = "!document.body.classList.contains('busy')"
DONE = f"document.querySelectorAll('.again').length === 2 && {IDLE}"


@needs_browser
def test_an_answer_is_shown_as_text_with_code_and_drafters(page: Page) -> None:
    say(page)
    page.until(DONE)
    assert answer(page) == SCRIPT
    shown = page.run(
        "[...document.querySelectorAll('.assistant > .text > *')]"
        ".map(n => [n.tagName, n.textContent])"
    )
    code = "def f(x): return x + 1\n\ndef f(x): return x + 1"
    last = SCRIPT.rsplit("\n", 1)[1]
    assert shown == [
        ["P", f"Look: {EVIL} and x + 1."],
        ["DIV", f"pythonCopy{code}"],
        ["P", last],
    ]
    assert page.run("document.querySelector('pre').textContent") == code
    assert page.run("document.querySelector('p code').textContent") == "x + 1"
    assert page.run("document.title") == "paceline"
    assert page.run("document.querySelectorAll('img, article script').length") == 0
    assert page.run("[...document.querySelectorAll('.assistant .by')].map(n => n.title)[0]") == (
        "drafted by prompt-lookup"
    )
    assert page.run("$('legend').textContent") == "Drafted by prompt-lookup"
    note = page.run("document.querySelector('.assistant .note').firstChild.textContent")
    assert re.fullmatch(
        r"\d+ tokens · [\d.]+ tokens/s · [\d.]+ tokens per forward · "
        r"\d+ % of drafted tokens accepted · seed \d+",
        note,
    )


@needs_browser
def test_regenerated_with_the_same_seed_or_another(page: Page) -> None:
    say(page)
    page.until(DONE)
    seed = page.run("turns.at(-1).seed")
    for number, same in ((0, True), (1, False)):
        page.run(f"document.querySelectorAll('.again')[{number}].click()")
        page.until(f"document.querySelectorAll('.user').length === 1 && {DONE}")
        assert (page.run("turns.at(-1).seed") == seed) == same
        assert answer(page) == SCRIPT


@needs_browser
def test_the_stop_button_ends_the_request_and_keeps_what_came(page: Page, site: Site) -> None:
    site.target.free.clear()
    say(page)
    page.until("document.querySelector('.assistant p')?.textContent.startsWith('Look')")
    assert page.run("$('go').textContent") == "Stop"
    page.run("$('go').click()")
    page.until(DONE)
    part = answer(page)
    assert part
    assert SCRIPT.startswith(part)
    assert part != SCRIPT
    assert "stopped" in page.run("document.querySelector('.assistant .note').textContent")
    site.target.free.set()
    site.emptied()


@needs_browser
def test_a_conversation_outlives_a_reload_and_new_chat_ends_it(page: Page, site: Site) -> None:
    say(page)
    page.until(DONE)
    page.open(site.url)
    assert answer(page) == SCRIPT
    assert page.run("document.querySelector('.said').textContent") == "the quick"
    page.run("$('new').click()")
    assert page.run("$('turns').children.length") == 0
    page.until("$('model').textContent === 'tables'")


@needs_browser
def test_a_key_is_asked_for_and_nothing_is_lost(window: Page) -> None:
    site = Site(("secret",))
    try:
        window.look(1280, 800)
        window.open(site.url)
        window.until("$('model').textContent.includes('API key')")
        say(window)
        window.until("document.querySelector('.error')?.textContent.includes('API key')")
        assert window.run("document.querySelector('.said').textContent") == "the quick"
        window.run("fields.key.value = 'secret'; document.querySelector('.again').click()")
        window.until(DONE)
        assert answer(window) == SCRIPT
    finally:
        site.stop()
        window.console.clear()


CALL = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"x":'}}
REST = {"index": 0, "function": {"arguments": "1}"}}


@needs_browser
def test_reasoning_is_folded_calls_are_json_and_a_late_error_keeps_the_text(page: Page) -> None:
    deltas: list[Json] = [{"reasoning_content": "hm"}, {"content": "so"}]
    deltas += [{"tool_calls": [CALL]}, {"tool_calls": [REST]}]
    chunks: list[Json] = [{"choices": [{"delta": delta}], "seed": 4} for delta in deltas]
    failed = "out of memory: <b>wait</b>"
    chunks.append({"error": {"message": failed}})
    lines = "".join(f"data: {httpx.Response(200, json=c).text}\n\n" for c in chunks)
    page.run(f"window.fetch = async () => new Response({lines!r})")
    say(page)
    page.until(DONE)
    assert page.run("document.querySelector('details').open") is False
    assert page.run("document.querySelector('details .text').textContent") == "hm"
    assert page.run("document.querySelector('.assistant > .text').textContent") == "so"
    call = page.run("JSON.parse(document.querySelector('.assistant > div > pre').textContent)")
    assert call == {"name": "f", "arguments": {"x": 1}}
    assert page.run("document.querySelector('.error').textContent") == failed


@needs_browser
@pytest.mark.parametrize(
    ("reply", "part"),
    [
        ("new Response('data: {}\\n\\n')", "broke"),
        ("Promise.reject(new TypeError('gone'))", "cannot be reached"),
        ("new Response('<h1>', {status: 502})", "<h1>"),
    ],
)
def test_broken_connections_are_told(page: Page, reply: str, part: str) -> None:
    page.run(f"window.fetch = async () => {reply}")
    say(page)
    page.until(f"document.querySelector('.error')?.textContent && {IDLE}")
    assert part in page.run("document.querySelector('.error').textContent")
    assert page.run("document.querySelector('.again').textContent") == "Try again"


@needs_browser
def test_settings_are_sent(page: Page) -> None:
    page.run("window.bodies = []")
    page.run("window.fetch = async (url, {body}) => void (body && bodies.push(body))")
    page.run(
        "Object.assign(fields.system, {value: 'be brief'}); fields.seed.value = '5';"
        "fields.temperature.value = '0'; fields.top_p.value = ''; fields.max_tokens.value = '9';"
        'fields.tools.value = \'[{"type": "function"}]\'; fields.speculation.checked = false'
    )
    say(page)
    page.until(f"document.querySelector('.error')?.textContent && {IDLE}")
    body = page.run("JSON.parse(bodies.at(-1))")
    assert [message["role"] for message in body.pop("messages")] == ["system", "user"]
    assert body == {
        "model": "tables",
        "temperature": 0,
        "top_p": None,
        "max_tokens": 9,
        "seed": 5,
        "tools": [{"type": "function"}],
        "speculation": {"enabled": False},
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_sources": True,
        "return_token_ids": True,
    }
    page.run("fields.seed.value = '-1'")
    say(page, "again")
    assert page.run("$('drawer').open") is True
    page.press("Escape")
    assert page.run("$('drawer').open") is False
    assert page.run("$('box').value") == "again"


@needs_browser
def test_keys_and_a_narrow_phone(page: Page) -> None:
    page.look(360, 640, "dark")
    page.run("$('box').focus()")
    page.type("one")
    page.press("Enter", modifiers=8)
    page.type("two")
    assert page.run("$('box').value") == "one\ntwo"
    page.press("Enter")
    page.until(DONE)
    assert page.run("turns[0].content") == "one\ntwo"
    assert page.run("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
    page.run("$('open').click()")
    assert page.run("$('drawer').getBoundingClientRect().left") >= 0


SHOWN = {
    "**bold** *it* _it_ ~~gone~~ `a*b*`": "<p><strong>bold</strong> <em>it</em> <em>it</em> "
    "<del>gone</del> <code>a*b*</code></p>",
    "# One\n## Two": "<h2>One</h2><h3>Two</h3>",
    "- a\n  - b\n- c": "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>",
    "3. a\n4. **b**": '<ol start="3"><li>a</li><li><strong>b</strong></li></ol>',
    "> so\n> it": "<blockquote><div>so</div><div>it</div></blockquote>",
    "a\n\n---\nb": "<p>a</p><hr><p>b</p>",
    "|a|b|\n|-|-|\n|1|*2*|": '<div class="table" tabindex="0"><table><thead><tr><th>a</th>'
    "<th>b</th></tr></thead><tbody><tr><td>1</td><td><em>2</em></td></tr></tbody></table></div>",
    "[x](https://a.b/c)": '<p><a href="https://a.b/c" target="_blank" '
    'rel="noopener noreferrer nofollow">x</a></p>',
    "2 * 3 * 4, a_b_c, **open": "<p>2 * 3 * 4, a_b_c, **open</p>",
    "\\*plain\\*": "<p>*plain*</p>",
}
MADE = {"p", "hr", "h2", "ul", "ol", "li", "blockquote", "div", "table", "thead", "tbody", "tr"}
MADE |= {"th", "td", "a", "strong", "em", "del", "code", "pre", "button", "span"}
NASTY = [
    EVIL,
    "[x](javascript:alert(1)) [y](data:text/html,<script>1</script>) [z](JaVaScRiPt:1)",
    "![x](https://evil.example/a.png)",
    '[**<img src=x onerror=1>**](https://a.b/"onclick="1)',
    "| <script>1</script> | <img src=x> |\n|-|-|\n| <svg onload=1> | `<b>` |",
    "# <iframe src=x>\n- <style>*{}</style>\n> <form action=x>",
    "```<script>\n</code></pre><script>1</script>\n```",
    "*" * 3000 + "_" * 3000 + "[" * 3000 + "`" * 3001,
    ("> " * 500 + "x\n") * 5 + "- " * 500 + "\n" + "|" * 3000,
]


@needs_browser
def test_markdown_is_shown_and_makes_nothing_else(page: Page) -> None:
    def drawn(text: str) -> str:
        page.run(
            f"box = document.createElement('div'), drawPart(box, {{text: {json.dumps(text)}, "
            "runs: [[1e9, -1]]})"
        )
        html: str = page.run("box.innerHTML")
        return html

    for text, html in SHOWN.items():
        assert drawn(text) == html
    for text in NASTY:
        drawn(text)
        made = set(page.run("[...box.querySelectorAll('*')].map(n => n.localName)"))
        assert made <= MADE
        assert set(page.run("[...box.querySelectorAll('a')].map(n => n.protocol)")) <= {"https:"}
    assert page.run("document.title") == "paceline"
    page.run("delete window.box")


@needs_browser
def test_a_cut_answer_says_so_and_goes_on_exactly(page: Page, site: Site) -> None:
    page.run("fields.max_tokens.value = '9'")
    say(page)
    page.until(DONE)
    assert "cut" in page.run("document.querySelector('.assistant .note').textContent")
    part = answer(page)
    assert SCRIPT.startswith(part)
    assert part != SCRIPT
    page.run("fields.max_tokens.value = '4000'")
    go_on = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Continue')"
    page.run(f"{go_on}.click()")
    page.until(f"turns.at(-1).answer.text.length > 100 && {DONE}")
    assert answer(page) == SCRIPT
    assert page.run(f"{go_on} === undefined")
    page.run("fields.max_tokens.value = '1024'")


@needs_browser
def test_a_chat_that_outgrows_its_context_can_be_mended(page: Page) -> None:
    say(page, "one")
    page.until(DONE)
    say(page, "two")
    page.until(f"turns.length === 4 && {DONE}")
    page.run(
        "kept = window.fetch; window.fetch = async (url, o) => o.body ? new Response("
        "JSON.stringify({error: {message: 'too long', code: 'context_length_exceeded'}}), "
        "{status: 400}) : kept(url, o)"
    )
    say(page, "three")
    page.until("document.querySelector('.error:not([hidden])')?.textContent.includes('longer')")
    names = page.run(
        "[...document.querySelectorAll('.assistant:last-child button')].map(b => b.textContent)"
    )
    assert names[:4] == ["Edit message", "Delete message", "Leave out the oldest", "New chat"]
    page.run(
        "window.fetch = (url, o) => { if (o?.body) sent = JSON.parse(o.body).messages; "
        "return kept(url, o); }"
    )
    page.run(
        "[...document.querySelectorAll('button')].find("
        "b => b.textContent === 'Leave out the oldest').click()"
    )
    page.until(f"turns.length === 6 && {DONE}")
    assert [each["content"] for each in page.run("sent")][::2] == ["two", "three"]
    page.run("document.querySelectorAll('.user .note button')[3].click()")  # edit the second
    page.run("document.querySelector('.editing textarea').value = 'other'")
    page.run("document.querySelector('.editing button').click()")
    page.until(f"turns.length === 4 && {DONE}")
    assert [each["content"] for each in page.run("sent")] == ["other"]
    page.run("document.querySelectorAll('.user .note button')[1].click()")  # delete the first
    page.until("turns.length === 2")


@needs_browser
def test_chats_are_kept_and_deleted_and_none_waits_for_ever(page: Page, site: Site) -> None:
    site.target.free.clear()
    say(page, "held")
    page.until("turns.at(-1).live")
    page.open(site.url)
    site.target.free.set()
    page.until("document.querySelector('.assistant .note')?.textContent.includes('closed')")
    page.run("$('new').click()")
    say(page, "second")
    page.until(DONE)
    page.run("sessionStorage.clear(); window.onpagehide = null")
    page.open(site.url)
    assert page.run("turns.length") == 0
    page.run("$('chats').click()")
    titles = "[...document.querySelectorAll('#past li button:first-child')].map(b => b.textContent)"
    assert page.run(titles) == ["second", "held"]
    page.run("document.querySelector('#past button').click()")
    assert answer(page) == SCRIPT
    page.run("$('chats').click(); document.querySelectorAll('#past button')[1].click()")
    assert page.run(titles) == ["held"]
    page.run("$('shut').click()")
    assert page.run("turns.length") == 0


@needs_browser
def test_no_room_is_told(page: Page) -> None:
    page.run(
        "Storage.prototype.setItem = () => { throw new DOMException('', 'QuotaExceededError') }"
    )
    say(page)
    page.until(DONE)
    assert "no room" in page.run("$('full').textContent")
    assert answer(page) == SCRIPT


@needs_browser
@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ("[{]", "line 1, column 3"),
        ('[\n {"a": 1,}\n]', "line 2, column 10"),
        ("[", "line 1, column 2"),
        ("{}", "must be a list"),
        ("tools", "line 1, column"),
    ],
)
def test_saved_tools_that_are_no_json_are_told_with_their_place(
    page: Page, tools: str, place: str
) -> None:
    page.run(f"fields.tools.value = {json.dumps(tools)}; save()")
    page.run("window.onpagehide = null")
    page.open(page.run("location.href"))
    page.until("$('model').textContent === 'tables'")
    say(page)
    assert page.run("$('drawer').open") is True
    assert place in page.run("$('told').textContent")
    assert page.run("turns.length") == 0
    page.run("$('close').click()")


HELD = "document.querySelectorAll('#held img')"


@needs_browser
def test_pictures_are_sent_made_smaller_shown_and_kept(window: Page, tmp_path: Path) -> None:
    talking("smolvlm", tmp_path / "model")
    engine = paceline.load(str(tmp_path / "model"), precision="fp32", runtime="cpu", threads=1)
    numbers = np.random.default_rng(5).integers(0, 256, (600, 1500, 3), dtype=np.uint8)
    for name, pixels in (("small.png", numbers[:40, :50]), ("large.jpg", numbers)):
        Image.fromarray(pixels).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes((tmp_path / "small.png").read_bytes()[:60])

    def pick(*names: str) -> None:
        node = window.call("Runtime.evaluate", expression="$('pick')")["result"]["objectId"]
        files = [str(tmp_path / name) for name in names]
        window.call("DOM.setFileInputFiles", files=files, objectId=node)

    site = Site(engine=engine)
    try:
        window.look(360, 640)
        window.console.clear()
        window.open(site.url)
        window.until("$('add').hidden === false")
        window.run("fields.max_tokens.value = '5'; fields.temperature.value = '0'")
        pick("small.png", "large.jpg", "small.png")
        window.until(f"{HELD}.length === 3")
        window.run("document.querySelectorAll('#held button')[2].click()")
        assert window.run("document.activeElement.parentNode.id") == "held"
        pick("broken.png")
        window.until("$('full').textContent.includes('broken.png is no picture')")
        sent = window.run("held")
        assert sent[0].split(",")[0] == "data:image/png;base64"
        small = base64.b64decode(sent[0].split(",")[1])
        assert small == (tmp_path / "small.png").read_bytes()
        assert window.run(f"[...{HELD}].map(i => [i.naturalWidth, i.naturalHeight])") == [
            [50, 40],
            [1024, 410],
        ]
        say(window, "What is this?")
        window.until(DONE)
        assert window.run("[held.length, document.querySelectorAll('.user img').length]") == [0, 2]
        assert window.run("[document.documentElement.scrollWidth, innerWidth]") == [360, 360]
        told = answer(window)
        parts: list[Json] = [{"type": "image_url", "image_url": {"url": url}} for url in sent]
        parts.append({"type": "text", "text": "What is this?"})
        asked = {"messages": [{"role": "user", "content": parts}], "temperature": 0}
        reply = httpx.post(site.url + CHATS[1:], json=asked | {"max_tokens": 5}, timeout=20)
        assert reply.json()["choices"][0]["message"]["content"] == told
        window.open(site.url)
        assert window.run("[...document.querySelectorAll('.user img')].map(i => i.src)") == sent
        window.run("document.querySelector('.user .note button').click()")  # edit
        window.run("document.querySelector('.editing textarea').value = ''")
        window.run("document.querySelector('.editing .note button').click()")
        window.until(f"turns[0].content === '' && turns.length === 2 && {DONE}")
        assert window.run("turns[0].pictures") == sent
        assert [each["type"] for each in window.run("request(1, turns).messages[0].content")] == [
            "image_url",
            "image_url",
        ]
        assert complaints(window) == []
    finally:
        window.run("localStorage.clear(); turns = []")
        site.stop()


@needs_browser
def test_a_model_of_text_is_offered_no_picture(page: Page) -> None:
    assert page.run("$('add').hidden") is True
    page.run("addPictures([new File(['x'], 'a.png', {type: 'image/png'})])")
    assert page.run("held.length") == 0


@needs_browser
def test_what_is_spoken_comes_into_the_box(window: Page) -> None:
    site = Site(engine=listener())
    try:
        window.console.clear()
        window.open(site.url)
        window.until("$('mic').hidden === false")
        window.run("$('box').value = 'Before'; events = []")
        window.run(
            "const Real = WebSocket; window.WebSocket = class extends Real {"
            "set onmessage(hear) { super.onmessage = (event) => {"
            "events.push(JSON.parse(event.data)); hear(event); }; } }"
        )
        window.run("$('mic').click()")
        window.until("$('mic').textContent === 'Stop speaking' && speech.context")
        window.run("new Promise((done) => setTimeout(done, 2500))")
        window.run("$('mic').click()")
        window.until("$('mic').textContent === 'Speak'")
        told = window.run("events")
        assert told[-1]["type"].endswith("transcription.completed")
        whole = f"Before {told[-1]['transcript']}".strip()
        assert window.run("$('box').value.trim()") == whole
        assert window.run("$('full').textContent") == ""
        assert complaints(window) == []
    finally:
        window.run("$('box').value = ''")
        site.stop()
