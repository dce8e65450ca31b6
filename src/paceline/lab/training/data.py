"""Training text that the target writes itself: plan, batched decoding, shards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt

from paceline.core.cache import read_text
from paceline.core.target import TakesRows
from paceline.core.types import IntArray, SamplingParams
from paceline.engine.engine import Engine
from paceline.engine.looking import Shown
from paceline.errors import InvalidOption, PromptError
from paceline.models.pictures import Picture
from paceline.networks.weights import read_metadata, read_tensors, write_tensors

# Keeps seeds of one data set apart from those of the next seed.
_STRIDE = 1_000_003


@dataclass(frozen=True, slots=True)
class DataPlan:
    """Plan of a data set. Text `i` is a function of the plan, the model and `i`.

    Attributes:
        prompts: user turns from files, used in turn.
        self_written: share of texts whose user turn the target writes itself, in [0, 1].
        temperatures: of the answers, by turns; 0 is greedy.
        new_tokens: longest answer.
        turn_tokens: longest user turn that the target writes.
        images: a picture that each prompt shows, or None; empty for none.
        past_end: answers go on to `new_tokens`, whatever ends there.
    """

    prompts: Sequence[str]
    self_written: float = 0.5
    temperatures: tuple[float, ...] = (0.0,)
    new_tokens: int = 256
    turn_tokens: int = 160
    seed: int = 0
    images: Sequence[Path | None] = ()
    past_end: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.self_written <= 1:
            raise InvalidOption(f"self_written must be in [0, 1], not {self.self_written}")
        if self.self_written < 1 and not self.prompts:
            raise InvalidOption("no prompts are given: name JSONL files, or set self_written to 1")
        if not self.temperatures:
            raise InvalidOption("temperatures is empty: give one or more, 0 for greedy")
        for name in ("new_tokens", "turn_tokens"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} must be 1 or more, not {getattr(self, name)}")
        for index in range(len(self.temperatures)):
            self.answer(index)  # which names what is out of range

    def prompt(self, index: int) -> str | None:
        """Return the user turn of a text, or None if the target writes it."""
        return None if (at := self._place(index)) is None else self.prompts[at]

    def image(self, index: int) -> Path | None:
        """Return the picture that the prompt of a text shows, if it does."""
        at = self._place(index) if self.images else None
        return None if at is None else self.images[at]

    def _place(self, index: int) -> int | None:
        written = int((index + 1) * self.self_written) - int(index * self.self_written)
        if written:
            return None
        return (index - int(index * self.self_written)) % len(self.prompts)

    def turn(self, index: int) -> SamplingParams:
        # The tail of the distribution is cut, or user turns lose sense.
        return SamplingParams(
            temperature=1.0,
            top_p=0.95,
            seed=self._seed(index),
            max_new_tokens=self.turn_tokens,
        )

    def answer(self, index: int) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperatures[index % len(self.temperatures)],
            seed=self._seed(index) + 1,
            max_new_tokens=self.new_tokens,
            ignore_eos=self.past_end,
        )

    def _seed(self, index: int) -> int:
        return 2 * (self.seed * _STRIDE + index)


# Placeholder of the user's words in a rendered chat; no text holds it.
_MARK = "\x00"


@dataclass(frozen=True, slots=True)
class Text:
    """Prompt and answer as int64 `[length]` tokens; `index` is its place in the plan.

    A prompt may show one picture: float16 `[n, width]` rows, which stand from place `begin` on.
    """

    index: int
    tokens: IntArray
    prompt_length: int
    picture: npt.NDArray[np.float16] | None = None
    begin: int = 0


def write_texts(
    engine: Engine,
    plan: DataPlan,
    indices: Iterable[int],
    batch: int,
    stopped: Callable[[], bool] = lambda: False,
    ended: Callable[[int, Text | None], object] = lambda request, text: None,
) -> Iterator[tuple[int, Text | None]]:
    """Yield texts of a plan by index, in order of completion.

    None for an index where the target wrote an empty user turn, or the prompt exceeds the context.
    Once `stopped` (checked between steps) is true, unfinished texts are dropped. `ended` is told
    requests of the engine as they end, with their texts, or None for user turns.

    Raises:
        InvalidOption: the model has no chat template, so it cannot write user turns.
    """
    header = _header(engine) if plan.self_written else []
    waiting = iter(indices)
    turns: dict[int, int] = {}
    answers: dict[int, tuple[int, list[int], Shown | None]] = {}
    context: int = engine.decoder.target.capabilities.max_context

    def ask(index: int, prompt: str) -> bool:
        image, pictures, shown = plan.image(index), [], None
        if image is None:
            ids = engine.tokenizer.prompt(prompt) if prompt else []
        else:
            pictures = [Picture.open(image)]
            ids, shown = _shown(engine, prompt, pictures[0])
        good = 0 < len(ids) < context - plan.new_tokens
        if good:
            request = engine.add(ids, plan.answer(index), pictures=pictures)
            answers[request] = (index, ids, shown)
        return good

    while True:
        # Some wait beside those that run, so that an ended text is followed at once.
        while engine.pending < 2 * batch and (index := next(waiting, None)) is not None:
            prompt = plan.prompt(index)
            if prompt is None:
                turns[engine.add(header, plan.turn(index))] = index
            elif not ask(index, prompt):
                yield index, None
        if not engine.pending or stopped():
            break
        for event in engine.checked_step():
            if event.completion is None:
                continue
            if event.request in turns:
                index = turns.pop(event.request)
                ended(event.request, None)
                if not ask(index, event.completion.text.strip()):
                    yield index, None
            else:
                index, prompt_ids, shown = answers.pop(event.request)
                tokens = np.array([*prompt_ids, *event.completion.token_ids], dtype=np.int64)
                text = Text(index, tokens, len(prompt_ids))
                if shown is not None:
                    text = replace(text, picture=_rows_of(engine, shown), begin=shown.at)
                ended(event.request, text)
                yield index, text
    for request in (*turns, *answers):
        engine.cancel(request)


def _shown(engine: Engine, prompt: str, picture: Picture) -> tuple[list[int], Shown]:
    if engine.looking is None:
        raise InvalidOption(
            "a prompt shows a picture, and the model sees none: leave out image, or name a model "
            "that sees"
        )
    content = [{"type": "image", "image": picture}, {"type": "text", "text": prompt}]
    ids = engine.tokenizer.chat([{"role": "user", "content": content}])
    [shown] = engine.looking.find([picture], ids, engine.tokenizer)
    return ids, shown


def _rows_of(engine: Engine, shown: Shown) -> npt.NDArray[np.float16]:
    # They stay behind a request until there is no room for others.
    store = cast(TakesRows, engine.decoder.target).rows
    run = store.hold(shown.key, shown.rows)
    try:
        if not run.filled:
            raise InvalidOption("too many pictures at once: use a smaller --batch")
        return store.numbers[run.places].astype(np.float16)
    finally:
        store.drop(run)


def _header(engine: Engine) -> list[int]:
    tokenizer = engine.tokenizer
    if tokenizer.chat_template is None:
        raise InvalidOption(
            "the model has no chat template, so it cannot write user turns: give prompts and set "
            "self-written to 0"
        )
    text = tokenizer.decode(tokenizer.prompt(_MARK), skip_special=False)
    before, mark, _ = text.partition(_MARK)
    if not mark:
        raise PromptError("the chat template drops the user's words: set self-written to 0")
    return tokenizer.encode(before)


def read_images(paths: Sequence[Path]) -> list[Path | None]:
    """Read which picture each line of `read_texts` shows: `image`, beside its file, or None.

    Raises PromptError for what is no name.
    """
    found: list[Path | None] = []
    for path in paths:
        for line in filter(str.strip, path.read_text("utf-8").split("\n")):
            name = json.loads(line).get("image") or ""
            if not isinstance(name, str):
                raise PromptError(f"image of a line of {path} is {name!r}: name a file")
            found.append(path.parent / name if name else None)
    return found


_KEYS = ("prompt", "question", "instruction")


def read_texts(paths: Sequence[Path]) -> list[str]:
    """Read one prompt per JSONL line: `turns` (the first), `prompt`, `question`, or `instruction`.

    Raises:
        PromptError: a file cannot be read, a line holds no prompt, or there is none at all.
    """
    texts = []
    for path in paths:
        said = f"cannot read prompts from {path}"
        content = read_text(path, said, "give a JSONL file", PromptError)
        for number, line in enumerate(content.split("\n"), 1):
            if line.strip():
                text = _text(line)
                if not text:
                    raise PromptError(
                        f"line {number} of {path} holds no prompt: each line is an object with "
                        f"turns, {', '.join(_KEYS)}"
                    )
                texts.append(text)
    if not texts:
        raise PromptError(
            "the prompt files are empty: give a JSONL file with a prompt on each line"
        )
    return texts


def read_corpus(paths: Sequence[Path]) -> Iterator[str]:
    """Yield documents, a line of JSON each (`text` or `content`), or paragraphs of plain text.

    Files are read line by line.

    Raises:
        PromptError: a file cannot be read, is no UTF-8, or a line of JSON holds no text.
    """
    for path in paths:
        paragraph: list[str] = []
        try:
            with path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if path.suffix == ".jsonl":
                        if line.strip():
                            yield _document(path, number, line)
                    elif line.strip():
                        paragraph.append(line)
                    elif paragraph:
                        yield "".join(paragraph)
                        paragraph = []
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise PromptError(
                f"cannot read the corpus {path} ({reason}): give text, or JSONL with text"
            ) from error
        if paragraph:
            yield "".join(paragraph)


def _document(path: Path, number: int, line: str) -> str:
    try:
        entry = json.loads(line)
        found = [entry.get(key) for key in ("text", "content")]
        return next(each for each in found if isinstance(each, str) and each.strip())
    except (ValueError, AttributeError, StopIteration) as error:
        raise PromptError(
            f"line {number} of {path} holds no text: each line is an object with text or content"
        ) from error


def cut_corpus(
    documents: Iterable[str], encode: Callable[[str], list[int]], length: int
) -> Iterator[Text]:
    """Yield texts of `length` tokens (the last of all may be shorter), documents joined.

    Every token but the first counts as written by the target.
    """
    tokens: list[int] = []
    index = 0
    for document in documents:
        tokens += encode(document if document.endswith("\n") else document + "\n\n")
        while len(tokens) >= length:
            yield Text(index, np.array(tokens[:length], dtype=np.int64), 1)
            index, tokens = index + 1, tokens[length:]
    if len(tokens) > 1:
        yield Text(index, np.array(tokens, dtype=np.int64), 1)


def prompts_digest(texts: Sequence[str]) -> str:
    """Return a short hash that identifies a set of prompts."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _text(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return ""
    if not isinstance(entry, dict):
        return ""
    turns = entry.get("turns")
    candidates = [turns[0] if isinstance(turns, list) and turns else None, *map(entry.get, _KEYS)]
    text = next((each for each in candidates if isinstance(each, str) and each.strip()), "")
    instances = entry.get("instances")
    if text and isinstance(instances, list) and instances and isinstance(instances[0], dict):
        text += f"\n\n{instances[0].get('input') or ''}"
    return text.strip()


