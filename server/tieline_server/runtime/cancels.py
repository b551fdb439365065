"""Cancels that came in elsewhere, for turns of this process."""

import asyncio
import logging
from typing import Final

from tieline.errors import ApiError
from tieline_server.runtime.services import Services

logger: Final = logging.getLogger("tieline.runtime")

PERIOD: Final = 0.25
"""Seconds between two looks at the words that were left."""

PAUSE: Final = 5.0
"""Seconds until the next look after one that failed."""


async def heed_cancels(services: Services) -> None:
    """Cancels what others have left word for, until it is cancelled itself."""
    while True:
        try:
            for wanted in await services.journal.asked_cancels():
                services.running.cancel(wanted.owner, wanted.response_id)
        except ApiError:
            await asyncio.sleep(PAUSE)  # The part that found out what is away has logged it.
        except Exception:
            logger.exception("journal.asked_cancels failed")
            await asyncio.sleep(PAUSE)
        await asyncio.sleep(PERIOD)
