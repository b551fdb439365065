"""Lists in pages, and the ids under which items are listed."""

import pytest

from tieline.errors import ApiError
from tieline_server.transports.stored import LONGEST_PAGE, PAGE, not_found, page_of, place_id

LISTED = [(f"msg_{number}", number) for number in range(25)]


def test_a_page_is_the_newest_first_unless_asked_otherwise() -> None:
    page = page_of(LISTED, limit=PAGE, order="desc", after=None)
    assert [value for _, value in page.entries] == list(range(24, 4, -1))
    assert (page.first_id, page.last_id, page.has_more) == ("msg_24", "msg_5", True)
    assert page_of(LISTED, limit=1, order="asc", after=None).entries == LISTED[:1]


def test_a_page_begins_behind_the_entry_that_is_named() -> None:
    page = page_of(LISTED, limit=LONGEST_PAGE, order="asc", after="msg_22")
    assert (page.entries, page.has_more) == (LISTED[23:], False)
    end = page_of(LISTED, limit=1, order="asc", after="msg_24")
    assert (list(end.entries), end.first_id, end.last_id, end.has_more) == ([], None, None, False)


@pytest.mark.parametrize(
    ("limit", "order", "after", "code"),
    [
        (0, "asc", None, "integer_below_min_value"),
        (101, "asc", None, "integer_above_max_value"),
        (1, "up", None, "invalid_value"),
        (1, "asc", "msg_x", "item_not_found"),
    ],
)
def test_a_page_that_cannot_be_is_refused(
    limit: int, order: str, after: str | None, code: str
) -> None:
    with pytest.raises(ApiError) as caught:
        page_of(LISTED, limit=limit, order=order, after=after)
    assert caught.value.code == code


def test_an_item_is_named_by_its_response_and_place() -> None:
    assert place_id("resp_7", 2) == "item_7_2"


def test_an_id_that_is_not_there_is_said_but_not_at_length() -> None:
    error = not_found("resp_" + "x" * 1000)
    assert error.status == 404
    assert len(error.message) < 200
