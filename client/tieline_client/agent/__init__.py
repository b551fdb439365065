"""An agent loop over a connection: plain typed functions as tools."""

from tieline_client.agent.execution import RepeatedCall
from tieline_client.agent.loop import Agent, Run, Turn, TurnLimitReached
from tieline_client.agent.outcomes import Outcome
from tieline_client.agent.timing import TurnTiming
from tieline_client.agent.tools import ArgumentsError, Tool, ToolDefinitionError

__all__ = [
    "Agent",
    "ArgumentsError",
    "Outcome",
    "RepeatedCall",
    "Run",
    "Tool",
    "ToolDefinitionError",
    "Turn",
    "TurnLimitReached",
    "TurnTiming",
]
