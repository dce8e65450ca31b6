"""schemathesis: requests made from /openapi.json; no 5xx, and answers as the document says."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Without a cap every request that is accepted decodes to the end of the context.
HOOK = """
import schemathesis

@schemathesis.hook
def before_call(context, case, kwargs):
    if isinstance(case.body, dict):
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            value = case.body.get(name)
            if isinstance(value, int) and value > 4:
                case.body[name] = 4
        if not {"max_tokens", "max_completion_tokens", "max_output_tokens"} & set(case.body):
            name = "max_output_tokens" if case.path.endswith("/responses") else "max_tokens"
            case.body[name] = 4
"""

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "capped.py").write_text(HOOK)
    url = os.environ["PACELINE_URL"]
    checks = "not_a_server_error,status_code_conformance,content_type_conformance"
    options = [f"--checks={checks},response_schema_conformance", "--phases=fuzzing", "--seed=1"]
    examples = os.environ.get("PACELINE_EXAMPLES", "30")
    options += [f"--max-examples={examples}", "--request-timeout=60", "--no-color"]
    run = subprocess.run(
        [Path(sys.executable).with_name("st"), "run", f"{url}/openapi.json", *options],
        env=os.environ | {"SCHEMATHESIS_HOOKS": "capped", "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    print(*[line.strip() for line in run.stdout.splitlines() if "generated" in line], sep="\n")
