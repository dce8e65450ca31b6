"""Codex CLI: looks at a directory by its own tools, and says what it saw.

The command is that of CODEX, or `codex`. Its prompt has 8,000 tokens: serve 16,384 or more.
"""

import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.serving.clients.checks import MODEL, URL

CONFIG = f"""
model = "{MODEL}"
model_provider = "paceline"
approval_policy = "never"
sandbox_mode = "danger-full-access"
[model_providers.paceline]
name = "paceline"
base_url = "{URL}"
wire_api = "responses"
stream_idle_timeout_ms = 1200000
"""
TASK = "Run ls -l here, and say which file is the largest."

with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
    Path(home, "config.toml").write_text(CONFIG)
    for name, size in (("apple.txt", 10), ("pear.txt", 90_000), ("plum.txt", 300)):
        Path(place, name).write_text("x" * size)
    command = [os.environ.get("CODEX", "codex"), "exec", "--skip-git-repo-check", "--json", TASK]
    done = subprocess.run(
        command,
        cwd=place,
        env=os.environ | {"CODEX_HOME": home},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"type":"command_execution"' in done.stdout, done.stdout
    assert "pear.txt" in done.stdout.splitlines()[-2], done.stdout
print("a task by its own tools")
