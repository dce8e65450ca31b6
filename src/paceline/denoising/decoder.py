"""Decoder of canvases: one forward a step for the whole batch, each sequence at its own step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from paceline.core.metrics import Clock
from paceline.core.target import Rows, Target
from paceline.core.types import CanvasParams, CanvasTraits, SamplingParams
from paceline.denoising.caches import CachePlan
from paceline.denoising.distributions import Distributions
from paceline.denoising.process import Context, Process, Sampler, Terms
from paceline.denoising.unmasking import block_sizes, check_parts
from paceline.engine.decoder import Commit, Decoder
from paceline.engine.prefill import Chunk
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.sampling.generation import Generation

NO_OPTIONS = CanvasParams()


# From the options of a request: its sampler and its cache plan. Raises InvalidOption.
MakeParts = Callable[[CanvasParams, CanvasTraits], tuple[Sampler, CachePlan]]


@dataclass(slots=True)
class _Work:
    # The process of a sequence, and the answer's tokens as they were last shown, if they are.
    process: Process
    shows: bool
    shown: list[int] = field(default_factory=list)


class DenoisingDecoder(Decoder):
    """Decode sequences by processes. The prompt rides in the first forward of each."""

    autoregressive: ClassVar[bool] = False
    target: Target

    def __init__(
        self,
        target: Target,
        facts: CanvasTraits,
        stops: StopRules,
        make_parts: MakeParts,
        default: CanvasParams = NO_OPTIONS,
    ) -> None:
        """Bind the parts; `default` holds the options of requests that leave them out."""
        super().__init__(target, stops)
        self.facts = facts
        self._make_parts = make_parts
        self._default = default

    @property
    def rule(self) -> str:
        return f"denoising {self._default}"

    def check(
        self, params: SamplingParams, denoising: CanvasParams | None, constrained: bool = False
    ) -> None:
        options = self._options(denoising)
        sampler, plan = self._make_parts(options, self.facts)
        room = min(params.max_new_tokens, self.target.capabilities.max_context)
        size = min(room, block_sizes(self.facts, options, room)[0])
        check_parts(sampler, Terms(self.facts, plan, params, size, constrained))
        if params.logprobs is not None and params.forced_tokens:
            raise InvalidOption(
                "logprobs do not go with forced_tokens, whose places are never asked: leave out one"
            )
        if params.prompt_logprobs is not None:
            raise InvalidOption(
                "prompt_logprobs have no meaning for a model that fills a canvas: leave them out"
            )
        ordered = {
            "dry_multiplier": params.dry_multiplier > 0,
            "repeat_last_n": params.repeat_last_n >= 0,
            "xtc_probability": params.xtc_probability > 0,
            "mirostat": params.mirostat > 0,
        }
        for name in filter(ordered.get, ordered):
            raise InvalidOption(
                f"{name} is for texts that are written from left to right, and this model fills a "
                "canvas: leave it out"
            )
        if self.facts.mask in params.forced_tokens.values():
            raise InvalidOption(
                f"forced_tokens holds the mask, token {self.facts.mask}: leave out that place"
            )
        for index in params.forced_tokens:
            if index >= params.max_new_tokens:
                raise InvalidOption(
                    f"forced_tokens wants a token at {index}, beyond max_new_tokens "
                    f"{params.max_new_tokens}: raise it, or leave that token out"
                )

    def _open(self, sequence: Generation, sibling: Generation | None) -> None:
        # One that was preempted keeps its process, which fills the same again.
        if sequence.work is None:
            options = self._options(sequence.denoising)
            sampler, plan = self._make_parts(options, self.facts)
            process = sampler.process(self._context(sequence, options, plan))
            sequence.work = _Work(process, options.steps)
        sequence.cache = self.target.open()

    def _context(self, sequence: Generation, options: CanvasParams, plan: CachePlan) -> Context:
        ends = self.stops.ends(sequence.params)
        room = min(
            sequence.params.max_new_tokens,
            self.target.capabilities.max_context - sequence.prompt_length,
        )
        distributions = Distributions(sequence, self.facts, ends)
        return Context(sequence, self.facts, options, distributions, room, plan)

    def _options(self, given: CanvasParams | None) -> CanvasParams:
        if given is None:
            return self._default
        known = {f.name: getattr(given, f.name) for f in fields(given)}
        return replace(self._default, **{k: v for k, v in known.items() if v is not None})

    def step(
        self, sequences: Sequence[Generation], chunks: Sequence[Chunk] = (), *, drafts: bool = True
    ) -> list[Commit]:
        clock = Clock()
        processes: list[Process] = [each.work.process for each in sequences]
        blocks = []
        for sequence, process in zip(sequences, processes, strict=True):
            ask = process.ask()
            if ask.drop is not None:
                self.target.truncate(sequence.cache, ask.drop)
            blocks.append(
                Rows.block(
                    sequence.cache,
                    ask.tokens,
                    ask.places,
                    ask.sees,
                    cached=ask.cached,
                    wanted=ask.wanted,
                )
            )
        with clock("forward"):
            outputs = self.target.forward(blocks)
        commits = []
        for sequence, process, block, output in zip(
            sequences, processes, blocks, outputs, strict=True
        ):
            sequence.stats.target_forwards += 1
            sequence.stats.position_evaluations += len(block.tokens)
            try:
                kept = process.take(output.logits)
                self.target.keep(sequence.cache, 0, kept)
                commits.append(self._commit(sequence, process))
            except Exception as error:
                commits.append(self._failed(sequence, error))
                self.target.keep(sequence.cache, 0, ())
        for sequence in sequences:
            sequence.stats.add_step(clock, 1 / len(sequences))
        return commits

    def _release(self, sequence: Generation) -> None:
        if sequence.cache is not None:
            self.target.release(sequence.cache)
            sequence.cache = None
        if sequence.work is not None:
            sequence.work.process.forget()

    def _commit(self, sequence: Generation, process: Process) -> Commit:
        begin, canvas = len(sequence.tokens), process.canvas
        run = canvas.tokens[begin : canvas.final]
        known = process.logprobs
        commit = self._extend(sequence, run, [None] * len(run), lambda at: known[begin + at])
        if commit.finish_reason is not None:
            sequence.stats.log_likelihood = process.log_likelihood(len(sequence.tokens))
        return commit._replace(fills=self._fills(sequence.work)) if sequence.work.shows else commit

    def _fills(self, work: _Work) -> tuple[tuple[int, int], ...]:
        canvas = work.process.canvas
        now, before = canvas.tokens[canvas.begin :], work.shown
        work.shown = now
        before = before + [canvas.mask] * (len(now) - len(before))
        return tuple((i, new) for i, new in enumerate(now) if new != before[i])
