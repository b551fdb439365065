"""API keys: who is let in, as whom, and what happens when the file changes."""

import hashlib
from pathlib import Path

import pytest

from tieline.errors import ApiError
from tieline_server.auth.keys import ADDRESSES, KeyFileError, Keys, Refusals, read
from tieline_server.core.values import Principal


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def entry(key: str, owner: str, models: str = "") -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'[[keys]]\nhash = "sha256:{digest}"\nowner = "{owner}"\n{models}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(entry("ann-key", "ann") + entry("bob-key", "bob", 'models = ["small"]'))
    return path


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def keys(path: Path, clock: Clock, warnings: list[str]) -> Keys:
    return Keys(path, clock=clock, warn=warnings.append)


def refusal(keys: Keys, header: str | None) -> str:
    with pytest.raises(ApiError) as caught:
        keys.authenticate(header)
    assert caught.value.code == "invalid_api_key"
    assert caught.value.status == 401
    return caught.value.message


def test_a_key_is_its_owner_with_the_models_it_may_use(keys: Keys) -> None:
    assert keys.authenticate("Bearer ann-key") == Principal(owner="ann", models=None)
    assert keys.authenticate("Bearer bob-key") == Principal(
        owner="bob", models=frozenset({"small"})
    )


def test_an_empty_list_of_models_allows_none(path: Path, clock: Clock) -> None:
    path.write_text(entry("key", "ann", "models = []"))
    keys = Keys(path, clock=clock, warn=print)
    assert keys.authenticate("Bearer key").models == frozenset()


@pytest.mark.parametrize("header", ["bearer ann-key", "BEARER ann-key", "Bearer   ann-key "])
def test_the_scheme_is_read_in_any_case(header: str, keys: Keys) -> None:
    """RFC 9110 11.1."""
    assert keys.authenticate(header).owner == "ann"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic ann-key", "ann-key"])
def test_a_request_without_a_bearer_key_is_told_how_to_send_one(
    header: str | None, keys: Keys
) -> None:
    assert "authorization: Bearer" in refusal(keys, header)


@pytest.mark.parametrize("key", ["ann-kez", "ann-key2", "ann", "\udcff", "ключ"])
def test_a_wrong_key_is_refused_and_never_repeated(key: str, keys: Keys) -> None:
    assert refusal(keys, f"Bearer {key}") == "Incorrect API key provided."


def test_without_a_file_every_caller_is_local(clock: Clock) -> None:
    keys = Keys(None, clock=clock, warn=print)
    assert keys.authenticate(None) == Principal(owner="local", models=None)
    assert keys.authenticate("Bearer anything").owner == "local"


def test_a_new_key_works_and_a_revoked_one_does_not_after_a_second(
    keys: Keys, path: Path, clock: Clock, warnings: list[str]
) -> None:
    path.write_text(entry("new-key", "carol"))
    clock.now += 1.0
    assert keys.authenticate("Bearer new-key").owner == "carol"
    refusal(keys, "Bearer ann-key")
    assert warnings == []


def test_a_caller_whose_key_is_revoked_is_refused_when_it_is_asked_for_again(
    keys: Keys, path: Path, clock: Clock
) -> None:
    caller = keys.caller("Bearer ann-key")
    assert caller().owner == "ann"
    path.write_text(entry("new-key", "carol"))
    clock.now += 1.0
    with pytest.raises(ApiError):
        caller()


def test_the_file_is_looked_at_no_more_than_once_a_second(
    keys: Keys, path: Path, clock: Clock
) -> None:
    path.write_text(entry("new-key", "carol"))
    clock.now += 0.99
    assert keys.authenticate("Bearer ann-key").owner == "ann"
    clock.now += 0.01
    refusal(keys, "Bearer ann-key")


@pytest.mark.parametrize("text", ["", "[[keys]", "keys = 1", '[[keys]]\nowner = "ann"'])
def test_a_file_that_breaks_keeps_the_last_good_keys_and_is_reported_once(
    text: str, keys: Keys, path: Path, clock: Clock, warnings: list[str]
) -> None:
    path.write_text(text)
    for _ in range(3):
        clock.now += 1.0
        assert keys.authenticate("Bearer ann-key").owner == "ann"
    (line,) = warnings
    assert str(path) in line
    assert "\n" not in line
    path.write_text(entry("new-key", "carol"))
    clock.now += 1.0
    assert keys.authenticate("Bearer new-key").owner == "carol"


