"""Sealing, whatever the content: a round trip for its owner, and no other text opens."""

import os
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tieline.errors import ApiError
from tieline_server.auth.sealing import Keyring

KEYS = Keyring([bytes(range(32)), bytes(32)], entropy=os.urandom)
owners = st.text(st.characters(codec="utf-8"), max_size=20)


def refused(owner: str, sealed: str) -> bool:
    with pytest.raises(ApiError) as caught:
        KEYS.open(owner, sealed)
    return caught.value.code == "invalid_encrypted_content"


@given(owners, st.binary(max_size=300))
def test_every_content_comes_back_to_its_owner(owner: str, content: bytes) -> None:
    assert KEYS.open(owner, KEYS.seal(owner, content)) == content


@given(owners, owners, st.binary(max_size=50))
def test_no_other_owner_opens_it(owner: str, other: str, content: bytes) -> None:
    sealed = KEYS.seal(owner, content)
    assert owner == other or refused(other, sealed)


@given(st.binary(max_size=40), st.data())
def test_any_flipped_bit_of_what_is_sealed_is_refused(content: bytes, data: st.DataObject) -> None:
    sealed = bytearray(b64decode(KEYS.seal("ann", content)))
    at = data.draw(st.integers(0, len(sealed) * 8 - 1))
    sealed[at // 8] ^= 1 << at % 8
    assert refused("ann", b64encode(sealed).decode())


@given(st.binary(max_size=12))
def test_any_other_letter_in_any_place_of_the_text_is_refused(content: bytes) -> None:
    """Also those whose bits base64 drops."""
    sealed = KEYS.seal("ann", content)
    for at, letter in enumerate(sealed):
        for other in "Ab+=\n":
            if other != letter:
                assert refused("ann", sealed[:at] + other + sealed[at + 1 :])


@given(st.text(max_size=80))
def test_no_text_of_anybody_else_opens(text: str) -> None:
    assert refused("ann", text)
