"""Windows of sounds that a Whisper wrote down, kept with what its drafters read: a file each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from paceline.audio.read import read_sound
from paceline.core.cache import write_atomically, written_file
from paceline.core.target import Listens, Target
from paceline.core.types import LogitArray
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption
from paceline.lab.training.data import Text
from paceline.listening.windows import Listener, Listening
from paceline.methods.gad.transcript import rows_of_sound

_ADVICE = "give another --data"
_LOOKED_AT = (-2, -1)  # layers of the decoder


class KeptWindows:
    """A folder of windows, with the fingerprint of the model that wrote them down.

    Kept are of each, in float16: "features" `[tokens, 4 * hidden_size]`; "looked_at" `[2, rows, 2,
    kv_heads, head_dim]`, of the decoder's last two layers; and "rows", what `rows_of_sound` says.
    """

    def __init__(self, folder: Path, model: str) -> None:
        """Open or make it; InvalidOption if another model's are in it, or it is unwritable."""
        self._folder, note = folder, folder / "model"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not note.exists():
                write_atomically(note, model)
            known = note.read_text()
        except OSError as error:
            raise InvalidOption(f"cannot use {folder} ({error.strerror}): {_ADVICE}") from error
        if known != model:
            raise InvalidOption(f"{folder} holds windows of another model: {_ADVICE}")

    def hear(self, files: Sequence[Path], engine: Engine) -> Iterator[int]:
        """Write down sounds that are not there yet; yield the windows of each, once it is whole.

        Texts that were drawn anew at a temperature are left out: drafts are of greedy ones.
        """
        listener = Listener(engine)
        target = engine.decoder.target
        hears = cast(Listens, target)
        for file in files:
            sound = read_sound(file)
            name = hashlib.sha256(sound.tobytes()).hexdigest()[:16]
            done, count = self._folder / f"{name}.done", 0
            if done.exists():
                continue
            transcript = listener.begin(sound, Listening(language=None))
            try:
                while (asked := transcript.next()) is not None:
                    at, completion = transcript.at, engine.generate(asked)
                    assert asked.speech is not None
                    cache = hears.open_to(asked.speech.memory)
                    try:
                        transcript.heard(completion)
                        stands = transcript.at > at and not transcript.window.temperature
                        if stands and asked.constraint is not None:
                            path = self._folder / f"{name}-{count:05}.npz"
                            tokens = [*asked.tokens, *completion.token_ids]
                            _write(path, target, cache, tokens, len(asked.tokens))
                            count += 1
                    finally:
                        target.release(cache)
            finally:
                transcript.let_go()
            write_atomically(done, "")
            yield count

    @cached_property
    def _paths(self) -> list[Path]:
        whole = {each.stem for each in self._folder.glob("*.done")}
        return sorted(
            each for each in self._folder.glob("*.npz") if each.stem.partition("-")[0] in whole
        )

    def texts(self) -> list[Text]:
        """Return their texts; `index` is that of `read`."""
        found = []
        for index, path in enumerate(self._paths):
            with np.load(path, allow_pickle=False) as file:
                found.append(Text(index, file["tokens"], int(file["prompt_length"])))
        return found

    def digest(self) -> str:
        """Return a name for what is here."""
        return hashlib.sha256("\n".join(each.name for each in self._paths).encode()).hexdigest()

    def read(self, text: Text, part: str) -> LogitArray:
        """Return a part of what is kept of a text's window, as float32."""
        with np.load(self._paths[text.index], allow_pickle=False) as file:
            found: LogitArray = file[part].astype(np.float32)
        return found


def _write(
    path: Path, target: Target, cache: Any, tokens: Sequence[int], prompt_length: int
) -> None:
    # The cache is empty, and looks at the sound.
    hears, features = cast(Listens, target), target.prefill(cache, tokens, True)
    assert features is not None
    looked_at = np.stack([hears.heard(cache, layer) for layer in _LOOKED_AT])
    rows = rows_of_sound(hears, cache)
    kept = {"features": features, "looked_at": looked_at, "rows": rows}
    halves: dict[str, Any] = {name: each.astype(np.float16) for name, each in kept.items()}
    with written_file(path, _ADVICE) as part, part.open("wb") as file:
        np.savez(file, tokens=np.array(tokens), prompt_length=prompt_length, **halves)
