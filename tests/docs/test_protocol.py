"""The pages that describe tables say what the tables say."""

import re
import subprocess
import sys
from pathlib import Path

from tieline.codecs.json import MAX_DEPTH, MAX_VALUES
from tieline.errors import ERRORS, Grpc
from tieline.items import MAX_ITEMS
from tieline.requests import EVENT_ID
from tieline_server.compaction.summaries import LONGEST
from tieline_server.config import Config
from tieline_server.core.create.limits import Limits
from tieline_server.core.create.tools import MAX_TOOLS
from tieline_server.core.stream.outbox import MERGE_CHARACTERS
from tieline_server.runtime.cancels import PERIOD
from tieline_server.runtime.reading import POLL
from tieline_server.runtime.recorder import FLUSH
from tieline_server.runtime.running import PATIENCE
from tieline_server.transports.grpc.stream import WRITE_BYTES
from tieline_server.transports.websocket.config import WebSocketConfig

ROOT = Path(__file__).parents[2]


def test_the_error_table_of_the_page_is_the_table_of_the_code() -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    block = page.split("<!-- errors: begin")[1].split("<!-- errors: end")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| `(\w+)` \| (\w+) \|$", block, re.MULTILINE)
    numbers = {name: value for name, value in vars(Grpc).items() if isinstance(value, int)}

    listed = {code: (int(status), kind, numbers[grpc]) for code, status, kind, grpc in rows}

    assert {code: (row.status, row.type, row.grpc) for code, row in ERRORS.items()} == listed


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs/protocol.md").read_text()
    limits, mebi = Limits(), 1024 * 1024
    one, all_ = (
        Config.model_fields[name].default // mebi
        for name in ("max_resume_bytes", "max_total_resume_bytes")
    )

    for sentence in (
        f"| responses that sample side by side on a connection | {limits.active};",
        f"| lane names in the life of a connection | {limits.lanes},",
        f"| {MAX_ITEMS:,} and {MAX_TOOLS:,}: `array_above_max_length` |",
        f"| JSON values in one client event | {MAX_VALUES:,} ({MAX_DEPTH} levels deep)",
        f"| {limits.queue}, and {limits.queue_bytes // mebi} MiB of them on a connection;",
        f"| history that a connection remembers | {limits.connection_bytes // mebi} MiB of items,",
        f"| largest client message | {limits.message_bytes // mebi} MiB",
        f"on a WebSocket {WebSocketConfig().max_message_bytes // mebi} MiB",
        f"on gRPC {limits.grpc_message_bytes // mebi} MiB.",
        f"| one `ConverseResponse` | closes at {WRITE_BYTES // 1024} KiB;",
        f"| events that a reader has not taken | {limits.outbox}, shared by the lanes",
        f"| steers that one response collects | {limits.steers}, "
        f"and {limits.queue_bytes // mebi} MiB of them on a connection;",
        f"| nothing for {limits.held_timeout / 60:.0f} minutes (`--held-timeout`) |",
        f"| `event_id` on any message, at most {EVENT_ID} characters |",
        f"has {limits.merge_from} unsent events, a delta joins the one before it, "
        f"unless that has {MERGE_CHARACTERS} characters or more",
        f"(at most {LONGEST:,} tokens,",
        f"runs on for `--resume-window` ({limits.resume_window:.0f} s) and is then cancelled",
        f"`--max-resume-bytes` ({one} MiB) for one response,",
        f"`--max-total-resume-bytes` ({all_} MiB) for all.",
        f"which each looks for every {PERIOD} s; who cancels waits for the end, "
        f"at most {PATIENCE:.0f} s.",
        f"as they are written down, within about {FLUSH + POLL:.1f} s;",
    ):
        assert sentence in page


def test_the_state_diagrams_are_those_of_the_tables() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs/state_machines.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")