def test_a_file_that_goes_away_keeps_the_last_good_keys(
    keys: Keys, path: Path, clock: Clock, warnings: list[str]
) -> None:
    path.unlink()
    clock.now += 1.0
    assert keys.authenticate("Bearer ann-key").owner == "ann"
    assert len(warnings) == 1


def test_a_file_that_is_replaced_is_read(keys: Keys, path: Path, clock: Clock) -> None:
    new = path.with_suffix(".new")
    new.write_text(entry("new-key", "carol"))
    new.replace(path)
    clock.now += 1.0
    assert keys.authenticate("Bearer new-key").owner == "carol"


def test_an_explicitly_empty_list_lets_nobody_in(path: Path, clock: Clock) -> None:
    path.write_text("keys = []\n")
    refusal(Keys(path, clock=clock, warn=print), "Bearer ann-key")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[keys]]\nhash = "md5:00"\nowner = "ann"\n', "keys[0].hash is not"),
        ('[[keys]]\nhash = "sha256:00"\nowner = "ann"\n', "keys[0].hash is not"),
        (entry("key", ""), "keys[0].owner is empty"),
        (entry("key", "ann", 'modles = ["x"]'), "modles"),
        (entry("key", "ann") + entry("key", "bob"), "keys[1].hash appears twice"),
    ],
)
def test_a_bad_entry_is_refused_at_the_start_by_its_place(
    text: str, said: str, path: Path, clock: Clock
) -> None:
    path.write_text(text)
    with pytest.raises(KeyFileError) as caught:
        Keys(path, clock=clock, warn=print)
    assert said in str(caught.value)


def test_a_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match=r"cannot read .*none\.toml"):
        read(tmp_path / "none.toml")


class Told:
    """What was counted, and what was said."""

    def __init__(self, clock: Clock) -> None:
        self.counted: list[str] = []
        self.said: list[tuple[str, str, int]] = []
        self.refusals = Refusals(
            clock=clock,
            count=self.counted.append,
            say=lambda transport, address, count: self.said.append((transport, address, count)),
        )


@pytest.fixture
def told(clock: Clock) -> Told:
    return Told(clock)


def test_op_01_five_wrong_keys_are_answered_at_once_counted_and_said(told: Told) -> None:
    waits = [told.refusals.refuse("192.0.2.1", "grpc") for _ in range(5)]
    assert waits == [0.0] * 5
    assert told.counted == ["grpc"] * 5
    assert told.said == [("grpc", "192.0.2.1", number) for number in range(1, 6)]


def test_op_01_further_ones_come_after_each_other_up_to_a_bound(told: Told, clock: Clock) -> None:
    waits = [told.refusals.refuse("192.0.2.1", "http") for _ in range(20)]
    assert waits == [0.0] * 5 + [1.0, 2.0, 3.0, 4.0] + [5.0] * 11
    clock.now += 3.0
    assert told.refusals.refuse("192.0.2.1", "http") == 3.0
    clock.now += 100.0
    assert told.refusals.refuse("192.0.2.1", "http") == 0.0


def test_op_01_one_address_that_goes_on_is_said_now_and_then(told: Told, clock: Clock) -> None:
    for _ in range(30):
        told.refusals.refuse("192.0.2.1", "http")
        clock.now += 0.5
    assert [count for _, _, count in told.said] == [1, 2, 3, 4, 5, 25]
    assert len(told.counted) == 30


def test_op_01_other_addresses_wait_for_none(told: Told) -> None:
    for _ in range(9):
        told.refusals.refuse("192.0.2.1", "http")
    assert told.refusals.refuse("192.0.2.2", "http") == 0.0


def test_op_01_of_ipv6_a_network_is_one_address(told: Told) -> None:
    waits = [told.refusals.refuse(f"2001:db8::{number}", "http") for number in range(1, 8)]
    assert waits == [0.0] * 5 + [1.0, 2.0]
    assert told.refusals.refuse("2001:db8:0:1::1", "http") == 0.0


def test_op_01_what_is_remembered_of_addresses_is_bounded(told: Told) -> None:
    for number in range(ADDRESSES + 100):
        told.refusals.refuse(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", "http")
    assert len(told.refusals) == ADDRESSES


async def test_op_01_only_wrong_keys_wait(told: Told, clock: Clock) -> None:
    for _ in range(100):
        await told.refusals.answer(ApiError.of("model_not_found", "no"), "192.0.2.1", "http")
    assert told.counted == []
