"""The numbers of this process since its start, and their text for Prometheus.

Kept here, and read when a scraper asks for them, because recording each one in a metrics library
costs more than all the rest of a turn's telemetry. Names follow the OpenTelemetry metrics of
``telemetry`` as Prometheus spells them, so that a dashboard sees the same by either way.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tieline_server.core.values import TurnRecord
from tieline_server.guards.base import Counts

BUCKETS: Final = tuple(0.01 * 2**power for power in range(14))
"""Seconds, 0.01 to 81.92 doubling: what the GenAI conventions ask of duration histograms."""

OTHER: Final = "_OTHER"
"""Stands for a model that was not resolved: the name of it is the client's, so unbounded."""

Labels = tuple[str, ...]


class Histogram:
    """Counts of seconds by bucket, and their sum."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def record(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def add(self, other: "Histogram") -> None:
        """All that another one has counted."""
        self.counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class Series:
    """Sums over turns that have ended alike."""

    __slots__ = ("cached", "durations", "events", "first_tokens", "input", "output", "reasoning",
                 "turns")  # fmt: skip

    def __init__(self) -> None:
        self.turns = self.events = 0
        self.input = self.cached = self.output = self.reasoning = 0
        self.durations = Histogram()
        self.first_tokens = Histogram()

    def add(self, record: TurnRecord) -> None:
        """One more."""
        self.turns += 1
        self.events += record.events
        usage = record.usage
        self.input += usage.input_tokens
        self.cached += usage.input_tokens_details.cached_tokens
        self.output += usage.output_tokens
        self.reasoning += usage.output_tokens_details.reasoning_tokens
        times = record.times
        started_at, first_token_at = times.started_at, times.first_token_at
        self.durations.record(times.ended_at - started_at)
        if first_token_at is not None:
            self.first_tokens.record(first_token_at - started_at)


class Numbers:
    """Sums over the turns that have ended. They are added up further when a scraper asks."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str, str], Series] = {}
        """By transport, model, outcome, error."""
        self.guards = Counts()
        """What guards read."""
        self.refusals: Counter[Labels] = Counter()
        """Wrong keys by transport."""

    def observe(self, record: TurnRecord, transport: str) -> None:
        """A turn ended."""
        alike = (transport, model_of(record), record.outcome, record.error_code or "")
        series = self._series.get(alike)
        if series is None:
            series = self._series[alike] = Series()
        series.add(record)

    def events(self) -> Counter[Labels]:
        """Events by transport."""
        sums: Counter[Labels] = Counter()
        for (transport, *_), series in self._all():
            sums[(transport,)] += series.events
        return sums

    def responses(self) -> dict[Labels, int]:
        """Responses by transport, model, outcome, error."""
        return {alike: series.turns for alike, series in self._all()}

    def tokens(self) -> Counter[Labels]:
        """Tokens by model and kind."""
        sums: Counter[Labels] = Counter()
        for (_, model, *_), series in self._all():
            sums[model, "input"] += series.input
            sums[model, "cached"] += series.cached
            sums[model, "output"] += series.output
            sums[model, "reasoning"] += series.reasoning
        return sums

    def durations(self) -> dict[Labels, Histogram]:
        """Seconds from create to end by model, transport, outcome."""
        return _by_outcome((alike, series.durations) for alike, series in self._all())

    def first_tokens(self) -> dict[Labels, Histogram]:
        """The same to the first token, of turns that had one."""
        had = ((alike, series.first_tokens) for alike, series in self._all())
        return _by_outcome((alike, each) for alike, each in had if any(each.counts))

    def _all(self) -> list[tuple[tuple[str, str, str, str], Series]]:
        # The exporter's thread reads while the loop counts: a list is made in one atomic step.
        return list(self._series.items())

    def text(self, *, connections: int, history_bytes: int = 0, evicted: int = 0) -> bytes:
        """All of them as Prometheus reads them (text format 0.0.4).

        ``connections`` are open now and hold ``history_bytes`` of items; ``evicted`` chains went.
        """
        parts = [
            *_held(connections, history_bytes, evicted),
            *_sum(
                "tieline_server_events_total",
                "counter",
                "Events of responses.",
                self.events().items(),
                ("tieline_transport",),
            ),
            *_sum(
                "tieline_server_responses_total",
                "counter",
                "Responses ended.",
                self.responses().items(),
                ("tieline_transport", "gen_ai_request_model", "tieline_outcome", "error_type"),
            ),
            *_sum(
                "tieline_server_tokens_total",
                "counter",
                "Tokens used.",
                self.tokens().items(),
                ("gen_ai_request_model", "gen_ai_token_type"),
            ),
            *_sum(
                "tieline_server_keys_refused_total",
                "counter",
                "Calls whose API key is missing or wrong.",
                list(self.refusals.items()),
                ("tieline_transport",),
            ),
            *_guard("checks", "Pieces that guards have read.", self.guards.checks),
            *_guard("hits", "Pieces that guards have flagged.", self.guards.hits),
            *_guard("failures", "Times that a guard could not be asked.", self.guards.failures),
            *_guard("seconds", "Seconds that guards have read.", self.guards.seconds),
            *_histogram(
                "gen_ai_server_request_duration_seconds", "Create to end.", self.durations()
            ),
            *_histogram(
                "gen_ai_server_time_to_first_token_seconds",
                "Create to first token.",
                self.first_tokens(),
            ),
        ]
        return ("\n".join(parts) + "\n").encode()