# Texts per shard: shard k holds the texts that exist of indices [k SHARD, (k + 1) SHARD).
SHARD = 256


class Shards:
    """Folder of shards of one plan: made if missing with `settings`; None reads what is there.

    Raises:
        InvalidOption: the folder holds shards of other settings, or none to read.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        if settings is not None:
            folder.mkdir(parents=True, exist_ok=True)
        paths = self._paths()
        if settings is None and not paths:
            raise InvalidOption(
                f"{folder} holds no training text: write some with `paceline train data`"
            )
        self.settings = dict(settings) if settings is not None else _read_settings(paths[0])
        for path in paths:
            if _read_settings(path) != self.settings:
                raise InvalidOption(
                    f"{path} was made with other settings: choose another folder, or repeat the "
                    "settings to go on"
                )

    def missing(self, texts: int) -> Iterator[int]:
        """Yield indices below `texts` whose shard is not written yet."""
        for shard in range(-(-texts // SHARD)):
            if self.lacks(shard):
                yield from range(shard * SHARD, min(texts, (shard + 1) * SHARD))

    def lacks(self, shard: int) -> bool:
        return not self._path(shard).exists()

    def write(self, shard: int, texts: Sequence[Text]) -> None:
        """Write a shard atomically; InvalidOption if the folder cannot be written."""
        ordered = sorted(texts, key=lambda text: text.index)
        lengths = [len(text.tokens) for text in ordered]
        tensors: dict[str, np.ndarray] = {
            "tokens": np.concatenate([np.zeros(0, np.int32), *(t.tokens for t in ordered)]).astype(
                np.int32
            ),
            "begins": np.cumsum([0, *lengths]).astype(np.int64),
            "prompt_lengths": np.array([t.prompt_length for t in ordered], dtype=np.int64),
            "indices": np.array([t.index for t in ordered], dtype=np.int64),
        }
        shown = [text.picture for text in ordered if text.picture is not None]
        if shown:
            rows = [0 if text.picture is None else len(text.picture) for text in ordered]
            tensors["pictures"], tensors["picture_rows"] = np.concatenate(shown), np.array(rows)
            tensors["picture_begins"] = np.array([text.begin for text in ordered])
        metadata = {"settings": json.dumps(self.settings, sort_keys=True)}
        advice = "free some space, and repeat the command to go on"
        write_tensors(self._path(shard), tensors, metadata, advice)

    def read(self) -> list[Text]:
        """Return all texts in order; InvalidOption if a shard is damaged."""
        texts = []
        for path in self._paths():
            advice = "delete it, and repeat `paceline train data`"
            found = read_tensors(path, "training text", advice).tensors
            try:
                tokens, begins = found["tokens"], found["begins"].tolist()
                spans = pairwise(begins)
                rows = zip(found["indices"], found["prompt_lengths"], spans, strict=True)
            except KeyError as error:
                raise InvalidOption(f"{path} holds no training text: {advice}") from error
            written = [
                Text(int(index), tokens[a:b].astype(np.int64), int(prompt))
                for index, prompt, (a, b) in rows
            ]
            if "pictures" in found:
                parts = np.split(found["pictures"], np.cumsum(found["picture_rows"])[:-1])
                begins = found["picture_begins"].tolist()
                written = [
                    replace(text, picture=rows, begin=begin) if len(rows) else text
                    for text, rows, begin in zip(written, parts, begins, strict=True)
                ]
            texts += written
        return texts

    @property
    def tokens(self) -> int:
        return sum(len(text.tokens) for text in self.read())

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.safetensors"

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("shard-*.safetensors"))


def _read_settings(path: Path) -> dict[str, str]:
    advice = "delete it, and write it again"
    metadata = read_metadata(path, "training text", advice)
    try:
        settings = json.loads(metadata["settings"])
    except (KeyError, ValueError) as error:
        raise InvalidOption(f"{path} holds no training text ({error}): {advice}") from error
    return {str(key): str(value) for key, value in settings.items()}


def read_folders(folders: Sequence[Path]) -> tuple[list[Text], dict[str, str]]:
    """Read texts of several `paceline train data` folders, renumbered, with their merged settings.

    Raises:
        InvalidOption: a folder is empty, damaged, named twice, or of another model than the first.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InvalidOption("a folder of training text is named twice: name each once")
    shards = [Shards(folder) for folder in folders]
    first = shards[0]
    for other in shards[1:]:
        if other.settings["model"] != first.settings["model"]:
            raise InvalidOption(
                f"{first.folder} and {other.folder} were written by different models: train on "
                "text of one"
            )
    if len(shards) == 1:
        return first.read(), first.settings
    texts = [text for each in shards for text in each.read()]
    settings: dict[str, str] = {}
    for key in dict.fromkeys(key for each in shards for key in each.settings):
        values = [each.settings.get(key, "") for each in shards]
        settings[key] = values[0] if len(set(values)) == 1 else "; ".join(values)
    return [replace(text, index=place) for place, text in enumerate(texts)], settings
