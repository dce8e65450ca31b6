"""Write the expected values of a kind anew: `python -m tests.net.make templates`.

Of rope it writes the files for `judge_rope.py`, which runs where xllamacpp is.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.tiny_model import SPECIAL, save_directory, tiny_config, tiny_tokenizer
from tests.net.files import HERE


def directory(files: dict[str, Any], path: Path) -> Path:
    """A model directory with the files of a case, on top of those of the tiny model."""
    save_directory(path, tiny_config())
    own = path / "tokenizer_config.json"
    config = {**json.loads(own.read_text()), "eos_token": SPECIAL[2]}
    for name, content in files.items():
        if name == "tokenizer_config.json":
            content = {**config, **content}
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text, encoding="utf-8")
    if "tokenizer_config.json" not in files:
        own.write_text(json.dumps(config))
    return path


def templates(given: dict[str, Any]) -> Any:
    import transformers

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tiny_tokenizer(), bos_token=SPECIAL[0], eos_token=SPECIAL[2]
    )
    try:
        return tokenizer.apply_chat_template(
            given["messages"],
            tools=given.get("tools"),
            chat_template=given["template"],
            tokenize=False,
            add_generation_prompt=not given.get("continue"),
            continue_final_message=bool(given.get("continue")),
            **given.get("arguments", {}),
        )
    except Exception:
        return None


def tokenizers(given: dict[str, Any]) -> Any:
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        path = directory(given["files"], Path(folder))
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in given["texts"]]
        plain = [tokenizer.decode(each, skip_special_tokens=True) for each in ids]
        return {"ids": ids, "plain": plain}


def main() -> None:
    import transformers

    kind = sys.argv[1]
    judge = {"templates": templates, "tokenizers": tokenizers}[kind]
    for path in sorted((HERE / kind).glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        content["judge"] = {"name": "transformers", "version": transformers.__version__}
        for case in content["cases"]:
            case["expected"] = judge({**content.get("shared", {}), **case["input"]})
        text = json.dumps(content, ensure_ascii=False, indent=1)
        path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
