"""What the commands print."""

import pytest

from tieline import events
from tieline_client.aio import Call
from tieline_client.cli.show import Printer, printable


def test_control_characters_cannot_drive_the_terminal() -> None:
    assert printable("a\x1b[2J\r\x07b\x9b1m\tc\nd é 🎉") == "a\\x1b[2J\\x0d\\x07b\\x9b1m\tc\nd é 🎉"


def delta(text: str) -> events.OutputTextDelta:
    return events.OutputTextDelta(item_id="m", output_index=0, content_index=0, delta=text)


def test_text_goes_to_stdout_and_what_is_said_about_it_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    printer = Printer()
    printer.event(delta("Hello"))
    printer.event(events.OutputTextDone(item_id="m", output_index=0, content_index=0, text="Hello"))
    call = Call(call_id="c", name="f", arguments="{}")
    printer.output(call, "x" * 500 + "\x1b")
    printer.error("two\nlines [bold]")
    out, err = capsys.readouterr()
    assert out == "Hello\n"
    assert err.splitlines() == [f"f({{}}) -> {'x' * 200}…", "tieline: two lines [bold]"]


def test_as_json_every_event_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(as_json=True)
    printer.event(delta("a\nb"))
    printer.event(events.Heartbeat(phase="idle"))
    assert capsys.readouterr().out.splitlines() == [
        '{"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,'
        '"delta":"a\\nb","logprobs":[]}',
        '{"type":"tieline.heartbeat","phase":"idle"}',
    ]
