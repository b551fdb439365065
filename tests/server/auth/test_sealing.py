"""Keys that seal: what opens, for whom, and what is refused in one way."""

import os
import random
from base64 import b64decode, b64encode

import pytest

from tieline.errors import ApiError
from tieline_server.auth.sealing import KEY, KEY_ID, LONGEST, NONCE, TAG, Keyring
from tieline_server.config import ConfigError

OLD, NEW = bytes(range(KEY)), bytes(range(1, KEY + 1))


def line(key: bytes) -> str:
    return b64encode(key).decode()


def ring(*keys: bytes) -> Keyring:
    return Keyring(keys, entropy=os.urandom)


def refusal(keys: Keyring, owner: str, sealed: str) -> tuple[str, str, str | None]:
    with pytest.raises(ApiError) as refused:
        keys.open(owner, sealed)
    return refused.value.code, refused.value.message, refused.value.param


def test_what_is_sealed_for_an_owner_opens_for_that_owner() -> None:
    keys = ring(OLD)
    assert keys.open("ann", keys.seal("ann", b"history")) == b"history"


def test_the_text_says_nothing_of_its_content_and_never_repeats_itself() -> None:
    keys = ring(OLD)
    first, second = keys.seal("ann", b"history"), keys.seal("ann", b"history")
    assert first != second
    assert b"history" not in b64decode(first)
    assert len(b64decode(first)) == KEY_ID + NONCE + len(b"history") + TAG


def test_a_new_key_seals_and_the_old_one_still_opens() -> None:
    before, after, later = ring(OLD), ring(NEW, OLD), ring(NEW)
    old, new = before.seal("ann", b"x"), after.seal("ann", b"x")
    assert after.open("ann", old) == later.open("ann", new) == b"x"
    assert refusal(later, "ann", old) == refusal(before, "ann", new)


@pytest.mark.parametrize(
    "sealed",
    ["", "garbage", "é", "====", "A" * 11, "A" * 400, "\ud800", " ", b64encode(bytes(64)).decode()],
)
def test_what_is_no_seal_is_refused_like_any_other(sealed: str) -> None:
    keys = ring(OLD)
    foreign = refusal(keys, "bob", keys.seal("ann", b"x"))
    assert foreign[0] == "invalid_encrypted_content"
    assert refusal(keys, "ann", sealed) == foreign


def test_only_the_key_id_is_no_seal() -> None:
    keys = ring(OLD)
    for size in range(KEY_ID + NONCE + TAG):
        cut = b64encode(b64decode(keys.seal("ann", b""))[:size]).decode()
        assert refusal(keys, "ann", cut)[0] == "invalid_encrypted_content"


def test_its_size_is_bounded_both_ways() -> None:
    keys = ring(OLD)
    most = LONGEST // 4 * 3 - KEY_ID - NONCE - TAG
    sealed = keys.seal("ann", bytes(most))
    assert len(sealed) <= LONGEST
    assert len(keys.open("ann", sealed)) == most
    with pytest.raises(ApiError) as refused:
        keys.seal("ann", bytes(most + 1))
    assert refused.value.code == "request_too_large"
    assert refusal(keys, "ann", "A" * (LONGEST + 4))[0] == "invalid_encrypted_content"


def test_a_key_of_the_process_is_its_own() -> None:
    one, other = (Keyring.random(random.Random(seed).randbytes) for seed in (1, 2))
    sealed = one.seal("ann", b"x")
    assert one.open("ann", sealed) == b"x"
    assert refusal(other, "ann", sealed)[0] == "invalid_encrypted_content"


def test_a_file_holds_keys_one_a_line_the_first_of_which_seals() -> None:
    both = Keyring.parse(f"{line(NEW)}\n{line(OLD)}\n", entropy=os.urandom)
    assert ring(NEW).open("ann", both.seal("ann", b"x")) == b"x"
    assert both.open("ann", ring(OLD).seal("ann", b"x")) == b"x"


@pytest.mark.parametrize("text", ["", "\n\n", "secret-words", line(OLD[:31]), f"{line(OLD)}\nnope"])
def test_a_file_that_holds_anything_else_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Keyring.parse(text, entropy=os.urandom)
    assert not text.split() or text.split()[-1] not in str(refused.value)


def test_an_alias_is_an_owners_own_and_says_nothing_of_who_that_is() -> None:
    ring = Keyring.random(os.urandom)
    assert ring.alias("ann") == ring.alias("ann") != ring.alias("bob")
    assert "ann" not in ring.alias("ann")
    assert Keyring.random(os.urandom).alias("ann") != ring.alias("ann")
