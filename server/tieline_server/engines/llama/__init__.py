"""The llama engine: a real model on this machine's CPU, in process."""

from tieline_server.engines.llama.engine import LlamaEngine, LlamaKind

__all__ = ["LlamaEngine", "LlamaKind"]
