"""The upstream engine: any OpenAI-compatible server samples, in one of several modes."""

from tieline_server.engines.upstream.engine import UpstreamEngine, UpstreamKind

__all__ = ["UpstreamEngine", "UpstreamKind"]
