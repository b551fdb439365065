"""Composition: what the settings become, and what a whole server does with it."""

import asyncio
import gc
import io
import os
import signal
import sqlite3
from base64 import b64encode
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.support.otlp_collector import collecting
from tests.support.server_process import serving, write_script
from tieline.errors import TielineError
from tieline.v1 import items_pb2, requests_pb2, responses_pb2, service_pb2, service_pb2_grpc
from tieline_client import connect
from tieline_server.app import Signals, limits_of, opened, serve
from tieline_server.auth.keys import KeyFileError
from tieline_server.config import PREFIX, Config, ConfigError
from tieline_server.core.values import Principal
from tieline_server.guards.base import GuardError
from tieline_server.observability.telemetry import make_logger
from tieline_server.runtime import Services, running
from tieline_server.storage.memory import MemoryStore
from tieline_server.storage.sql.responses import SqlStore
from tieline_server.storage.sql.usage import SqlLedger
from tieline_server.workers.worker_context import ProcessContext

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
KEYS = '[[keys]]\nhash = "sha256:{}"\nowner = "ann"\n'
SECRET = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith((PREFIX, "OTEL_")):
            monkeypatch.delenv(name)


def services(**flags: object) -> Services:
    """What the settings become, looked at when all is closed again."""

    async def main() -> Services:
        log = make_logger("json", "info", io.BytesIO())
        async with opened(Config.load({"engine": "scripted", **flags}), log, ProcessContext()) as (
            found,
            _,
        ):
            return found

    return asyncio.run(main())


