"""The commands of docs/training.md exist, with all the options that it gives them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from paceline.cli.app import commands
from paceline.lab.export.vllm import NETWORKS
from paceline.networks.catalogue import names

PAGE = (Path(__file__).parents[3] / "docs" / "training.md").read_text()
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
COMMANDS = [
    line
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("paceline ")
]


def test_blocks_are_shell() -> None:
    assert len(BLOCKS) > 5
    for block in BLOCKS:
        subprocess.run(["bash", "-n"], input=block, text=True, check=True)


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_parse(line: str) -> None:
    command: Any = typer.main.get_command(commands())
    _, *words = shlex.split(line)
    while words[0] in getattr(command, "commands", ()):
        command = command.commands[words.pop(0)]
    command.make_context(command.name, words)


def test_networks_of_the_page_exist() -> None:
    tables = PAGE.split("## 3.")[0], PAGE.split("## 5.")[1]
    named = [re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE) for table in tables]
    assert set(named[0]) <= set(names())
    assert set(named[1]) == set(NETWORKS)
    for name in re.findall(r"train drafter ([\w-]+) --", PAGE):
        assert name in names()
