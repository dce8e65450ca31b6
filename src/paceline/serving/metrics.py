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


class Metrics:
    """Counters of a server, and its collector for Prometheus."""

    def __init__(self, gate: Gate, load: Callable[[], Load], vllm: bool) -> None:
        """`vllm` gives every metric under vLLM's name as well."""
        self._gate, self._load = gate, load
        self._prefixes = ("paceline:", "vllm:") if vllm else ("paceline:",)
        self._counts: Counter[str] = Counter()
        self._by_position: Counter[int] = Counter()
        self._finished: Counter[str] = Counter()
        self._times = {
            name: Histogram()
            for name in (
                "time_to_first_token_seconds",
                "inter_token_latency_seconds",
                "e2e_request_latency_seconds",
            )
        }
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def saw(self, event: Event) -> None:
        """Count an event of the engine."""
        self._counts["generation_tokens"] += len(event.token_ids)
        if event.error is not None:
            self._finished["error"] += 1
        done = event.completion
        if done is None:
            return
        self._finished[done.finish_reason] += 1
        stats = done.stats
        self._counts["prompt_tokens"] += done.prompt_tokens
        self._counts["prefix_cache_queries"] += done.prompt_tokens
        self._counts["prefix_cache_hits"] += done.cached_tokens
        self._counts["spec_decode_num_drafts"] += sum(stats.drafted_by_depth[:1])
        self._counts["spec_decode_num_draft_tokens"] += stats.drafted_tokens
        self._counts["spec_decode_num_accepted_tokens"] += stats.accepted_tokens
        self._by_position.update(dict(enumerate(stats.accepted_by_depth)))
        assert stats.first_token_seconds is not None  # the text has ended
        self._times["time_to_first_token_seconds"].add(stats.first_token_seconds)
        if len(done.token_ids) > 1 and stats.committed_tokens:
            each = stats.decode_seconds / stats.committed_tokens
            self._times["inter_token_latency_seconds"].add(each)

    def ended(self, answered: bool, seconds: float) -> None:
        """Count a request that has left, and whether it was answered to the end."""
        if answered:
            self._times["e2e_request_latency_seconds"].add(seconds)
        else:
            self._counts["requests_not_answered"] += 1

    def page(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        gate, load = self._gate, self._load()
        used = (load.blocks - load.free) / load.blocks if load.blocks else 0.0
        gauges = {
            "num_requests_running": (load.running, "Sequences in the engine's batch."),
            "num_requests_waiting": (load.waiting, "Sequences that wait for room."),
            "num_requests_accepted": (gate.sequences, "Sequences of accepted requests."),
            "kv_cache_usage_perc": (used, "Share of key-value blocks in use, 0 to 1."),
        }
        counts = self._counts | Counter(
            {"num_preemptions": load.preemptions, "admission_rejections": gate.refused}
        )
        names = (
            "prompt_tokens",
            "generation_tokens",
            "prefix_cache_queries",
            "prefix_cache_hits",
            "spec_decode_num_drafts",
            "spec_decode_num_draft_tokens",
            "spec_decode_num_accepted_tokens",
            "num_preemptions",
            "admission_rejections",
            "requests_not_answered",
        )
        for prefix in self._prefixes:
            for name, (value, help) in gauges.items():
                yield GaugeMetricFamily(prefix + name, help, value)
            for name in names:
                help = f"{name.replace('_', ' ').capitalize()}."
                yield CounterMetricFamily(prefix + name, help, counts[name])
            finished = CounterMetricFamily(
                prefix + "request_success", "Ended sequences.", labels=["finished_reason"]
            )
            for reason in ("stop", "loop", "length", "cancelled", "error"):
                finished.add_metric([reason], self._finished[reason])
            yield finished
            positions = CounterMetricFamily(
                prefix + "spec_decode_num_accepted_tokens_per_pos",
                "Accepted drafted tokens by their place in the draft.",
                labels=["position"],
            )
            for place in range(16):
                positions.add_metric([str(place)], self._by_position[place])
            yield positions
            for name, times in self._times.items():
                yield HistogramMetricFamily(
                    prefix + name, "Seconds.", buckets=times.buckets, sum_value=times.sum
                )
