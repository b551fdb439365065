"""An OpenTelemetry collector that listens in this process: spans and metrics over OTLP."""

import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics_pb2
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as trace_pb2
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as trace_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(trace_grpc.TraceServiceServicer, metrics_grpc.MetricsServiceServicer):
    """An OTLP collector that keeps what it is sent; it answers while ``answers`` is set."""

    def __init__(self) -> None:
        self.endpoint = ""
        self.answers = threading.Event()
        self.answers.set()
        self.answered = threading.Event()
        self.resources: list[dict[str, str]] = []
        self.spans: list[Span] = []
        self.metrics: set[str] = set()

    def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
        assert self.answers.wait(60)
        self.answered.set()
        if isinstance(request, trace_pb2.ExportTraceServiceRequest):
            for each in request.resource_spans:
                attributes = each.resource.attributes
                self.resources.append({pair.key: pair.value.string_value for pair in attributes})
                self.spans += each.scope_spans[0].spans
            return trace_pb2.ExportTraceServiceResponse()
        for each in request.resource_metrics:
            self.metrics |= {metric.name for metric in each.scope_metrics[0].metrics}
        return metrics_pb2.ExportMetricsServiceResponse()


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens on a free port."""
    collector = Collector()
    server = grpc.server(futures.ThreadPoolExecutor(2))
    # The generated stubs are untyped.
    trace_grpc.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    metrics_grpc.add_MetricsServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.endpoint = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        server.stop(None).wait()
