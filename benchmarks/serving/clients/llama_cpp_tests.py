"""The tests of llama.cpp's own server against a running `paceline serve`, unmodified.

They are in the sdist of llama-cpp-python, below vendor/llama.cpp/tools/server/tests; the other
Python needs their requirements.txt and pytest-timeout. Nothing is started, so options that a test
gives to its server are without effect.

    paceline serve --port 8080 --served-name tinyllama-2 --max-context 2048
    python -m benchmarks.serving.clients.llama_cpp_tests FOLDER --python OTHER/bin/python
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", required=True, help="with the suite's requirements")
    parser.add_argument("--port", default="8080", help="of the server, on this machine")
    parser.add_argument("--tests", nargs="*", default=["unit"], help="below the folder")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    environment = os.environ | {"DEBUG_EXTERNAL": "1", "PORT": arguments.port}
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [arguments.python, "-m", "pytest", "-q", "--timeout=60", "--tb=short"]
        command += ["-o", "junit_logging=all", "-p", "no:cacheprovider", f"--junitxml={report}"]
        subprocess.run(
            [*command, *arguments.tests], cwd=arguments.folder, env=environment, stdout=sys.stderr
        )
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
