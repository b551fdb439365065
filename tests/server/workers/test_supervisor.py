"""Several processes that serve as one: the life of a real supervisor and its workers."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import grpc
import pytest

from tests.support.process_state import until
from tests.support.server_process import run, serving, write_script
from tests.support.several import (
    Several,
    alive,
    created,
    last_kind,
    parent_of,
    several,
    streams,
    tag_of,
)

SLOW = {
    "pace": {"ttft_ms": 0, "tokens_per_second": 20},
    "rules": [{"id": "slow", "when": {}, "emit": {"type": "message", "text": "word " * 40}}],
}
STALLED = {"rules": [{"id": "stall", "when": {}, "emit": [{"type": "stall", "seconds": 3600}]}]}

AGENT = """
import threading, time
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
"""
"""What a tool that instruments the interpreter does before anything of ours runs."""

WHOLE = 2.0
"""Seconds in which the place of a worker that died is taken again (under --soak; else the machine
may be full)."""


class TestServing:
    def test_two_workers_share_both_ports_and_are_announced_once(self, tmp_path: Path) -> None:
        with several(tmp_path) as server:
            workers = server.workers
            assert len(workers) == 2
            names = {Path(f"/proc/{pid}/comm").read_text() for pid in workers.values()}
            assert names == {"tieline-worker\n"}
            seen: set[str] = set()
            while seen != workers.keys():
                seen.add(tag_of(created(server)))
            assert streams(server, workers).keys() == workers.keys()
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert server.rest_of_stdout() == ""
            assert not any(map(alive, workers.values()))

    def test_one_worker_is_no_other_process(self) -> None:
        with serving("--workers", "1") as server:
            children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
            assert children.read_text() == ""
            assert server.lines("worker_serves") == []

    def test_what_is_stored_by_one_worker_is_continued_on_the_other(self, tmp_path: Path) -> None:
        with several(tmp_path) as server:
            first = created(server)
            tags = set(server.workers)

            def continued() -> str:
                body = json.dumps({"input": "more", "previous_response_id": first}).encode()
                head = {"Content-Type": "application/json", "Connection": "close"}
                where = f"http://{server.http}/v1/responses"
                with urlopen(Request(where, body, head), timeout=60) as answer:
                    return tag_of(json.loads(answer.read())["id"])

            seen: set[str] = set()
            while seen != tags:
                seen.add(continued())

    def test_what_one_worker_seals_the_other_opens_without_a_key_of_the_settings(
        self, tmp_path: Path
    ) -> None:
        def ask(server: Several, path: str, body: dict[str, Any]) -> dict[str, Any]:
            head = {"Content-Type": "application/json", "Connection": "close"}
            where = f"http://{server.http}{path}"
            with urlopen(Request(where, json.dumps(body).encode(), head), timeout=60) as answer:
                found: dict[str, Any] = json.loads(answer.read())
            return found

        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        with several(tmp_path) as server:
            window = ask(server, "/v1/responses/compact", {"model": "scripted", "input": talk})
            assert "encrypted_content" in json.dumps(window)
            seen: set[str] = set()
            while seen != server.workers.keys():
                more = {"input": [*window["output"], {"role": "user", "content": "c"}]}
                seen.add(tag_of(ask(server, "/v1/responses", more)["id"]))


class TestRefusals:
    def refusal(self, *arguments: str) -> str:
        addresses = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
        done = run("--engine", "scripted", *addresses, "--workers", "2", *arguments)
        assert done.returncode == 2
        assert done.stdout == ""
        (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
        return line.removeprefix("tieline-server: ")

    def test_the_store_in_memory_is_of_one_process(self) -> None:
        assert "--workers 2 needs a --store that they share" in self.refusal()

    def test_what_no_worker_can_open_is_said_once_in_one_line(self, tmp_path: Path) -> None:
        store = ("--store", f"sqlite:///{tmp_path}/a.db")
        said = self.refusal(*store, "--script", "/no/such.json")
        assert "/no/such.json" in said

    def test_a_port_that_is_taken_is_refused(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            store = ("--store", f"sqlite:///{tmp_path}/a.db")
            assert address in self.refusal(*store, "--grpc", address)


class TestEnding:
    @pytest.mark.parametrize("together", [False, True])
    def test_what_runs_on_each_worker_gets_to_its_end(self, tmp_path: Path, together: bool) -> None:
        """``together``: a group of processes gets the signal, as a service manager sends it."""
        with several(tmp_path, "--script", write_script(tmp_path, **SLOW)) as server:
            running = streams(server, server.workers)
            if together:
                for pid in server.workers.values():
                    os.kill(pid, signal.SIGTERM)
            server.signal(signal.SIGTERM)
            assert [*map(last_kind, running.values())] == ["response_completed"] * 2
            assert server.wait() == 0
            assert server.lines("interrupted") == []
            assert len(server.lines("stopped")) == 2

    def test_a_second_signal_does_not_wait_for_what_runs(self, tmp_path: Path) -> None:
        script = write_script(tmp_path, **STALLED)
        with several(tmp_path, "--script", script, "--drain-timeout", "3600") as server:
            running = streams(server, server.workers)
            server.signal(signal.SIGINT)
            until(lambda: len(server.lines("draining")) == 2)
            server.signal(signal.SIGINT)
            assert server.wait() == 0
            assert len(server.lines("interrupted")) == 2
            del running

    def test_workers_end_by_themselves_when_their_supervisor_is_gone(self, tmp_path: Path) -> None:
        with several(tmp_path, TMPDIR=str(tmp_path)) as server:
            workers = server.workers
            created(server)
            server.signal(signal.SIGKILL)
            until(lambda: not any(map(alive, workers.values())))
            until(lambda: not list(tmp_path.glob("tieline-*")))

    def test_a_worker_that_hangs_is_no_obstacle(self, tmp_path: Path) -> None:
        with several(tmp_path, "--drain-timeout", "0.1") as server:
            hanging = next(iter(server.workers.values()))
            os.kill(hanging, signal.SIGSTOP)
            server.signal(signal.SIGTERM)
            assert server.wait() == 0
            assert [line["worker"] for line in server.lines("worker_killed")] == [hanging]


class TestReplacing:
    def test_a_killed_worker_is_replaced_in_time_and_the_other_does_not_notice(
        self, tmp_path: Path, pytestconfig: pytest.Config
    ) -> None:
        with several(tmp_path, "--script", write_script(tmp_path, **SLOW)) as server:
            before = server.workers
            running = streams(server, before)
            tag, pid = next(iter(before.items()))
            killed_at = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            until(lambda: len(server.lines("worker_serves")) == 3)
            if pytestconfig.getoption("--soak"):
                assert time.monotonic() - killed_at < WHOLE
            assert len(server.workers) == 2
            with pytest.raises(grpc.RpcError) as ended:
                last_kind(running.pop(tag))
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert [*map(last_kind, running.values())] == ["response_completed"]
            (died,) = server.lines("worker_died")
            assert (died["worker"], died["status"]) == (pid, -signal.SIGKILL)

    def test_a_worker_that_is_asked_to_end_drains_and_is_replaced(self, tmp_path: Path) -> None:
        with several(tmp_path, "--script", write_script(tmp_path, **SLOW)) as server:
            before = server.workers
            running = streams(server, before)
            pid = next(iter(before.values()))
            os.kill(pid, signal.SIGTERM)
            assert [*map(last_kind, running.values())] == ["response_completed"] * 2
            until(lambda: not alive(pid))
            server.whole()

    def test_workers_are_replaced_without_the_process_that_started_them(
        self, tmp_path: Path
    ) -> None:
        with several(tmp_path) as server:
            fork_server = parent_of(next(iter(server.workers.values())))
            os.kill(fork_server, signal.SIGKILL)
            until(lambda: not alive(fork_server))
            os.kill(next(iter(server.workers.values())), signal.SIGKILL)
            until(lambda: len(server.lines("worker_serves")) == 3)
            server.whole()
            created(server)

    def test_where_something_has_started_a_thread_workers_are_not_forked(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "sitecustomize.py").write_text(AGENT)
        with several(tmp_path, PYTHONPATH=str(tmp_path)) as server:
            for pid in server.workers.values():
                assert b"worker-process" in Path(f"/proc/{pid}/cmdline").read_bytes()
            os.kill(next(iter(server.workers.values())), signal.SIGKILL)
            until(lambda: len(server.lines("worker_serves")) == 3)
            (died,) = server.lines("worker_died")
            assert died["status"] == -signal.SIGKILL
            server.signal(signal.SIGTERM)
            assert server.wait() == 0


class TestRestarting:
    def test_workers_are_restarted_one_by_one_and_no_client_is_refused_meanwhile(
        self, tmp_path: Path
    ) -> None:
        with several(tmp_path, "--script", write_script(tmp_path, **SLOW)) as server:
            before = server.workers
            running = streams(server, before)
            server.signal(signal.SIGHUP)
            ended: list[str] = []
            drained = threading.Thread(
                target=lambda: ended.extend(map(last_kind, running.values()))
            )
            drained.start()
            while not server.lines("workers_restarted"):
                created(server)
            drained.join()
            assert ended == ["response_completed"] * 2
            assert len(server.workers) == 2
            assert not any(map(alive, before.values()))
            assert server.lines("worker_died") == []
            order = [line["event"] for line in server.lines() if line["event"] in LIFE]
            assert order == [*["worker_serves"] * 3, "draining", "worker_serves", "draining"]

    def test_settings_of_the_file_are_read_again_and_bad_ones_change_nothing(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "tieline.toml"
        script = write_script(tmp_path, models=["one"])
        path.write_text(f'script = "{script}"\n')
        with several(tmp_path, "--config", str(path)) as server:
            for tried, bad in enumerate(("script = ", 'script = "/no/such.json"\n')):
                path.write_text(bad)
                server.signal(signal.SIGHUP)
                until_refused(server, tried + 1)
                assert models(server) == ["one"]
            write_script(tmp_path, models=["two"])
            path.write_text(f'script = "{script}"\nmax_active = 3\n')
            server.signal(signal.SIGHUP)
            until(lambda: bool(server.lines("workers_restarted")))
            assert models(server) == ["two"]
            assert len(server.workers) == 2


LIFE = ("worker_serves", "draining")


def until_refused(server: Several, count: int) -> None:
    """Waits until so many restarts have come to nothing."""
    until(lambda: len(server.lines("workers_not_restarted")) == count)


def models(server: Several) -> list[str]:
    """The names of the models."""
    with urlopen(f"http://{server.http}/v1/models", timeout=60) as answer:
        return [model["id"] for model in json.loads(answer.read())["data"]]


class TestMetrics:
    def test_each_worker_tells_of_all_and_no_sum_shrinks_when_one_dies(
        self, tmp_path: Path
    ) -> None:
        with several(tmp_path) as server:
            seen: list[str] = []
            while len(set(seen)) < 2:
                seen.append(tag_of(created(server)))
            for _ in range(4):
                assert responses(server) == len(seen)
            tag, pid = next(iter(server.workers.items()))
            os.kill(pid, signal.SIGKILL)
            until(lambda: not alive(pid))
            while server.workers.keys() == {tag} or len(server.workers) < 2:
                # What was in the hands of the one that died is reset, until its last thread ends.
                with suppress(ConnectionError, URLError):
                    assert responses(server) == len(seen)
            assert responses(server) == len(seen)
            created(server)
            assert responses(server) == len(seen) + 1


def responses(server: Several) -> int:
    """How many responses have ended, as a worker says."""
    with urlopen(f"http://{server.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    counts = [line for line in lines if line.startswith("tieline_server_responses_total{")]
    return sum(int(line.rpartition(" ")[2]) for line in counts)
