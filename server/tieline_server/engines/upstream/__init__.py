"""The upstream engine: any OpenAI-compatible server samples, by its chat completions."""

from tieline_server.engines.upstream.engine import UpstreamEngine

__all__ = ["UpstreamEngine"]
