"""The store in a database: the contract of all stores, on each kind of database."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.database import durable
from tests.support.store_contract import StoreContract
from tieline_server.stores.base import ResponseStore


class TestContract(StoreContract):
    @pytest.fixture(autouse=True)
    def _address(self, address: str) -> None:
        self.address = address

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ResponseStore]:
        async with durable(self.address) as opened:
            yield opened.store
