"""What the server tells its operators: log lines, spans, metrics. Every name is in this file.

One log line, one SERVER span and a few numbers for each response; never content, and nothing
for each token. OpenTelemetry is optional: without the extra ``[otel]``, or without the
environment variables of its exporters, only the log lines are left.
"""

import logging
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, BinaryIO, Final, cast
from uuid import uuid4

import msgspec
import structlog
from structlog.typing import FilteringBoundLogger

from tieline.errors import ERRORS, how_to_install
from tieline_server.core.values import TurnRecord
from tieline_server.observability.metrics import BUCKETS, Numbers, model_of

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import Tracer, TracerProvider

# Log lines.
TURN: Final = "turn"
STARTED: Final = "started"
DRAINING: Final = "draining"
INTERRUPTED: Final = "interrupted"
STOPPED: Final = "stopped"
KEY_REFUSED: Final = "key_refused"
KEYS_KEPT: Final = "keys_kept"
DATABASE_AWAY: Final = "database_away"
DATABASE_BACK: Final = "database_back"
DATABASE_FULL: Final = "database_full"
ENGINE_AWAY: Final = "engine_away"
ENGINE_BACK: Final = "engine_back"
TELEMETRY_OFF: Final = "telemetry_off"

# Metrics.
CONNECTIONS: Final = "tieline.server.connections.active"
EVENTS: Final = "tieline.server.events"
RESPONSES: Final = "tieline.server.responses"
TOKENS: Final = "tieline.server.tokens"
KEYS_REFUSED: Final = "tieline.server.keys.refused"
GUARD_CHECKS: Final = "tieline.server.guard.checks"
GUARD_HITS: Final = "tieline.server.guard.hits"
GUARD_FAILURES: Final = "tieline.server.guard.failures"
GUARD_SECONDS: Final = "tieline.server.guard.seconds"
DURATION: Final = "gen_ai.server.request.duration"
FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"

# Attributes of spans and metrics (OTel GenAI conventions where they have a name).
OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
RESPONSE_ID: Final = "gen_ai.response.id"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"
OUTCOME: Final = "tieline.outcome"
TRANSPORT: Final = "tieline.transport"
PREVIOUS_RESPONSE_ID: Final = "tieline.previous_response_id"
LANE: Final = "tieline.lane"
OWNER: Final = "tieline.owner"
GUARD: Final = "tieline.guard"
STAGE: Final = "tieline.stage"
PHASE: Final = "tieline.phase."
"""Followed by a phase's name; the value is microseconds."""

INSTANCE: Final = "service.instance.id"
SCOPE: Final = "tieline"
OPERATIONS: Final = {"turn": "chat", "prewarm": "prewarm", "compaction": "compact"}
"""Kind of turn -> operation, the first word of the span's name."""

CLIP: Final = 256
"""Characters of a string that a client chose and we write down."""


_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-|\Z)")

HEAD: Final = ("timestamp", "level", "event")
"""How every line begins."""


