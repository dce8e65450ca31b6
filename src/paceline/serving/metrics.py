"""Prometheus metrics: counted in the event loop, copied when they are asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from paceline.engine.engine import Event
from paceline.serving.admission import Gate
from paceline.serving.worker import Load

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


_TIMES = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
)
_GAUGES: dict[str, tuple[Callable[[Load], float], str]] = {
    "num_requests_running": (lambda load: load.running, "Sequences in the engine's batch."),
    "num_requests_waiting": (lambda load: load.waiting, "Sequences that wait for room."),
    "kv_cache_usage_perc": (
        lambda load: (load.blocks - load.free) / load.blocks if load.blocks else 0.0,
        "Share of key-value blocks in use, 0 to 1.",
    ),
}
# Those that the engine counts.
_OF_LOAD: dict[str, Callable[[Load], int]] = {
    "num_preemptions": lambda load: load.preemptions,
    "pictures_read": lambda load: load.pictures,
    "pictures_known": lambda load: load.known_pictures,
}
_COUNTERS = (
    "prompt_tokens",
    "generation_tokens",
    "sound_seconds",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "spec_decode_num_drafts",
    "spec_decode_num_draft_tokens",
    "spec_decode_num_accepted_tokens",
    "num_preemptions",
    "pictures_read",
    "pictures_known",
    "admission_rejections",
    "requests_not_answered",
)


class Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.sum += seconds

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound."""
        total, out = 0, []
        for bound, count in zip((*_SECONDS, "+Inf"), self.counts, strict=True):
            total += count
            out.append((str(bound), float(total)))
        return out


class ModelCounts:
    """Counters of a model."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.by_position: Counter[int] = Counter()
        self.finished: Counter[str] = Counter()
        self.times = {name: Histogram() for name in _TIMES}

    def saw(self, event: Event) -> None:
        """Count an event of the engine."""
        self.counts["generation_tokens"] += len(event.token_ids)
        if event.error is not None:
            self.finished["error"] += 1
        done = event.completion
        if done is None:
            return
        self.finished[done.finish_reason] += 1
        stats = done.stats
        self.counts["prompt_tokens"] += done.prompt_tokens
        self.counts["prefix_cache_queries"] += done.prompt_tokens
        self.counts["prefix_cache_hits"] += done.cached_tokens
        self.counts["spec_decode_num_drafts"] += sum(stats.drafted_by_depth[:1])
        self.counts["spec_decode_num_draft_tokens"] += stats.drafted_tokens
        self.counts["spec_decode_num_accepted_tokens"] += stats.accepted_tokens
        self.by_position.update(dict(enumerate(stats.accepted_by_depth)))
        assert stats.first_token_seconds is not None  # the text has ended
        self.times["time_to_first_token_seconds"].add(stats.first_token_seconds)
        if len(done.token_ids) > 1 and stats.committed_tokens:
            each = stats.decode_seconds / stats.committed_tokens
            self.times["inter_token_latency_seconds"].add(each)


class Metrics:
    """Counters of a server and its models, and their collector for Prometheus."""

    def __init__(
        self, gate: Gate, models: Callable[[], list[tuple[str, ModelCounts, Load]]], vllm: bool
    ) -> None:
        """`vllm` gives every metric under vLLM's name as well.

        `models` are told apart by the label `model_name` if they are several.
        """
        self._gate, self._models = gate, models
        self._prefixes = ("paceline:", "vllm:") if vllm else ("paceline:",)
        self._not_answered = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def ended(self, of: ModelCounts | None, answered: bool, seconds: float) -> None:
        """Count a request that has left, and whether it was answered to the end."""
        if answered and of is not None:
            of.times["e2e_request_latency_seconds"].add(seconds)
        else:
            self._not_answered += 1

    def page(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        models, server = self._models(), Counter[str]()
        server["admission_rejections"] = self._gate.refused
        server["requests_not_answered"] = self._not_answered
        labels = ["model_name"] if len(models) > 1 else []
        told = [([name] * len(labels), counts, load) for name, counts, load in models]
        for prefix in self._prefixes:
            for name, (value, help) in _GAUGES.items():
                gauge = GaugeMetricFamily(prefix + name, help, labels=labels)
                for label, _, load in told:
                    gauge.add_metric(label, value(load))
                yield gauge
            help = "Sequences of accepted requests."
            accepted = self._gate.sequences
            yield GaugeMetricFamily(f"{prefix}num_requests_accepted", help, accepted)
            for name in _COUNTERS:
                help = f"{name.replace('_', ' ').capitalize()}."
                if name in server:
                    yield CounterMetricFamily(prefix + name, help, server[name])
                    continue
                counter = CounterMetricFamily(prefix + name, help, labels=labels)
                for label, counts, load in told:
                    own = _OF_LOAD[name](load) if name in _OF_LOAD else counts.counts[name]
                    counter.add_metric(label, own)
                yield counter
            finished = CounterMetricFamily(
                prefix + "request_success", "Ended sequences.", labels=[*labels, "finished_reason"]
            )
            positions = CounterMetricFamily(
                prefix + "spec_decode_num_accepted_tokens_per_pos",
                "Accepted drafted tokens by their place in the draft.",
                labels=[*labels, "position"],
            )
            for label, counts, _ in told:
                for reason in ("stop", "loop", "length", "cancelled", "error"):
                    finished.add_metric([*label, reason], counts.finished[reason])
                for place in range(16):
                    positions.add_metric([*label, str(place)], counts.by_position[place])
            yield from (finished, positions)
            for name in _TIMES:
                family = HistogramMetricFamily(prefix + name, "Seconds.", labels=labels)
                for label, counts, _ in told:
                    times = counts.times[name]
                    family.add_metric(label, times.buckets, times.sum)
                yield family
