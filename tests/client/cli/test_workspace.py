"""The agent command's tools: nothing outside the root is read, and no command runs unasked."""

import asyncio
import os
from pathlib import Path

import pytest

from tieline_client.cli import workspace
from tieline_client.cli.workspace import MAX_CHARS, Refused, Workspace


class User:
    """Answers every question the same way, and keeps the questions."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def __call__(self, question: str) -> bool:
        self.asked.append(question)
        return self.answer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret.txt").write_text("secret")
    inside = tmp_path / "root"
    (inside / "docs").mkdir(parents=True)
    (inside / "docs" / "a.txt").write_text("one\ntwo\nthree\n")
    (inside / ".env").write_text("KEY=1")
    return inside


def read(
    root: Path, path: str, *, user: User | None = None, hidden: bool = False, **at: int
) -> str:
    space = Workspace(root, ask=user or User(False), read_hidden=hidden)
    return asyncio.run(space.read_file(path, **at))


def command(root: Path, text: str, *, allow: bool = True) -> str:
    return asyncio.run(Workspace(root, ask=User(allow)).run_command(text))


def test_files_below_the_root_are_read_without_asking(root: Path) -> None:
    user = User(False)
    assert read(root, "docs/a.txt", user=user) == "one\ntwo\nthree\n"
    assert read(root, "docs/../docs/a.txt", user=user) == "one\ntwo\nthree\n"
    assert read(root, str(root / "docs" / "a.txt"), user=user) == "one\ntwo\nthree\n"
    assert user.asked == []


def test_a_range_of_lines_is_read(root: Path) -> None:
    assert read(root, "docs/a.txt", first_line=2, lines=1) == "two\n"
    assert read(root, "docs/a.txt", first_line=9) == "(no such lines)"


def test_a_folder_is_listed(root: Path) -> None:
    assert read(root, ".") == ".env\ndocs/"
    (root / "empty").mkdir()
    assert read(root, "empty") == "(empty)"


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "docs/../../secret.txt",
        "/etc/passwd",
        "link-to-file",
        "link-to-folder/secret.txt",
        "link-to-folder",
        "chain",
        "..",
        "~/x",
        "missing",
        "a\0b",
        "loop",
        "docs/a.txt/b",
    ],
)
def test_nothing_outside_the_root_can_be_named(root: Path, path: str) -> None:
    (root / "link-to-file").symlink_to(root.parent / "secret.txt")
    (root / "link-to-folder").symlink_to(root.parent)
    (root / "chain").symlink_to("link-to-file")
    (root / "loop").symlink_to("loop")
    with pytest.raises(Refused):
        read(root, path)


def test_a_link_that_stays_inside_is_followed(root: Path) -> None:
    (root / "alias").symlink_to("docs/a.txt")
    assert read(root, "alias", lines=1) == "one\n"


def test_a_folder_that_is_swapped_for_a_link_meanwhile_is_not_followed(root: Path) -> None:
    (root / "docs").rename(root / "was-docs")
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("secret")
    (root / "docs").symlink_to(outside)
    # What _inside had found before the swap.
    with pytest.raises(Refused):
        Workspace(root, ask=User(False))._read(Path("docs/a.txt"), 1, 10)


def test_hidden_files_are_read_only_when_the_user_says_so(root: Path) -> None:
    user = User(False)
    with pytest.raises(Refused, match="does not let you"):
        read(root, ".env", user=user)
    assert user.asked == ["Read .env?"]
    assert read(root, ".env", user=User(True)) == "KEY=1"
    assert read(root, ".env", hidden=True) == "KEY=1"


def test_a_link_to_a_hidden_file_is_as_hidden_as_the_file(root: Path) -> None:
    (root / "visible").symlink_to(".env")
    with pytest.raises(Refused, match="does not let you"):
        read(root, "visible")


def test_what_is_no_file_is_refused_and_does_not_block(root: Path) -> None:
    os.mkfifo(root / "pipe")
    with pytest.raises(Refused, match="no file"):
        read(root, "pipe")


def test_what_is_read_is_bounded_and_always_text(root: Path) -> None:
    (root / "big").write_bytes(b"\xff" * 10 * MAX_CHARS)
    text = read(root, "big")
    assert len(text) <= MAX_CHARS + 10
    assert text.startswith("\ufffd")
    (root / "lines").write_text("x" * 100 + "\n" * 10_000)
    assert len(read(root, "lines", lines=10_000)) <= MAX_CHARS + 10


def test_a_command_runs_in_the_root_once_the_user_agrees(root: Path) -> None:
    user = User(True)
    space = Workspace(root, ask=user)
    said = asyncio.run(space.run_command("pwd; ls docs; echo oops >&2; exit 3"))
    assert said == f"exit status 3\n{root}\na.txt\noops\n"
    assert user.asked == [f"Run in {root}: pwd; ls docs; echo oops >&2; exit 3"]


def test_a_command_does_not_run_when_the_user_declines_even_with_hidden_reading(
    root: Path,
) -> None:
    space = Workspace(root, ask=User(False), read_hidden=True)
    with pytest.raises(Refused, match="does not let you run"):
        asyncio.run(space.run_command("touch made"))
    assert not (root / "made").exists()


def test_a_commands_output_is_bounded(root: Path) -> None:
    assert len(command(root, "yes | head -c 1000000")) <= MAX_CHARS + 10


def test_a_command_that_does_not_end_is_killed_with_all_that_it_started(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "COMMAND_TIMEOUT", 0.3)
    assert command(root, "sleep 1000 & echo $! > pid; wait") == "killed after 0.3 s"
    assert gone(int((root / "pid").read_text()))


def test_what_a_command_leaves_running_is_killed(root: Path) -> None:
    command(root, "sleep 1000 >/dev/null 2>&1 & echo $! > pid")
    assert gone(int((root / "pid").read_text()))


def gone(pid: int) -> bool:
    """Whether a process has ended; waits for init to reap it."""
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        if state not in "RSD":
            return False


def test_a_command_sees_no_input_and_no_key(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIELINE_API_KEY", "sk-secret")
    assert command(root, "cat; echo [$TIELINE_API_KEY]") == "exit status 0\n[]\n"
