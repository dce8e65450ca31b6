"""What the documents say is so: commands, the generated page, the example that readers copy."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
import typer

from paceline.cli.app import commands
from paceline.cli.methods import page
from paceline.core.types import SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.models.families.denoisers import DENOISERS
from paceline.networks import catalogue
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.registry import table as registry
from paceline.registry.samplers import make_sampler
from paceline.sampling.generation import Generation
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


def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text()) for path in (ROOT / "src/paceline").rglob("*.py")}


def test_docstrings_name_what_there_is() -> None:
    """`module.name`, `Class.member`, `file.py`, and the fields of "Attributes:"."""
    names: dict[str, set[str]] = {}
    members: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    trees = sources()
    for path, tree in trees.items():
        stem = path.parent.name if path.stem == "__init__" else path.stem
        names.setdefault(path.parent.name, set()).add(path.stem)
        names.setdefault(path.parent.parent.name, set()).add(path.parent.name)
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef():
                    names.setdefault(stem, set()).add(node.name)
                    bases.setdefault(node.name, set()).update(
                        re.split(r"[.\[]", ast.unparse(base))[0] for base in node.bases
                    )
                    members.setdefault(node.name, set()).update(
                        getattr(each, "name", None) or getattr(each, "id", None) or each.attr
                        for each in ast.walk(node)
                        if isinstance(each, ast.FunctionDef)
                        or (
                            isinstance(each, ast.Name | ast.Attribute)
                            and isinstance(each.ctx, ast.Store)
                        )
                    )
                case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    names.setdefault(stem, set()).add(name)

    def has(name: str, member: str) -> bool:
        return member in members[name] or any(
            has(base, member) for base in bases[name] if base in members and base != name
        )

    wrong = []
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            text = ast.get_docstring(node) or ""
            for first, then in re.findall(r"`(?:\w+\.)*(\w+)\.(\w+)`", text):
                if then == "py":
                    files = [*trees, *ROOT.glob("*.py")]
                    good = any(each.stem == first for each in files)
                elif then in ("json", "jsonl", "toml", "bin", "ctypes"):  # files, and an array
                    continue
                elif first in members:
                    good = has(first, then)
                else:
                    good = first not in names or first == "paceline" or then in names[first]
                if not good:
                    wrong.append(f"{path.name}: {first}.{then}")
            section = re.search(r"Attributes:\n((?:    .*\n?|\n)+)", text)
            if section and isinstance(node, ast.ClassDef):
                fields = re.findall(r"^    (\w+): ", section[1], re.MULTILINE)
                wrong += [f"{path.name}: {node.name}.{f}" for f in fields if not has(node.name, f)]
    assert wrong == []


def taken(kind: registry.Kind, name: str) -> set[str]:
    """Keys of options that a method may have: parameters, and texts in the code beside it."""
    factory = registry.find(kind, name).load()
    network = [catalogue.find(name)] if kind == "drafter" and name in catalogue.names() else []
    kinds = [each for each in inspect.getmro(factory) if each.__module__.startswith("paceline")]
    found = {key for each in (factory, *network) for key in inspect.signature(each).parameters}
    for each in kinds:
        file = Path(inspect.getfile(each))
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.arg(arg=key) | ast.AnnAssign(target=ast.Name(id=key)):
                    found.add(key)
        for path in file.parent.glob("*.py"):
            found |= set(re.findall(r'"(\w+)"', path.read_text()))
    return found


def test_expressions_in_the_documents_parse() -> None:
    """Methods with options, as `NAME:key=value`, in prose and in the tables of results."""
    texts = {path: (ROOT / path).read_text() for path in LIVING}
    kinds = get_args(registry.Kind)
    seen = 0
    for path, text in texts.items():
        for name, keys in re.findall(r"[`> ]([a-z][a-z0-9-]+):((?:[a-z_]+=[^,`> |]+,?)+)", text):
            found = [kind for kind in kinds if name in registry.names(kind)]
            if not found:
                continue
            known = {key for kind in found for key in taken(kind, name)}
            asked = set(re.findall(r"(?:^|,)([a-z_]+)=", keys))
            assert asked <= known, f"{path}: {name}:{keys}"
            seen += 1
    assert seen > 40


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


def test_the_site_has_every_page_once() -> None:
    nav = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")]
    assert sorted(re.findall(r"[\w/-]+\.md", nav)) == sorted(pages)


@pytest.mark.parametrize("path", LIVING)
def test_named_files_exist(path: str) -> None:
    text = FENCE.sub("", (ROOT / path).read_text())
    for name in re.findall(r"`((?:\w+/)+\w+\.(?:py|cpp|hpp))`", text):
        assert (ROOT / name).exists() or (ROOT / "src" / "paceline" / name).exists(), name


@pytest.mark.parametrize("path", LIVING)
def test_commands_that_pages_name_exist(path: str) -> None:
    known: Any = typer.main.get_command(commands())
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


def test_published_settings_of_checkpoints_are_options_here() -> None:
    """Each kind of denoiser has a row, and each sampler there is made with its options."""
    text = (ROOT / "docs" / "diffusion-checkpoints.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.count("|") == 8]
    named: set[str] = set()
    for row in rows[2:]:
        named.update(re.findall(r"`(\w+)`", row[1]))
        settings = re.findall(r"`([^`]+)`", row[6])
        assert settings, row
        for setting in settings:
            make_sampler(setting)
    assert named == {family.hf for family in DENOISERS}
    with pytest.raises(InvalidOption):
        make_sampler("threshold:tua=0.9")


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
    sequences = [Generation.start(i, [i, 2, 3][: i + 1], params) for i in range(3)]
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
