"""What operators see of a turn: its log line, its span, its numbers, and never its content."""

import io
import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.support.otlp_collector import collecting
from tests.support.records import turn
from tieline.errors import how_to_install
from tieline_server.core.values import TurnRecord
from tieline_server.observability import telemetry
from tieline_server.observability.telemetry import (
    Signals,
    Telemetry,
    make_logger,
    signals_from_environment,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"


class Bench:
    """Telemetry whose log, spans and metrics can be read back. It is Unix second 1000."""

    def __init__(self, form: str = "json", level: str = "info") -> None:
        self.open_lines = 0
        self.stream = io.BytesIO()
        self.spans = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(
            make_logger(form, level, self.stream),
            clock=lambda: 11.0,
            now=lambda: 1000.0,
            signals=Signals(tracers, meters, connections=lambda: self.open_lines),
        )

    def observe(self, *records: TurnRecord) -> None:
        for record in records:
            self.telemetry.observe(record, "grpc")

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def span(self) -> ReadableSpan:
        (span,) = self.spans.get_finished_spans()
        return span

    def metrics(self) -> dict[str, list[Any]]:
        """Metric name -> its data points."""
        data = self.reader.get_metrics_data()
        assert data is not None
        scope = data.resource_metrics[0].scope_metrics[0]
        return {metric.name: list(metric.data.data_points) for metric in scope.metrics}


@pytest.fixture
def bench() -> Bench:
    return Bench()


class TestLog:
    def test_a_turn_is_one_line_with_its_ids_outcome_tokens_and_phases(self, bench: Bench) -> None:
        bench.observe(turn())
        (line,) = bench.lines()
        assert line.pop("timestamp").endswith("Z")
        assert line == {
            "event": "turn",
            "level": "info",
            "response_id": "resp_2",
            "previous_response_id": "resp_1",
            "owner": "ann",
            "model": "scripted",
            "lane": "side",
            "transport": "grpc",
            "kind": "turn",
            "outcome": "completed",
            "store": True,
            "input_tokens": 100,
            "cached_tokens": 60,
            "output_tokens": 28,
            "reasoning_tokens": 8,
            "duration_ms": 500.0,
            "first_token_ms": 200.0,
            "phases_us": {"prefill": 200_000, "decode": 300_000, "overhead": 900},
        }

    def test_a_turn_that_ended_early_says_why(self, bench: Bench) -> None:
        bench.observe(
            turn(outcome="incomplete", reason="deadline"),
            turn(outcome="failed", error_code="engine_unavailable", first_token_at=None),
        )
        early, failed = bench.lines()
        assert early["reason"] == "deadline"
        assert failed["error"] == "engine_unavailable"
        assert failed["level"] == "warning"
        assert "first_token_ms" not in failed

    def test_a_level_above_info_hides_turns_that_did_not_fail(self) -> None:
        bench = Bench(level="warning")
        bench.observe(turn(), turn(outcome="failed", error_code="server_error"))
        assert [line["outcome"] for line in bench.lines()] == ["failed"]

    def test_the_console_form_is_one_readable_line(self) -> None:
        bench = Bench("console")
        bench.observe(turn())
        (line,) = bench.stream.getvalue().decode().splitlines()
        assert " info turn response_id=resp_2 previous_response_id=resp_1 owner=ann" in line
        assert 'phases_us={"prefill":200000' in line

    @pytest.mark.parametrize("form", ["json", "console"])
    def test_what_a_client_chose_cannot_break_a_line_or_steer_a_terminal(self, form: str) -> None:
        bench = Bench(form)
        bench.observe(turn(outcome="refused", model="x\n\x1b[2J", previous_response_id="r" * 9999))
        written = bench.stream.getvalue()
        assert written.count(b"\n") == 1
        assert b"\x1b" not in written
        assert len(written) < 1000

    def test_what_libraries_log_becomes_a_line_with_its_traceback(self, bench: Bench) -> None:
        library = logging.Logger("somewhere.else")
        library.addHandler(telemetry.LibraryHandler(bench.telemetry.log))
        try:
            raise KeyError("cause")
        except KeyError:
            library.exception("it broke: %s", 7)
        library.debug("below the level")
        library.error("of a turn", extra={"response_id": "resp_1"})
        library.log(25, "%d", "not a number")
        line, of_a_turn, odd = bench.lines()
        assert of_a_turn["response_id"] == "resp_1"
        assert (odd["event"], odd["level"]) == ("%d", "info")
        assert (line["event"], line["level"]) == ("it broke: 7", "error")
        assert line["logger"] == "somewhere.else"
        assert "KeyError: 'cause'" in line["exception"]

    @pytest.mark.parametrize("form", ["json", "console"])
    def test_a_traceback_stays_with_its_line(self, form: str) -> None:
        bench = Bench(form)
        try:
            raise KeyError("cause")
        except KeyError:
            bench.telemetry.log.exception("it_broke")
        assert b"KeyError" in bench.stream.getvalue()


class TestSpan:
    def test_a_response_is_one_server_span_named_by_operation_and_model(self, bench: Bench) -> None:
        bench.observe(turn())
        span = bench.span()
        assert span.name == "chat scripted"
        assert span.kind is SpanKind.SERVER
        assert span.status.status_code is StatusCode.UNSET
        assert span.parent is None

    def test_it_lasts_from_create_to_end_in_unix_time(self, bench: Bench) -> None:
        bench.observe(turn())
        span = bench.span()
        assert (span.start_time, span.end_time) == (999_000_000_000, 999_500_000_000)

    def test_it_carries_ids_model_usage_and_phases_and_no_content(self, bench: Bench) -> None:
        """OB-05: with content capture off, a trace can still be joined."""
        bench.observe(turn())
        assert dict(bench.span().attributes or {}) == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "tieline",
            "gen_ai.request.model": "scripted",
            "gen_ai.response.model": "scripted",
            "gen_ai.response.id": "resp_2",
            "gen_ai.response.finish_reasons": ("completed",),
            "gen_ai.response.time_to_first_chunk": pytest.approx(0.2),
            "gen_ai.usage.input_tokens": 100,
            "gen_ai.usage.cache_read.input_tokens": 60,
            "gen_ai.usage.output_tokens": 28,
            "gen_ai.usage.reasoning.output_tokens": 8,
            "tieline.previous_response_id": "resp_1",
            "tieline.owner": "ann",
            "tieline.lane": "side",
            "tieline.transport": "grpc",
            "tieline.outcome": "completed",
            "tieline.phase.prefill": 200_000,
            "tieline.phase.decode": 300_000,
            "tieline.phase.overhead": 900,
        }

    def test_its_parent_is_the_trace_context_of_the_create(self, bench: Bench) -> None:
        context = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "a=b"}
        bench.observe(turn(trace_context=context))
        span = bench.span()
        assert span.parent is not None
        assert span.context is not None
        assert f"{span.context.trace_id:032x}" == TRACE_ID
        assert f"{span.parent.span_id:016x}" == PARENT_ID
        assert span.context.trace_state.get("a") == "b"

    def test_a_parent_that_is_not_sampled_leaves_no_span(self, bench: Bench) -> None:
        bench.observe(turn(trace_context={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}))
        assert bench.spans.get_finished_spans() == ()

    @pytest.mark.parametrize("context", [{"traceparent": "rubbish"}, {"other": "x"}, {}])
    def test_a_trace_context_that_cannot_be_read_is_none(
        self, context: dict[str, str], bench: Bench
    ) -> None:
        bench.observe(turn(trace_context=context))
        assert bench.span().parent is None

    @pytest.mark.parametrize(
        "outcome", ["completed", "incomplete", "cancelled", "failed", "disconnected"]
    )
    def test_every_turn_that_started_reports_its_outcome_and_usage(
        self, outcome: str, bench: Bench
    ) -> None:
        """OB-04: the outcome is the turn's own, never that of its transport."""
        bench.observe(turn(outcome=outcome))
        attributes = bench.span().attributes or {}
        assert attributes["tieline.outcome"] == outcome
        assert attributes["gen_ai.usage.output_tokens"] == 28

    def test_a_refused_request_reports_no_usage_and_no_name_of_the_clients(
        self, bench: Bench
    ) -> None:
        bench.observe(turn(outcome="refused", model="no-such", error_code="model_not_found"))
        span = bench.span()
        attributes = span.attributes or {}
        assert span.name == "chat"
        assert attributes["error.type"] == "model_not_found"
        assert not [name for name in attributes if name.startswith("gen_ai.usage")]

    def test_the_span_of_what_waited_when_its_line_went_has_no_name_of_the_clients(
        self, bench: Bench
    ) -> None:
        bench.observe(turn(outcome="disconnected", model="no-such", settled=False))
        span = bench.span()
        assert span.name == "chat"
        assert "gen_ai.response.model" not in (span.attributes or {})

    @pytest.mark.parametrize(
        ("outcome", "code", "status"),
        [
            ("failed", "server_error", StatusCode.ERROR),
            ("refused", "engine_unavailable", StatusCode.ERROR),
            ("refused", "model_not_found", StatusCode.UNSET),
            ("cancelled", None, StatusCode.UNSET),
        ],
    )
    def test_only_our_own_fault_is_an_error(
        self, outcome: str, code: str | None, status: StatusCode, bench: Bench
    ) -> None:
        bench.observe(turn(outcome=outcome, error_code=code))
        assert bench.span().status.status_code is status

    def test_a_prewarm_is_an_operation_of_its_own(self, bench: Bench) -> None:
        bench.observe(turn(kind="prewarm"))
        assert bench.span().name == "prewarm scripted"


