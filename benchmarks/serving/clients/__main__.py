"""Other people's clients against a running server, unmodified: what passes and what does not.

pip install -r benchmarks/serving/clients/requirements.txt   # in an environment of its own
python -m benchmarks.serving.clients --url http://127.0.0.1:8000
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

CLIENTS = {
    "openai": "openai",
    "litellm": "litellm",
    "langchain": "langchain-openai",
    "instructor": "instructor",
    "pydantic_ai": "pydantic-ai-slim",
    "llm": "llm",
    "openai_agents": "openai-agents",
    "smolagents": "smolagents",
    "semantic_kernel": "semantic-kernel",
    "guidance": "guidance",
    "openai_js": "openai",
    "ai_sdk": "ai",
    "codex": "@openai/codex",
    "schemathesis": "schemathesis",
    "lm_eval": "lm-eval",
}
"""Script, and the package that it needs: of npm for those in NPM, else of PyPI."""
NPM = ("openai_js", "ai_sdk", "codex")

HERE = Path(__file__).parent


def version(name: str) -> str | None:
    """Tell the installed version of a client, None if there is none."""
    if name in NPM:
        manifest = Path(os.environ.get("NODE_PATH", "node_modules"), CLIENTS[name], "package.json")
        if not shutil.which("node") or not manifest.exists():
            return None
        return str(json.loads(manifest.read_text())["version"])
    try:
        return importlib.metadata.version(CLIENTS[name])
    except importlib.metadata.PackageNotFoundError:
        return None


def run(name: str, environment: dict[str, str], limit: float) -> dict[str, Any]:
    """Run one client's script; `seen` is what it printed before it ended or failed."""
    script = f"with_{name}"
    command = [sys.executable, "-m", f"benchmarks.serving.clients.{script}"]
    if (HERE / f"{script}.mjs").exists():
        command = ["node", str(HERE / f"{script}.mjs")]
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=limit
        )
        error = done.stderr.strip() if done.returncode else ""
        output = done.stdout
    except subprocess.TimeoutExpired:
        error, output = f"no end within {limit:.0f} s", ""
    return {
        "client": name,
        "version": version(name),
        "passed": not error,
        "seconds": round(time.perf_counter() - begin, 1),
        "seen": output.splitlines(),
        "error": error[-6000:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--only", choices=sorted(CLIENTS), action="append")
    parser.add_argument("--no-tools", action="store_true", help="the model's template has no tools")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one client")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with urllib.request.urlopen(f"{arguments.url}/v1/models") as answer:
        model = json.load(answer)["data"][0]["id"]
    environment = os.environ | {"PACELINE_URL": arguments.url, "PACELINE_MODEL": model}
    environment["PACELINE_TOOLS"] = "0" if arguments.no_tools else "1"
    environment["NODE_PATH"] = os.environ.get("NODE_PATH", str(Path("node_modules").resolve()))
    results = []
    for name in arguments.only or CLIENTS:
        if version(name) is None:
            print(f"{name}: not installed", file=sys.stderr)
            continue
        result = run(name, environment, arguments.limit)
        results.append(result)
        if not arguments.json:
            state = "passed" if result["passed"] else "FAILED"
            seen = ", ".join(result["seen"])
            row = f"{name:14}{result['version']:12}{state:8}{result['seconds']:7.1f} s  {seen}"
            print(row, result["error"], sep="\n" if result["error"] else "", flush=True)
    if arguments.json:
        print(json.dumps({"model": model, "clients": results}, indent=1))
    sys.exit(not all(result["passed"] for result in results))


if __name__ == "__main__":
    main()
