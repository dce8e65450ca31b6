"""Small models draft answers, and a larger one reads them and decides (Speculative Verdict).

    python examples/verdict.py problems.jsonl --expert smollm2-135m --expert A.gguf --verdict B.gguf

Every expert answers, with its reasoning, and scores the answers of all (2510.20812): the logarithm
of an answer's perplexity behind the question, beside that of its own. What experts score alike is
consensus: the `--keep` drafts with the least sum of differences are read by the larger model, which
gives the answer. Nothing is verified, so this is no lossless method: it is to be more often right.

A line of problems is `{"question": ..., "answer": ...}`, and the last number is the answer. Printed
are the shares of right answers, of each model alone, of the experts' vote, and of the verdict.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

import paceline
from paceline.lab.measure import results

ASK = "{question}\n\nThink step by step, and end with: The answer is NUMBER."
JUDGE = (
    "{question}\n\nHere are answers of {count} others. Some may be wrong.\n\n{drafts}\n\n"
    "Solve the problem step by step with what is right in them, say where they go wrong, and end "
    "with: The answer is NUMBER."
)
SCORED = "Question: {question}\nAnswer:"
TOGETHER = 4
"""Problems that are answered at once."""
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@dataclass(frozen=True)
class Draft:
    """What an expert wrote, and the number that it came to: empty where there is none."""

    text: str
    answer: str


def last_number(text: str) -> str:
    """Return the last number of a text as it is compared, or nothing."""
    found = NUMBER.findall(text)
    return f"{float(found[-1].replace(',', '')):g}" if found else ""


def answers(engine: paceline.Engine, prompts: Sequence[str], tokens: int) -> list[tuple[str, int]]:
    """Answer prompts greedily; return texts, and passes of the model."""
    done = engine.generate(list(prompts), max_new_tokens=tokens)
    return [(each.text, each.stats.target_forwards) for each in done]


def log_perplexity(engine: paceline.Engine, question: str, answer: str) -> float:
    """Return the mean surprise of an answer's tokens behind its question, in one pass."""
    asked = engine.tokenizer.prompt(SCORED.format(question=question), raw=True)
    said = engine.tokenizer.plain(f" {answer}")
    read = engine.generate([*asked, *said], max_new_tokens=0, prompt_logprobs=0)
    return -sum(each.logprob for each in read.prompt_logprobs[-len(said) :]) / len(said)


def distances(surprise: Sequence[Sequence[float]]) -> list[float]:
    """Return how far each draft is from what the experts hold likely, summed over these.

    Args:
        surprise: by expert, the log-perplexity of every expert's answer; the first expert's own is
            the first, and so on. An answer that is not there is infinite, and its expert not asked.
    """
    said = [own for own, row in enumerate(surprise) if isfinite(row[own])]
    return [
        sum(abs(surprise[own][draft] - surprise[own][own]) for own in said)
        if draft in said
        else inf
        for draft in range(len(surprise))
    ]


def consensus(surprise: Sequence[Sequence[float]], keep: int) -> list[int]:
    """Return the drafts with the least distances, in their order."""
    apart = distances(surprise)
    return sorted(sorted(range(len(apart)), key=apart.__getitem__)[:keep])


def vote(drafts: Sequence[Draft]) -> str:
    """Return the answer that most give; of those given alike the last expert's, the largest."""
    counts = Counter(each.answer for each in reversed(drafts) if each.answer)
    return counts.most_common(1)[0][0] if counts else ""


def judged(question: str, drafts: Sequence[Draft]) -> str:
    """Return what the verdict's model is asked."""
    shown = [
        f"Answer {number}: {each.text.strip()}\n(It came to: {each.answer or 'nothing'})"
        for number, each in enumerate(drafts, 1)
    ]
    return JUDGE.format(question=question, count=len(drafts), drafts="\n\n".join(shown))


