"""A bare client of a model: aiohttp on uvloop, bodies made beforehand, answers read to their end.

It cannot be faster on this stack. One pooled connection that is kept alive, no cookies, no
redirects, no JSON, no event looked at: a body goes out, and the answer's bytes are taken as they
come. ``python -m tieline_bench.bare.poster URL FOLDER`` posts FOLDER/N.json for each line
N on its input, and answers by a line when that is over.
"""

import asyncio
import sys
from pathlib import Path
from typing import Final

import aiohttp
import uvloop

READY: Final = "ready"


async def _post(url: str, bodies: dict[str, bytes]) -> None:
    orders = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Content-Type": "application/json"},
        timeout=aiohttp.ClientTimeout(total=None),
    ) as session:
        _say(READY)
        while order := (await orders.readline()).decode().strip():
            body = bodies[order]
            response = await session.post(url, data=body, allow_redirects=False)
            while await response.content.readany():
                pass
            _say(f"{response.status} {len(body)}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    made = {path.stem: path.read_bytes() for path in Path(sys.argv[2]).glob("*.json")}
    uvloop.run(_post(sys.argv[1], made))
