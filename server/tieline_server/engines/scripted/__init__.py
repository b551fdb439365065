"""The scripted engine: deterministic answers by rules, at a pace, with faults on demand."""

from tieline_server.engines.scripted.engine import ScriptedEngine, ScriptedKind

__all__ = ["ScriptedEngine", "ScriptedKind"]
