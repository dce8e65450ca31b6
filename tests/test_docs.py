"""What the documents say is so: commands, the generated page, the example that readers copy."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from paceline.cli.app import app
from paceline.cli.methods import page
from paceline.core.types import SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.registry import table as registry
from paceline.sampling.sequence import Sequence
from paceline.verifiers.matching import Coupled

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(text) if kind == language]


def section(title: str) -> str:
    parts = re.split(r"^## ", (ROOT / "README.md").read_text(), flags=re.MULTILINE)
    [found] = [part for part in parts if part.startswith(f"{title}\n")]
    return found


@pytest.mark.parametrize("title", ["Quick start", "Tests"])
def test_sections_have_one_bash_block_that_parses(title: str) -> None:
    [block] = blocks(section(title), "bash")
    assert "venv" in block
    subprocess.run(["bash", "-n"], input=block, text=True, check=True)


def test_ci_script_parses() -> None:
    subprocess.run(["bash", "-n", str(ROOT / ".ci" / "run")], check=True)


PAGES = ["README.md", *(f"docs/{page.name}" for page in sorted(ROOT.glob("docs/*.md")))]
LIVING = [path for path in PAGES if path != "docs/journal.md"]
"""Pages about the code as it is; the journal is history."""


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("path", PAGES)
def test_links_lead_somewhere(path: str) -> None:
    page = ROOT / path
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" in link:
            continue
        target = page.parent / link if link else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("path", LIVING)
def test_named_files_exist(path: str) -> None:
    text = FENCE.sub("", (ROOT / path).read_text())
    for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|cpp|hpp))`", text):
        assert (ROOT / name).exists() or (ROOT / "src" / "paceline" / name).exists(), name


@pytest.mark.parametrize("path", LIVING)
def test_commands_that_pages_name_exist(path: str) -> None:
    known: Any = typer.main.get_command(app)
    for words in re.findall(r"`paceline ((?:[a-z-]+ ?){1,2})", (ROOT / path).read_text()):
        command = known
        for word in words.split():
            if hasattr(command, "commands") and not word.startswith("-"):
                assert word in command.commands, words
                command = command.commands[word]


def test_the_method_page_is_current() -> None:
    assert (ROOT / "docs" / "methods.md").read_text() == page()


def glossary() -> list[tuple[str, Path]]:
    """Code name and file of every row."""
    rows = re.findall(
        r"^\|.*\| `([\w.]+)` \| `([\w/]+\.py)` \|$",
        (ROOT / "docs" / "glossary.md").read_text(),
        re.MULTILINE,
    )
    return [(name, ROOT / "src" / "paceline" / path) for name, path in rows]


def test_glossary_rows_are_whole() -> None:
    page = (ROOT / "docs" / "glossary.md").read_text()
    heads = page.count("| term | meaning |")
    assert len(glossary()) == len(re.findall(r"^\|", page, re.MULTILINE)) - 2 * heads > 50


@pytest.mark.parametrize(("name", "path"), glossary(), ids=str)
def test_glossary_names_are_defined_in_their_files(name: str, path: Path) -> None:
    text = path.read_text()
    for part in name.split("."):
        assert re.search(rf"^\s*((class|def) {part}\b|{part}\b.*[:=])", text, re.MULTILINE), part


@pytest.mark.parametrize("drafter", registry.names("drafter"))
def test_every_drafter_has_a_section(drafter: str) -> None:
    page = (ROOT / "docs" / "drafters.md").read_text()
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    found = [part for part in sections if f"`{drafter}`" in part.split("\n")[0]]
    assert len(found) == 1, f"docs/drafters.md has {len(found)} sections on {drafter}: write one"
    assert re.search(r"^\n {4,}\S", found[0], re.MULTILINE), "no picture"


def test_drafter_sections_are_of_registered_drafters() -> None:
    page = (ROOT / "docs" / "drafters.md").read_text()
    for title in re.findall(r"^### (.*)$", page, flags=re.MULTILINE):
        for name in re.findall("`([a-z0-9-]+)`", title):
            assert name in registry.names("drafter"), name


CANVAS = [*registry.names("sampler"), *registry.names("cache")]


@pytest.mark.parametrize("method", CANVAS)
def test_every_sampler_and_cache_plan_has_a_section_and_a_family(method: str) -> None:
    page = (ROOT / "docs" / "diffusion.md").read_text()
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    found = [part for part in sections if part.split("\n")[0] == f"`{method}`"]
    assert len(found) == 1, f"docs/diffusion.md has {len(found)} sections on {method}: write one"
    assert re.search(r"^\n {4,}\S", found[0], re.MULTILINE), "no picture"
    families = page.split("## Where families of methods live")[1]
    assert re.search(f"`{method}[`:]", families), f"no family has {method}"


def test_sections_of_canvas_decoding_are_of_registered_methods() -> None:
    page = (ROOT / "docs" / "diffusion.md").read_text()
    titles = re.findall(r"^### `([a-z0-9-]+)`$", page, flags=re.MULTILINE)
    assert sorted(titles) == sorted(CANVAS)


def test_the_document_shows_the_example_as_it_is() -> None:
    example = (ROOT / "examples" / "own_drafter.py").read_text()
    assert blocks((ROOT / "docs" / "adding-a-drafter.md").read_text(), "python")[0] == example
    assert len(example.splitlines()) < 60


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_and_readme_compile(path: Path) -> None:
    compile(path.read_text(), str(path), "exec")
    for block in blocks((ROOT / "README.md").read_text(), "python"):
        compile(block, "README.md", "exec")


@pytest.mark.real
def test_the_example_of_constraints_runs(capsys: pytest.CaptureFixture[str]) -> None:
    [block] = blocks((ROOT / "docs" / "constraints.md").read_text(), "python")
    exec(block, {})
    assert capsys.readouterr().out.startswith("{'name': '")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own", ROOT / "examples" / "own_drafter.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def generate(drafter: Drafter, temperature: float) -> tuple[list[list[int]], int]:
    """Tokens of a ragged batch on a table, and how many of them were drafted."""
    target: Any = TabularTarget(TabularModel(12, 1, seed=4, sharpness=3.0).logits, 12)
    parts = drafter, Coupled(), Fixed(4, 4), StopRules((), 400)
    decoder = AutoregressiveDecoder(target, *parts)
    params = SamplingParams(temperature=temperature, max_new_tokens=60)
    sequences = [Sequence.start(i, [i, 2, 3][: i + 1], params) for i in range(3)]
    for sequence in sequences:
        decoder.open(sequence)
    running = sequences
    while running:
        for commit in decoder.step(running):
            if commit.finish_reason is not None:
                decoder.close(commit.sequence)
        running = [sequence for sequence in running if sequence.finish_reason is None]
    drafted = sum(sequence.stats.accepted_tokens for sequence in sequences)
    return [sequence.generated for sequence in sequences], drafted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_example_drafter_changes_no_token(temperature: float) -> None:
    drafter = example().LastBigram()
    tokens, drafted = generate(drafter, temperature)
    assert tokens == generate(NoDrafter(), temperature)[0]
    assert drafted > 0
    assert drafter._successors == {}