class TestMetrics:
    def test_lines_are_those_open_now_and_events_add_up(self, bench: Bench) -> None:
        bench.open_lines = 2
        bench.observe(turn(events=28), turn(events=2))
        metrics = bench.metrics()
        (lines,) = metrics["tieline.server.connections.active"]
        (events,) = metrics["tieline.server.events"]
        assert (lines.value, events.value) == (2, 30)
        assert dict(events.attributes) == {"tieline.transport": "grpc"}

    def test_responses_are_counted_by_outcome_and_error(self, bench: Bench) -> None:
        bench.observe(turn(), turn(), turn(outcome="failed", error_code="server_error"))
        points = bench.metrics()["tieline.server.responses"]
        counts = {
            (point.attributes["tieline.outcome"], point.attributes.get("error.type")): point.value
            for point in points
        }
        assert counts == {("completed", None): 2, ("failed", "server_error"): 1}

    def test_tokens_are_summed_by_kind(self, bench: Bench) -> None:
        bench.observe(turn(), turn())
        points = bench.metrics()["tieline.server.tokens"]
        sums = {point.attributes["gen_ai.token.type"]: point.value for point in points}
        assert sums == {"input": 200, "cached": 120, "output": 56, "reasoning": 16}

    def test_durations_are_histograms_in_seconds(self, bench: Bench) -> None:
        bench.observe(turn(), turn(first_token_at=None))
        metrics = bench.metrics()
        (duration,) = metrics["gen_ai.server.request.duration"]
        (first,) = metrics["gen_ai.server.time_to_first_token"]
        assert (duration.count, duration.sum) == (2, pytest.approx(1.0))
        assert (first.count, first.sum) == (1, pytest.approx(0.2))
        assert duration.explicit_bounds[0] == 0.01
        assert duration.explicit_bounds[-1] == pytest.approx(81.92)

    def test_names_that_clients_invent_do_not_multiply_the_series(self, bench: Bench) -> None:
        records = [turn(outcome="refused", model=f"m{number}") for number in range(50)]
        bench.observe(*records)
        (point,) = bench.metrics()["tieline.server.responses"]
        assert point.value == 50


