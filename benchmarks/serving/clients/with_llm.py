"""llm: its command, with streaming, without, and with a schema."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.serving.clients.checks import CITY, MODEL, URL, check_city

with tempfile.TemporaryDirectory() as folder:
    # JSON is YAML.
    entry = {"model_id": "m", "model_name": MODEL, "api_base": URL, "supports_schema": True}
    Path(folder, "extra-openai-models.yaml").write_text(json.dumps([entry]))

    def llm(*arguments: str) -> str:
        run = subprocess.run(
            [sys.executable, "-m", "llm", "-m", "m", "-o", "max_tokens", "24", *arguments],
            env=os.environ | {"LLM_USER_PATH": folder, "OPENAI_API_KEY": "x"},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    assert llm("-o", "seed", "7", "Name a river.") == llm(
        "-o", "seed", "7", "--no-stream", "Name a river."
    )
    print("chat, streaming")
    check_city(llm("--schema", json.dumps(CITY), "Name a city."))
    print("structured output")