def model_of(record: TurnRecord) -> str:
    """The model as a label."""
    return record.public_model or OTHER


def _by_outcome(
    parts: Iterable[tuple[tuple[str, str, str, str], Histogram]],
) -> dict[Labels, Histogram]:
    sums: dict[Labels, Histogram] = {}
    for (transport, model, outcome, _), each in parts:
        sums.setdefault((model, transport, outcome), Histogram()).add(each)
    return sums


def _head(name: str, kind: str, meaning: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}"
    yield f"# TYPE {name} {kind}"


def _sum(
    name: str,
    kind: str,
    meaning: str,
    values: Iterable[tuple[Labels, float]],
    names: Sequence[str],
) -> Iterator[str]:
    yield from _head(name, kind, meaning)
    for labels, value in values:
        yield f"{name}{_labels(names, labels)} {value}"


def _held(connections: int, history_bytes: int, evicted: int) -> Iterator[str]:
    yield from _sum(
        "tieline_server_connections_active", "gauge", "Open connections.", [((), connections)], ()
    )
    yield from _sum(
        "tieline_server_history_bytes",
        "gauge",
        "Bytes of the items that open connections remember.",
        [((), history_bytes)],
        (),
    )
    yield from _sum(
        "tieline_server_history_evictions_total",
        "counter",
        "Chains that had to go for want of memory.",
        [((), evicted)],
        (),
    )


def _guard(what: str, meaning: str, values: Mapping[tuple[str, str], float]) -> Iterator[str]:
    name, labels = f"tieline_server_guard_{what}_total", ("tieline_guard", "tieline_stage")
    # The loop counts while a thread may read.
    return _sum(name, "counter", meaning, list(values.items()), labels)


_HISTOGRAM_LABELS: Final = ("gen_ai_request_model", "tieline_transport", "tieline_outcome")


def _histogram(name: str, meaning: str, values: Mapping[Labels, Histogram]) -> Iterator[str]:
    yield from _head(name, "histogram", meaning)
    for labels, histogram in values.items():
        count = 0
        for bound, each in zip((*BUCKETS, None), histogram.counts, strict=True):
            count += each
            edge = "+Inf" if bound is None else f"{bound:g}"
            where = _labels((*_HISTOGRAM_LABELS, "le"), (*labels, edge))
            yield f"{name}_bucket{where} {count}"
        yield f"{name}_sum{_labels(_HISTOGRAM_LABELS, labels)} {histogram.total!r}"
        yield f"{name}_count{_labels(_HISTOGRAM_LABELS, labels)} {count}"


def _labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels in braces, those that are empty left out.

    >>> _labels(("a", "b"), ('say "hi"', ""))
    '{a="say \\\\"hi\\\\""}'
    """
    pairs = [
        f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True) if value
    ]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


Family = dict[str, int | float]
"""Name with labels -> value, of the samples of one metric."""


def add_up(living: Iterable[bytes], dead: Iterable[bytes] = ()) -> bytes:
    """The texts of several processes as that of one: each number is the sum of theirs.

    Of those that are ``dead`` only what never shrinks counts, that is no gauge.
    """
    heads: dict[str, list[str]] = {}
    families: dict[str, Family] = {}
    for texts, gauges in ((living, True), (dead, False)):
        for text in texts:
            _add(text.decode(), heads, families, gauges=gauges)
    lines: list[str] = []
    for name, head in heads.items():
        lines += head
        lines += [f"{sample} {value!r}" for sample, value in families[name].items()]
    return "".join(f"{line}\n" for line in lines).encode()


def _add(
    text: str, heads: dict[str, list[str]], families: dict[str, Family], *, gauges: bool
) -> None:
    counts = False
    family: Family = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name = line.split(" ", 3)[2]
            heads.setdefault(name, [line, ""])
            family = families.setdefault(name, {})
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ", 3)
            heads[name][1] = line
            counts = gauges or kind != "gauge"
        elif counts:
            sample, _, value = line.rpartition(" ")
            number = float(value) if "." in value or "e" in value else int(value)
            family[sample] = family.get(sample, 0) + number
