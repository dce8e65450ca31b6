"""paceline itself over the same lines as its peers, so that its clock is theirs.

`python -m benchmarks.peers` starts it with its own Python.
"""

from __future__ import annotations

import argparse
import time
from functools import cache
from pathlib import Path

from answering import Continuations, Distribution, Timing, claim_output, serve
from arrivals import Arrivals


def main() -> None:
    """Load the model with and without speculation and answer."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--files", type=Path, help="of other engines; not used")
    parser.add_argument("--precision", choices=("file", "int8", "int4", "fp32"), default="file")
    parser.add_argument("--drafter", default="auto")
    parser.add_argument("--draft-model", type=Path, help="for drafters that use one")
    parser.add_argument("--context", type=int, help="longest prompt and text")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=1, help="most prompts together")
    parser.add_argument("--plain", action="store_true", help="load nothing that drafts")
    parser.add_argument("--drafts", action="store_true", help="load only what drafts")
    arguments = parser.parse_args()
    lines = claim_output()

    from paceline.engine.memory import keep_apart
    from paceline.lab.audit.engine import SeededRequest
    from paceline.lab.audit.named import PacelineEngine
    from paceline.lab.measure.run import read_alike
    from paceline.registry.loading import load_model, make_engine

    loaded = load_model(
        str(arguments.model),
        precision=arguments.precision,
        threads=arguments.threads,
        max_context=arguments.context,
    )
    keep_apart(loaded.target)
    draft = None if arguments.draft_model is None else str(arguments.draft_model)
    drafters = {True: arguments.drafter, False: "none"}
    if arguments.plain or arguments.drafts:
        del drafters[arguments.plain]
    engines = {
        speculation: make_engine(
            loaded,
            drafter=drafter,
            draft_model=draft if speculation else None,
            max_batch=arguments.batch,
        )
        for speculation, drafter in drafters.items()
    }
    if not arguments.plain:
        read_alike(engines.values(), loaded.costs)

    @cache
    def audited() -> PacelineEngine:
        return PacelineEngine(loaded, drafter=arguments.drafter, draft_model=draft)

    def continuations(
        prompt: list[int], speculation: bool, temperature: float, tokens: int, seeds: list[int]
    ) -> Continuations:
        ask = SeededRequest(tuple(prompt), speculation, temperature, tokens, tuple(seeds))
        return [list(map(int, row)) for row in audited().continuations(ask)], None

    def distribution(prompt: list[int], temperature: float) -> Distribution:
        found = audited().distribution(tuple(prompt), temperature) or {}
        return [(int(token), mass) for token, mass in found.items()]

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        engine = engines[speculation]
        engine.decoder.reset()  # else it knows its answer from the round before
        begun = time.perf_counter()
        done = engine.generate(prompt, max_new_tokens=tokens, ignore_eos=True)
        return {
            "tokens": list(done.token_ids),
            "seconds": time.perf_counter() - begun,
            "first_seconds": done.stats.first_token_seconds,
        }

    def batch(prompts: list[list[int]], speculation: bool, tokens: int) -> Timing:
        engine = engines[speculation]
        engine.decoder.reset()
        arrivals = Arrivals(len(prompts))
        requests = [engine.add(each, max_new_tokens=tokens, ignore_eos=True) for each in prompts]
        while engine.pending:
            step = {requests.index(each.request): each.token_ids for each in engine.step()}
            arrivals.take(step)
        return arrivals.timing()

    config = engines[not arguments.plain].config
    about = {
        "engine": "paceline",
        "version": str(config["version"]),
        "weights": str(config["precision"]),
        "drafting": f"{config['drafter']}, controller {config['controller']}",
    }
    serve(lines, about, continuations, distribution, timing, batch)


if __name__ == "__main__":
    main()
