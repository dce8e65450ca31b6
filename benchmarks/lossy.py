"""What lossy rules buy and what they cost: block efficiency, agreement, perplexity.

    python benchmarks/lossy.py --prompts dev.jsonl --limit 12

Every rule decodes the same prompts at the same draft size: by default chains of up to 15 tokens, as
FLy has them, whose window of 6 needs 7 or more. `judge` and `pivot` need a head, from `paceline
train`: --rules judge:head=FILE. *Own* is the share of tokens that the target finds most probable
where they stand (greedy) and *prefix* the share of the text before it leaves that of plain
decoding. *Perplexity* is the target's own, of each rule's text; a lossy text may well score better
than the plain one, because likely text is not good text.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from paceline import Completion
from paceline.measure.prompts import BUILT_IN, read_prompts, spread
from paceline.registry.loading import load_model, make_engine

PLAIN = "plain"
GREEDY_RULES = ("coupled", "top-gap", "top-gap:beta=2,gap=0.5", "fly", "fly:window=2", "reflective")
SAMPLED_RULES = (
    *("coupled", "typical", "typical:greedy_next=false", "top-gap", "fly", "relaxed", "reflective"),
)


def main() -> None:
    """Decode with every rule and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=Path, help="Spec-Bench JSONL; default: the built-in mix")
    parser.add_argument("--limit", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--drafter", default="suffix-automaton")
    parser.add_argument("--draft-model")
    parser.add_argument("--nodes", type=int, default=15)
    parser.add_argument("--depth", type=int, default=15)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument(
        "--rules", nargs="*", help="default: coupled, and every lossy rule without a head"
    )
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    chosen = spread(BUILT_IN if given.prompts is None else read_prompts(given.prompts), given.limit)
    loaded = load_model(precision=given.precision, threads=given.threads)
    options: dict[str, Any] = {
        "max_new_tokens": given.max_new_tokens,
        "temperature": given.temperature,
        "logprobs": 1,
    }

    def decode(rule: str) -> tuple[list[Completion], bool]:
        engine = make_engine(
            loaded,
            drafter="none" if rule == PLAIN else given.drafter,
            verifier="coupled" if rule == PLAIN else rule,
            nodes=given.nodes,
            depth=given.depth,
            draft_model=None if rule == PLAIN else given.draft_model,
        )
        texts = [engine.generate(prompt.turns[0], **options) for prompt in chosen]
        return texts, bool(engine.config["lossless"])

    plain, _ = decode(PLAIN)
    rules = given.rules or (SAMPLED_RULES if given.temperature else GREEDY_RULES)
    rows = [figures(PLAIN, plain, plain, True)]
    for rule in rules:
        texts, lossless = decode(rule)
        rows.append(figures(rule, texts, plain, lossless))
        if not given.json:
            print(line(rows[-1]) if len(rows) > 2 else "\n".join(map(line, rows)), flush=True)
    if given.json:
        settings = {k: str(v) for k, v in vars(given).items() if k != "json" and v is not None}
        print(json.dumps({"settings": settings, "rows": rows}, indent=1))


def figures(
    rule: str, texts: Sequence[Completion], plain: Sequence[Completion], lossless: bool
) -> dict[str, Any]:
    """One rule's figures over all prompts."""
    entries = [entry for text in texts for entry in text.logprobs]
    prefix = 0
    for text, other in zip(texts, plain, strict=True):
        pairs = zip(text.token_ids, other.token_ids, strict=False)
        prefix += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    forwards = sum(text.stats.target_forwards for text in texts)
    return {
        "rule": rule,
        "lossless": lossless,
        "block_efficiency": len(entries) / forwards,
        "own": sum(e.token_id == e.top[0][0] for e in entries) / len(entries),
        "prefix": prefix / len(entries),
        "identical": sum(t.token_ids == p.token_ids for t, p in zip(texts, plain, strict=True)),
        "prompts": len(texts),
        "perplexity": math.exp(-sum(e.logprob for e in entries) / len(entries)),
    }


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    expected_accepted = "lossless" if row["lossless"] else "lossy"
    return (
        f"{row['rule']:26} {expected_accepted:9} tokens/forward {row['block_efficiency']:.2f}  "
        f"own {row['own']:.1%}  prefix {row['prefix']:.1%}  "
        f"identical {row['identical']}/{row['prompts']}  perplexity {row['perplexity']:.2f}"
    )


if __name__ == "__main__":
    main()
