"""What only a client meets."""

from tieline.errors import TielineError
from tieline_client import errors


def test_every_error_has_the_one_root_and_its_place_in_the_overview() -> None:
    classes = {
        name: each
        for name, each in vars(errors).items()
        if isinstance(each, type) and each.__module__ == errors.__name__
    }
    assert len(classes) >= 8
    for name, each in classes.items():
        assert issubclass(each, TielineError)
        assert f":class:`{name}`" in (errors.__doc__ or "")


def test_an_incomplete_stream_says_what_there_is_of_it() -> None:
    error = errors.IncompleteStream("it broke", text="par", response_id="r1", sequence_number=3)
    assert isinstance(error, errors.ConnectionLost)
    assert str(error) == "it broke; response r1 is incomplete"
    assert (error.text, error.response_id, error.sequence_number) == ("par", "r1", 3)