def test_what_is_there_when_the_server_starts_is_never_searched_for_garbage() -> None:
    frozen: list[int] = []

    def announce(_line: str) -> None:
        if not frozen:
            os.kill(os.getpid(), signal.SIGTERM)
        frozen.append(gc.get_freeze_count())

    flags = {"engine": "scripted", "grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}
    try:
        asyncio.run(serve(Config.load(flags), announce=announce))
    finally:
        gc.unfreeze()
    assert min(frozen) > 10_000


def test_op_11_an_idle_server_waits_for_nothing_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What goes on for as long as the process does is no errand that could end."""
    monkeypatch.setattr(running, "ERRANDS", 3600.0)
    flags = {"engine": "scripted", "grpc": "127.0.0.1:0", "http": "127.0.0.1:0"}

    async def main() -> None:
        async with asyncio.timeout(60):
            await serve(Config.load(flags), announce=lambda _: os.kill(os.getpid(), signal.SIGTERM))

    try:
        asyncio.run(main())
    finally:
        gc.unfreeze()


def test_a_guard_that_cannot_be_had_is_refused_at_the_start(tmp_path: Path) -> None:
    config = tmp_path / "tieline.toml"
    config.write_text('[guards.patterns]\nkind = "pattern"\nfile = "none"\n')
    with pytest.raises(GuardError, match=r"^guards\.patterns: cannot read"):
        services(config=config)


def test_the_key_file_decides_who_is_who(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS.format(SECRET))
    found = services(api_keys=path)
    assert found.keys.authenticate("Bearer secret") == Principal(owner="ann")
    assert services().keys.authenticate(None) == Principal(owner="local")


def test_a_key_file_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        services(api_keys=tmp_path / "none.toml")


def test_the_limits_are_those_of_the_settings() -> None:
    flags = {"max_active": 1, "max_lanes": 2, "max_queue": 3, "held_timeout": 4}
    limits = limits_of(Config.load({**flags, "resume_window": 5}))
    assert (limits.active, limits.lanes, limits.queue, limits.held_timeout) == (1, 2, 3, 4.0)
    assert limits.resume_window == 5.0
    assert limits.ignores
    assert not limits_of(Config.load({"ignored": "refuse"})).ignores


def test_the_memory_store_has_the_bounds_of_the_settings() -> None:
    store = services(store_max_responses=7, store_max_bytes=99, store_ttl=5).store
    assert isinstance(store, MemoryStore)
    assert (store.max_responses, store.max_bytes, store.ttl) == (7, 99, 5.0)
    assert isinstance(services().store, MemoryStore)


def test_a_database_is_store_and_ledger_in_one(tmp_path: Path) -> None:
    path = tmp_path / "tieline.db"
    found = services(store=f"sqlite:///{path}", store_ttl=5, durability="full")
    assert isinstance(found.store, SqlStore)
    assert isinstance(found.ledger, SqlLedger)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_database_that_cannot_be_opened_is_refused_in_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"this is no database, and long enough to be read as one " * 100)
    addresses = {
        f"sqlite:///{tmp_path}/none/tieline.db": "No such file or directory",
        f"sqlite:///{tmp_path}": "Is a directory",
        f"sqlite:///{damaged}": "is no database, or is damaged",
        f"postgresql://ann:topsecret@/tieline?host={tmp_path}": "FileNotFoundError",
        "postgresql://ann:topsecret@127.0.0.1:1/tieline": "ConnectionRefusedError",
        "postgresql://ann:topsecret@127.0.0.1:port/tieline": "address is not valid",
    }
    for address, said in addresses.items():
        with pytest.raises(ConfigError, match=said) as caught:
            services(store=address)
        assert "\n" not in str(caught.value)
        assert "topsecret" not in str(caught.value)


def test_every_refusal_at_the_start_is_one_that_the_command_can_say(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text("{")
    for flags in ({"engine": "none"}, {"store": "none"}, {"script": script}):
        with pytest.raises(TielineError) as caught:
            services(**flags)
        assert "\n" not in str(caught.value)


async def test_the_first_signal_asks_and_only_a_later_one_insists() -> None:
    insisted = asyncio.Event()
    signals = Signals(asyncio.get_running_loop())
    signals.insist = insisted.set
    os.kill(os.getpid(), signal.SIGTERM)
    await signals.asked.wait()
    assert not insisted.is_set()
    os.kill(os.getpid(), signal.SIGINT)
    await insisted.wait()


def test_a_whole_server_exports_the_span_of_a_response_under_the_callers_trace() -> None:
    """OB-05 over gRPC: joined by ids and trace, without a word of content."""
    create = requests_pb2.ResponseCreate(input_text="the secret word")
    with collecting() as collector:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        with serving(**endpoint) as server, grpc.insecure_channel(server.address) as channel:
            answer = service_pb2_grpc.ResponsesServiceStub(channel).Create(
                service_pb2.CreateRequest(response_create=create),
                metadata=(("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-01"),),
            )
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
        (span,) = collector.spans
    attributes = {pair.key: pair.value for pair in span.attributes}
    assert span.trace_id.hex() == TRACE_ID
    assert span.parent_span_id.hex() == PARENT_ID
    assert attributes["gen_ai.response.id"].string_value == answer.response.id
    assert attributes["gen_ai.usage.output_tokens"].int_value > 0
    assert b"secret" not in span.SerializeToString()
    assert "tieline.server.responses" in collector.metrics


def line_of(role: str, text: str) -> items_pb2.Item:
    return items_pb2.Item(message=items_pb2.Message(role=role, text=text))


def of(some: Iterable[items_pb2.Item]) -> requests_pb2.ResponseCreate:
    return requests_pb2.ResponseCreate(
        model="scripted", input_items=items_pb2.ItemList(items=some), store=False
    )


def code_of(error: grpc.RpcError) -> str:
    """The reason in the details of a status."""
    details = rpc_status.from_call(error).details  # type: ignore[arg-type]  # it is a call as well
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in details)
    return info.reason


class TestSealer:
    def keys(self, folder: Path, text: str) -> Path:
        path = folder / "seal.keys"
        path.write_text(text)
        return path

    def test_what_is_sealed_outlives_the_process_with_a_key_of_the_settings(
        self, tmp_path: Path
    ) -> None:
        flags = {"seal_key": self.keys(tmp_path, b64encode(bytes(32)).decode() + "\n")}
        one, other = services(**flags), services(**flags)
        assert other.sealer.open("ann", one.sealer.seal("ann", b"x")) == b"x"

    def test_a_window_outlives_a_restart_of_the_server(self, tmp_path: Path) -> None:
        flags = ("--seal-key", str(self.keys(tmp_path, b64encode(bytes(32)).decode())))
        history = [line_of("user", "one"), line_of("assistant", "1")]
        with serving(*flags) as before, grpc.insecure_channel(before.address) as channel:
            window = service_pb2_grpc.ResponsesServiceStub(channel).Compact(
                service_pb2.CompactRequest(response_create=of(history))
            )
        answers = []
        for arguments in (flags, ()):
            with serving(*arguments) as after, grpc.insecure_channel(after.address) as channel:
                create = service_pb2.CreateRequest(response_create=of(window.output))
                stub = service_pb2_grpc.ResponsesServiceStub(channel)
                try:
                    status = stub.Create(create).response.status
                    answers.append(responses_pb2.ResponseStatus.Name(status))
                except grpc.RpcError as error:
                    answers.append(code_of(error))
        assert answers == ["RESPONSE_STATUS_COMPLETED", "INVALID_ENCRYPTED_CONTENT"]

    def test_without_one_every_process_has_its_own(self) -> None:
        one, other = services(), services()
        with pytest.raises(TielineError):
            other.sealer.open("ann", one.sealer.seal("ann", b"x"))

    @pytest.mark.parametrize("text", ["", "not-a-key", "\u00e9"])
    def test_a_file_that_is_none_is_one_line_without_what_is_in_it(
        self, tmp_path: Path, text: str
    ) -> None:
        path = self.keys(tmp_path, text)
        with pytest.raises(ConfigError) as refused:
            services(seal_key=path)
        assert str(refused.value).startswith(f"{path}: ")
        assert not text or text not in str(refused.value)

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="cannot read"):
            services(seal_key=tmp_path / "none")

    def test_what_becomes_of_folded_history_is_a_setting(self) -> None:
        assert services().compaction == "keep-tail"
        assert services(compaction="summary").compaction == "summary"


def test_what_is_not_stored_leaves_its_numbers_on_disk_and_none_of_its_content(
    tmp_path: Path,
) -> None:
    rules = [{"emit": {"type": "message", "text": 'I heard "{user}".'}}]
    data = tmp_path / "data"
    data.mkdir()

    async def turns(address: str) -> str:
        async with connect(f"grpc://{address}") as line:
            for text in ("marzipan", "nougat"):
                asked = await line.create(
                    input=text, store=False, instructions="praline", metadata={"key": "truffle"}
                )
                await asked.result()
            stored = await line.create(input="gingerbread", store=True)
            return (await stored.result()).response.id

    address = f"sqlite:///{data}/tieline.db"
    with serving("--script", write_script(tmp_path, rules=rules), "--store", address) as server:
        response_id = asyncio.run(turns(server.address))
        # The files as they are while it runs, the write-ahead log among them.
        files = sorted(data.iterdir())
        whole = b"".join(path.read_bytes() for path in files)
        assert len(files) > 1
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert "marzipan" not in server.log()
    whole += b"".join(path.read_bytes() for path in data.iterdir())
    assert b"gingerbread" in whole
    assert response_id.encode() in whole
    for word in (b"marzipan", b"nougat", b"praline", b"truffle"):
        assert word not in whole
    with closing(sqlite3.connect(data / "tieline.db")) as connection:
        assert connection.execute("SELECT count(*) FROM ledger").fetchone() == (3,)
