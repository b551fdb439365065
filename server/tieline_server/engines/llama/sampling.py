"""How an answer is sampled: a create's settings as the runtime takes them.

What the response echoes is what is done, but for one thing: where no setting says how to sample,
unlikely tokens are left out. The API has no name for that, and a model this small needs it.
"""

from typing import Final

from tieline_server.core.create.settings import LOGPROBS, Settings
from tieline_server.engines.chat_format.prompt import Ready
from tieline_server.engines.llama.runtime import Completion

LIKELY: Final = 0.2
"""Where no setting says how to sample, tokens less likely than this part of the likeliest
are out."""


def completion_of(ready: Ready, settings: Settings) -> Completion:
    """What the runtime is asked for; the slot is still to be given."""
    echo = settings.echo
    constraint = ready.constraint
    return Completion(
        ids=ready.ids,
        max_tokens=ready.max_tokens,
        temperature=1.0 if settings.temperature is None else settings.temperature,
        top_p=1.0 if settings.top_p is None else settings.top_p,
        min_p=LIKELY if settings.temperature is None and settings.top_p is None else 0.0,
        presence_penalty=echo.get("presence_penalty") or 0.0,
        frequency_penalty=echo.get("frequency_penalty") or 0.0,
        grammar=constraint.grammar,
        told=constraint.speech.told if constraint.speech else (),
        logprobs=(settings.top_logprobs or 0) if LOGPROBS in settings.include else None,
    )
