"""Cases of the net."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def cases(kind: str) -> list[Any]:
    """Every case of a kind, as parameters of a test named by file and case."""
    import pytest

    out = []
    for path in sorted((HERE / kind).glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        for number, case in enumerate(content["cases"]):
            name = case.get("name", number)
            shared = content.get("shared", {})
            given = {**shared, **case["input"]}
            out.append(pytest.param(given, case["expected"], id=f"{path.stem}-{name}"))
    assert out, kind
    return out
