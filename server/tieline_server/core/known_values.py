"""The words that OpenAI's API has where it has a list of them, for the settings of a create.

A word that is on no list would be echoed as if it meant something; it is refused instead.
"""

from typing import Final

from tieline.complaints import invalid_value
from tieline.requests import Create

INCLUDE: Final = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
)
"""What ``include`` may name (wire.md 2.1.4). A response is stored with all that it has."""

TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")
"""What OpenAI's API knows as ``service_tier``."""

TRUNCATIONS: Final = ("auto", "disabled")
"""What OpenAI's API knows as ``truncation``."""

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""What OpenAI's API knows as ``reasoning.effort``."""

SUMMARIES: Final = ("auto", "concise", "detailed")
"""What OpenAI's API knows as ``reasoning.summary``; clients say "none" as well, and mean null."""

VERBOSITIES: Final = ("low", "medium", "high")
"""What OpenAI's API knows as ``text.verbosity``."""


def check(create: Create) -> None:
    """Refuses words of a create's own members; raises :class:`ApiError` 400 ``invalid_value``."""
    if create.truncation not in (None, *TRUNCATIONS):
        raise invalid_value("truncation", create.truncation, TRUNCATIONS)
    if create.service_tier not in (None, *TIERS):
        raise invalid_value("service_tier", create.service_tier, TIERS)
    for index, name in enumerate(create.include or ()):
        if name not in INCLUDE:
            raise invalid_value(f"include[{index}]", name, INCLUDE)
