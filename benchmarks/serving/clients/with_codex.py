"""Codex CLI: writes a file by its own shell tool, reads it, and ends with a message.

The command is that of CODEX, or `codex`. What it says of itself has 8,000 tokens: its settings
leave out what the task does not need, unless CODEX_WHOLE is set; then serve 16,384 or more.
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
"""
SHORT = """
web_search = "disabled"
project_doc_max_bytes = 0
include_permissions_instructions = false
include_environment_context = false
include_apps_instructions = false
include_collaboration_mode_instructions = false
model_instructions_file = "{home}/instructions.md"
[skills]
include_instructions = false
[features]
"""
OFF = "apps goals image_generation multi_agent plugins tool_suggest"
PROVIDER = f"""
[model_providers.paceline]
name = "paceline"
base_url = "{URL}"
wire_api = "responses"
stream_idle_timeout_ms = 1200000
"""
INSTRUCTIONS = "Do what the user asks with exec_command, then say in one sentence what you did."
TASK = "Create the file hello.txt here with the text hi, by a shell command."

with tempfile.TemporaryDirectory() as home, tempfile.TemporaryDirectory() as place:
    short = "" if os.environ.get("CODEX_WHOLE") else SHORT.format(home=home)
    features = "\n".join(f"{name} = false" for name in OFF.split()) if short else ""
    Path(home, "config.toml").write_text(CONFIG + short + features + PROVIDER)
    Path(home, "instructions.md").write_text(INSTRUCTIONS)
    command = [os.environ.get("CODEX", "codex"), "exec", "--skip-git-repo-check", "--json", TASK]
    done = subprocess.run(
        command,
        cwd=place,
        env=os.environ | {"CODEX_HOME": home},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"type":"command_execution"' in done.stdout, done.stdout
    assert Path(place, "hello.txt").read_text().strip() == "hi", done.stdout
    assert '"type":"agent_message"' in done.stdout, done.stdout
print("a task by its own tools")