def exporting(bench: Bench) -> Telemetry:
    """Telemetry as the environment asks for it."""
    signals = signals_from_environment(bench.telemetry.log, connections=int)
    assert signals is not None
    return Telemetry(bench.telemetry.log, clock=lambda: 11.0, now=lambda: 1e9, signals=signals)


class TestEnvironment:
    @pytest.fixture(autouse=True)
    def _no_variables(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            monkeypatch.delenv(name)

    def test_without_the_variables_nothing_is_exported(self, bench: Bench) -> None:
        assert signals_from_environment(bench.telemetry.log, connections=int) is None
        assert bench.lines() == []

    @pytest.mark.parametrize("signal", ["TRACES", "METRICS"])
    def test_none_as_exporter_turns_a_signal_off(
        self, signal: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv(f"OTEL_{signal}_EXPORTER", "none")
        assert signals_from_environment(bench.telemetry.log, connections=int) is None

    def test_a_protocol_that_we_lack_is_said_in_one_line(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
        assert signals_from_environment(bench.telemetry.log, connections=int) is None
        (line,) = bench.lines()
        assert line["event"] == "telemetry_off"

    def test_an_endpoint_gets_spans_and_metrics_before_close_returns(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with collecting() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
            live = exporting(bench)
            live.observe(turn(), "grpc")
            live.close(60.0)
        assert [span.name for span in collector.spans] == ["chat scripted"]
        assert collector.resources[0]["service.name"] == "tieline"
        assert {"tieline.server.responses", "gen_ai.server.request.duration"} <= collector.metrics

    def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(
        self, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with collecting() as collector:
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
            collector.answers.clear()
            live = exporting(bench)
            live.observe(turn(), "grpc")
            live.close(0.05)
            assert collector.spans == []
            collector.answers.set()
            assert collector.answered.wait(60)

    def test_without_the_extra_turns_are_still_logged(self) -> None:
        script = """
import os, sys, time
sys.modules["opentelemetry"] = None
from tieline.responses import Usage
from tieline_server.core.values import Times, TurnRecord, Work
from tieline_server.observability.telemetry import Telemetry, make_logger, signals_from_environment
log = make_logger("json", "info", sys.stdout.buffer)
signals = signals_from_environment(log, connections=int)
telemetry = Telemetry(log, clock=time.monotonic, now=time.time, signals=signals)
telemetry.observe(TurnRecord(response_id="resp_1", previous_response_id=None, owner="ann",
    model="m", lane=None, outcome="completed", kind="turn", reason=None, error_code=None,
    usage=Usage(), times=Times(phases=dict, started_at=0.0, ended_at=1.0, first_token_at=None),
    trace_context=None, work=Work(), store=False, events=0), "grpc")
telemetry.close(1.0)
"""
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        warned, turned = (json.loads(line) for line in done.stdout.splitlines())
        assert how_to_install("otel") in warned["reason"]
        assert turned["response_id"] == "resp_1"