def answered(
    problems: Sequence[Mapping[str, str]],
    experts: Mapping[str, paceline.Engine],
    judge: paceline.Engine,
    keep: int,
    tokens: int,
) -> list[dict[str, tuple[bool, int]]]:
    """Answer problems in all ways; return, by problem and way, what is right and the passes."""
    questions = [each["question"] for each in problems]
    plain = [ASK.format(question=each) for each in questions]
    said = {name: answers(engine, plain, tokens) for name, engine in experts.items()}
    out = []
    drafts = [
        [Draft(text, last_number(text)) for text, _ in some]
        for some in zip(*said.values(), strict=True)
    ]
    asked = []
    for question, some in zip(questions, drafts, strict=True):
        surprise = []
        for engine in experts.values():
            known = {e.answer: log_perplexity(engine, question, e.answer) for e in some if e.answer}
            surprise.append([known.get(each.answer, inf) for each in some])
        asked.append(judged(question, [some[at] for at in consensus(surprise, keep)]))
    said |= {"alone": answers(judge, plain, tokens), "verdict": answers(judge, asked, tokens)}
    for at, (problem, some) in enumerate(zip(problems, drafts, strict=True)):
        right = last_number(problem["answer"])
        found = {
            way: (last_number(each[at][0]) == right, each[at][1]) for way, each in said.items()
        }
        out.append(found | {"vote": (vote(some) == right, 0)})
    return out


def show(given: argparse.Namespace, found: Sequence[Mapping[str, tuple[bool, int]]]) -> None:
    """Print a line by way, and write --record."""
    few = [each for each in found if sum(each[name][0] for name in given.expert) == 1]
    columns = ["answer of", f"right of {len(found)}", f"one expert right, of {len(few)}", "passes"]
    rows: list[list[results.Cell]] = [
        [
            Path(way).stem,
            sum(each[way][0] for each in found),
            sum(each[way][0] for each in few),
            round(sum(each[way][1] for each in found) / len(found)),
        ]
        for way in (*given.expert, "vote", "alone", "verdict")
    ]
    for row in (list[results.Cell](columns), *rows):
        print(*row, sep="\t")
    if given.record is None:
        return
    experts = " ".join(f"--expert {Path(each).name}" for each in given.expert)
    results.record(
        Path("docs/results/data") / f"{given.record}.json",
        "Speculative Verdict: small drafts, and a larger model that reads them",
        "methods",
        f"python examples/verdict.py gsm8k.jsonl {experts} --verdict {Path(given.verdict).name} "
        f"--keep {given.keep} --count {len(found)}",
        columns,
        rows,
        note=(
            f"Grade-school problems, answers of at most {given.tokens} tokens, greedy; the verdict "
            f"reads {given.keep} of {len(given.expert)} drafts, and *alone* none. Passes are of an "
            "answer."
        ),
        figures={f"right of {len(found)}, {row[0]}": row[1] for row in rows[-3:]},
    )


def main() -> None:
    """Answer problems, some at a time, and print what is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("problems", type=Path, help="JSON lines")
    parser.add_argument("--expert", action="append", required=True, help="at least two")
    parser.add_argument("--verdict", required=True, help="the larger model")
    parser.add_argument("--keep", type=int, default=2, help="drafts that it reads")
    parser.add_argument("--count", type=int, default=40, help="problems, the first of the file")
    parser.add_argument("--tokens", type=int, default=256, help="of an answer, at most")
    parser.add_argument("--threads", type=int, help="default all cores")
    parser.add_argument("--out", type=Path, default=Path("verdict.jsonl"), help="answered so far")
    parser.add_argument("--record", metavar="NAME", help="also write docs/results/data/NAME.json")
    given = parser.parse_args()
    lines = given.problems.read_text(encoding="utf-8").splitlines()[: given.count]
    done = given.out.read_text(encoding="utf-8").splitlines() if given.out.exists() else []
    if len(done) < len(lines):
        *some, judge = (
            paceline.load(name, threads=given.threads) for name in (*given.expert, given.verdict)
        )
        experts = dict(zip(given.expert, some, strict=True))
        for at in range(len(done), len(lines), TOGETHER):
            problems = [json.loads(each) for each in lines[at : at + TOGETHER]]
            found = answered(problems, experts, judge, given.keep, given.tokens)
            done += [json.dumps(each) for each in found]
            given.out.write_text("\n".join(done) + "\n", encoding="utf-8")
            print(f"{len(done)} of {len(lines)}", file=sys.stderr, flush=True)
    show(given, [json.loads(each) for each in done[: len(lines)]])


if __name__ == "__main__":
    main()
