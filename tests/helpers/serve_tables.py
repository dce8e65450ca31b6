"""A server process on a tabular engine: `python -m tests.helpers.serve_tables OPTIONS`.

OPTIONS is JSON: "settings" of the server, "step" (seconds that a forward takes) and "load" (a file
that must appear before the model is loaded; "fail" as its content makes loading fail).
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.helpers import table_engines as engines
from tests.helpers.serving import served

from paceline.errors import ModelError, PacelineError
from paceline.serving import logs, server
from paceline.serving.model import ServedModel
from paceline.serving.settings import Settings


class Slow(engines.Target):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def forward(self, passes: Any) -> Any:
        time.sleep(self._seconds)
        return super().forward(passes)


def main(text: str) -> int:
    options = json.loads(text)

    def load() -> ServedModel:
        gate = options.get("load")
        while gate and not Path(gate).exists():
            time.sleep(0.005)
        if gate and Path(gate).read_text() == "fail":
            raise ModelError("the model is broken: take another")
        return served(engines.make(Slow(options.get("step", 0.0))))

    logs.set_up(options.get("text", False))
    settings = Settings(**{"port": 0, **options.get("settings", {})})
    try:
        server.serve(settings, (), load)
    except PacelineError as error:
        print(f"paceline: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
