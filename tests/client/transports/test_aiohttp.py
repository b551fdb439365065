"""The private names of aiohttp are there, and mean what they meant."""

import asyncio

import aiohttp
from aiohttp import web

from tests.client.web import serving
from tieline_client.transports._aiohttp import Connector, Traffic


async def answer(_request: web.Request) -> web.StreamResponse:
    return web.Response(text="hi")


async def test_connections_are_made_by_the_connector_s_factory() -> None:
    traffic = Traffic()
    connector = Connector(traffic, ssl=True)
    async with serving(answer) as address, aiohttp.ClientSession(connector=connector) as session:
        async with session.get(f"http://{address}/") as got:
            assert await got.text() == "hi"
        assert traffic.heard
        assert traffic.connected
        traffic.abort()
        await asyncio.sleep(0)
        assert not traffic.connected