def make_logger(form: str, level: str, stream: BinaryIO) -> FilteringBoundLogger:
    """A logger of one line for each event; ``form`` is json or console."""
    render = _render_json if form == "json" else _render_console
    logger = structlog.wrap_logger(
        structlog.BytesLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    # Bound at once: what is not would be looked up again for each line, written or not.
    return cast(FilteringBoundLogger, logger.bind())


def _render_json(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> bytes:
    return msgspec.json.encode({**{name: line.pop(name) for name in HEAD}, **line}, enc_hook=repr)


def _render_console(_logger: Any, _method: str, line: MutableMapping[str, Any]) -> bytes:
    """``time level event key=value ...``, and a traceback below."""
    trace = line.pop("exception", None)
    head = [line.pop(name) for name in HEAD]
    words = [*map(_word, head), *(f"{name}={_word(value)}" for name, value in line.items())]
    return "\n".join([" ".join(words), *([trace] if trace else [])]).encode("utf-8", "replace")


def _word(value: Any) -> str:
    """A value as text. What a client chose must not steer the operator's terminal."""
    if isinstance(value, str) and value.isprintable():
        return value
    return msgspec.json.encode(value, enc_hook=repr).decode()


class LibraryHandler(logging.Handler):
    """Writes what is logged by the standard module as lines of ours."""

    _STANDARD: Final = frozenset(vars(logging.makeLogRecord({})))

    def __init__(self, log: FilteringBoundLogger) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One record, one line; its traceback with it."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            message = str(record.msg)
        # A level of a library's own counts as the standard one below it.
        level = min(logging.CRITICAL, max(logging.DEBUG, record.levelno // 10 * 10))
        extra = {name: each for name, each in vars(record).items() if name not in self._STANDARD}
        self._log.log(level, message, logger=record.name, exc_info=record.exc_info, **extra)


def open_log(form: str, level: str) -> FilteringBoundLogger:
    """The process's log on stderr; what libraries log by the standard module goes there too.

    ``form`` and ``level`` are the settings ``log_format`` and ``log_level``.
    """
    if form == "auto":
        form = "console" if sys.stderr.isatty() else "json"
    log = make_logger(form, level, sys.stderr.buffer)
    logging.basicConfig(level=level.upper(), handlers=[LibraryHandler(log)], force=True)
    # At info it tells of its own plug-ins; which schema a database gets is in our own line.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    return log


class Telemetry:
    """Writes down what happens. ``clock`` and ``now`` give seconds, monotonic and Unix.

    The runtime calls ``observe`` for each turn.
    """

    def __init__(
        self,
        log: FilteringBoundLogger,
        *,
        clock: Callable[[], float],
        now: Callable[[], float],
        signals: "Signals | None" = None,
    ) -> None:
        self.log = log
        self._clock = clock
        self._now = now
        self._signals = signals
        self.numbers = Numbers() if signals is None else signals.numbers
        """What ``/metrics`` says."""

    def observe(self, record: TurnRecord, transport: str) -> None:
        """A turn ended: its log line, its span, its numbers."""
        self.numbers.observe(record, transport)
        level = logging.WARNING if record.outcome == "failed" else logging.INFO
        if self.log.is_enabled_for(level):
            self.log.log(level, TURN, **turn_line(record, transport))
        if self._signals is not None:
            ended_at = self._now() - (self._clock() - record.times.ended_at)
            self._signals.observe(record, transport, ended_at=ended_at)

    def key_refused(self, transport: str) -> None:
        """A call had no key, or a wrong one."""
        self.numbers.refusals[(transport,)] += 1

    def say_refused(self, transport: str, address: str, count: int) -> None:
        """The same for the log, which is spared most of what one address does."""
        self.log.warning(KEY_REFUSED, transport=transport, address=address, count=count)

    def close(self, timeout: float) -> None:
        """Exports what is left, within ``timeout`` seconds. Blocks."""
        if self._signals is not None:
            # A collector that is gone must not hold up the exit: the SDK alone tries for 30 s.
            flush = threading.Thread(target=self._signals.shutdown, daemon=True)
            flush.start()
            flush.join(timeout)


def turn_line(record: TurnRecord, transport: str) -> dict[str, Any]:
    """The members of a turn's log line; what is None is left out."""
    usage, caller = record.usage, record.caller
    members = {
        "response_id": record.response_id,
        "previous_response_id": _clip(record.previous_response_id),
        "request_id": caller and caller.request_id,
        "client_request_id": caller and caller.client_request_id,
        "trace_id": _trace_id(record.trace_context),
        "address": (caller and caller.address) or None,
        "owner": record.owner,
        "model": _clip(record.model),
        "lane": record.lane,
        "transport": transport,
        "kind": record.kind,
        "outcome": record.outcome,
        "reason": record.reason,
        "error": record.error_code,
        "store": record.store,
        "input_tokens": usage.input_tokens,
        "cached_tokens": usage.input_tokens_details.cached_tokens,
        "output_tokens": usage.output_tokens,
        "reasoning_tokens": usage.output_tokens_details.reasoning_tokens,
        "duration_ms": round((record.times.ended_at - record.times.started_at) * 1000, 3),
        "first_token_ms": _milliseconds(_first_token(record)),
        "phases_us": record.times.phases(),
    }
    return {name: value for name, value in members.items() if value is not None}


def span_attributes(record: TurnRecord, transport: str) -> dict[str, Any]:
    """The attributes of a response's span; what is None is left out."""
    usage = record.usage
    started = record.outcome != "refused"
    attributes = {
        PROVIDER: SCOPE,
        REQUEST_MODEL: _clip(record.model) or None,
        RESPONSE_MODEL: record.public_model or None,
        RESPONSE_ID: record.response_id,
        PREVIOUS_RESPONSE_ID: _clip(record.previous_response_id),
        OWNER: record.owner,
        LANE: record.lane,
        TRANSPORT: transport,
        OUTCOME: record.outcome,
        ERROR_TYPE: record.error_code,
        FINISH_REASONS: (record.reason or record.outcome,) if started else None,
        FIRST_CHUNK: _first_token(record),
        INPUT_TOKENS: usage.input_tokens if started else None,
        CACHED_TOKENS: usage.input_tokens_details.cached_tokens if started else None,
        OUTPUT_TOKENS: usage.output_tokens if started else None,
        REASONING_TOKENS: usage.output_tokens_details.reasoning_tokens if started else None,
    }
    attributes |= {PHASE + name: value for name, value in record.times.phases().items()}
    return {name: value for name, value in attributes.items() if value is not None}


def _trace_id(trace_context: Mapping[str, str] | None) -> str | None:
    """The id in a W3C trace context; a header that is none has no id."""
    found = _TRACEPARENT.match((trace_context or {}).get("traceparent", ""))
    return None if found is None else found[1]


def _first_token(record: TurnRecord) -> float | None:
    if record.times.first_token_at is None:
        return None
    return record.times.first_token_at - record.times.started_at


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 3)


def _clip(text: str | None) -> str | None:
    return text if text is None else text[:CLIP]


class Signals:
    """Spans and metrics of OpenTelemetry, by the providers given.

    ``connections`` tells how many connections are open now; it is called in the exporter's thread.
    Sums are those of ``numbers``, which the exporter reads when it wants them.
    """

    def __init__(
        self, tracers: "TracerProvider", meters: "MeterProvider", *, connections: Callable[[], int]
    ) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.numbers = Numbers()
        self._providers = (tracers, meters)
        self._tracer: Tracer = tracers.get_tracer(SCOPE)
        self._extract = TraceContextTextMapPropagator().extract
        self._server = SpanKind.SERVER
        self._error = StatusCode.ERROR
        # The parent of what has none. Never the current context: that is some task's own.
        self._root = Context()
        self._instrument(meters.get_meter(SCOPE), connections)

    def _instrument(self, meter: "Meter", connections: Callable[[], int]) -> None:
        meter.create_observable_up_down_counter(
            CONNECTIONS, [self._measure(connections)], "{connection}", "Open connections."
        )
        meter.create_observable_counter(
            EVENTS, [self._read(self.numbers.events, TRANSPORT)], "{event}", "Events of responses."
        )
        responses = self._read(
            self.numbers.responses, TRANSPORT, REQUEST_MODEL, OUTCOME, ERROR_TYPE
        )
        meter.create_observable_counter(RESPONSES, [responses], "{response}", "Responses ended.")
        tokens = self._read(self.numbers.tokens, REQUEST_MODEL, TOKEN_TYPE)
        meter.create_observable_counter(TOKENS, [tokens], "{token}", "Tokens used.")
        refusals = self._read(self.numbers.refusals.copy, TRANSPORT)
        meter.create_observable_counter(
            KEYS_REFUSED, [refusals], "{call}", "Calls whose API key is missing or wrong."
        )
        self._instrument_guards(meter)
        self._duration = meter.create_histogram(
            DURATION, "s", "Create to end.", explicit_bucket_boundaries_advisory=BUCKETS
        )
        self._first_token = meter.create_histogram(
            FIRST_TOKEN,
            "s",
            "Create to first token.",
            explicit_bucket_boundaries_advisory=BUCKETS,
        )

    def _instrument_guards(self, meter: "Meter") -> None:
        counts = self.numbers.guards
        for name, counter, unit, meaning in (
            (GUARD_CHECKS, counts.checks, "{piece}", "Pieces that guards have read."),
            (GUARD_HITS, counts.hits, "{piece}", "Pieces that guards have flagged."),
            (GUARD_FAILURES, counts.failures, "{time}", "Times that a guard could not be asked."),
            (GUARD_SECONDS, counts.seconds, "s", "Seconds that guards have read."),
        ):
            meter.create_observable_counter(
                name, [self._read(counter.copy, GUARD, STAGE)], unit, meaning
            )

    @staticmethod
    def _measure(
        value: Callable[[], int],
    ) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        """A callback that asks for one number."""
        from opentelemetry.metrics import Observation

        return lambda _options: [Observation(value())]

    @staticmethod
    def _read(
        counted: Callable[[], Mapping[Any, float]], *names: str
    ) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        """A callback that reads what was ``counted``; its keys are the values of ``names``."""
        from opentelemetry.metrics import Observation

        def read(_options: "CallbackOptions") -> "Iterable[Observation]":
            # The exporter's thread reads while the loop counts: what it gets is a copy.
            for key, value in counted().items():
                labels = {name: each for name, each in zip(names, key, strict=True) if each}
                yield Observation(value, labels)

        return read

    def observe(self, record: TurnRecord, transport: str, *, ended_at: float) -> None:
        """One ended turn; ``ended_at`` is in Unix seconds."""
        model = model_of(record)
        labels = {REQUEST_MODEL: model, TRANSPORT: transport, OUTCOME: record.outcome}
        duration = record.times.ended_at - record.times.started_at
        self._duration.record(duration, labels)
        first = _first_token(record)
        if first is not None:
            self._first_token.record(first, labels)
        self._trace(record, transport, start=ended_at - duration, end=ended_at)

    def _trace(self, record: TurnRecord, transport: str, *, start: float, end: float) -> None:
        """The span is made when the turn is over, so that no span is open for hours."""
        operation = OPERATIONS[record.kind]
        model = record.public_model
        carrier = record.trace_context
        span = self._tracer.start_span(
            f"{operation} {model}".strip(),
            context=self._extract(carrier, self._root) if carrier else self._root,
            kind=self._server,
            # All of them now: setting them later costs half as much again.
            attributes={OPERATION: operation, **span_attributes(record, transport)},
            start_time=int(start * 1e9),
        )
        if _is_ours(record):
            span.set_status(self._error)
        span.end(int(end * 1e9))

    def shutdown(self) -> None:
        """Exports what is left. Blocks for as long as the SDK wants to."""
        for provider in self._providers:
            shutdown = getattr(provider, "shutdown", None)
            if shutdown is not None:
                shutdown()


def _is_ours(record: TurnRecord) -> bool:
    """Whether the server is at fault: only that is an error of a SERVER span."""
    row = ERRORS.get(record.error_code or "")
    return record.outcome == "failed" or (row is not None and row.status >= 500)


def signals_from_environment(
    log: FilteringBoundLogger, *, connections: Callable[[], int]
) -> Signals | None:
    """Signals as the OTEL_* variables ask, or None where nothing would be exported.

    Providers that are already installed (``opentelemetry-instrument``) are used as they are.
    """
    try:
        from opentelemetry import metrics, trace
    except ImportError:
        if _wanted("TRACES") or _wanted("METRICS"):
            log.warning(TELEMETRY_OFF, reason=f"not installed: {how_to_install('otel')}")
        return None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return Signals(
            trace.get_tracer_provider(), metrics.get_meter_provider(), connections=connections
        )
    if not (_wanted("TRACES") or _wanted("METRICS")):
        return None
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    if protocol != "grpc":
        log.warning(TELEMETRY_OFF, reason=f"OTLP over {protocol} is not supported, only grpc is")
        return None
    return _exporting(connections)


def _wanted(signal: str) -> bool:
    """Whether the environment names an OTLP endpoint for a signal and does not turn it off."""
    if os.environ.get(f"OTEL_{signal}_EXPORTER", "otlp") != "otlp":
        return False
    endpoints = (f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    return any(os.environ.get(name) for name in endpoints)


def _exporting(connections: Callable[[], int]) -> Signals:
    """Providers of the SDK with OTLP exporters, which read their variables themselves."""
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SCOPE}
    if INSTANCE not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        # Without it the sums of several workers would pass for one that jumps to and fro.
        named[INSTANCE] = str(uuid4())
    resource = Resource.create(named)
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    if _wanted("TRACES"):
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if _wanted("METRICS") else []
    meters = MeterProvider(readers, resource=resource, shutdown_on_exit=False)
    return Signals(tracers, meters, connections=connections)
