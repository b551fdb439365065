"""What only a client meets; what a server states is :mod:`tieline.errors`.

* :class:`tieline.errors.TielineError`
    * :class:`tieline.errors.ApiError`: the server says no, the same class on every transport
        * :class:`FailedResponse`: it says so of a response that had begun, which is in it
    * :class:`ConnectionLost`: the connection ended while something was pending
        * :class:`NotSent`: before the request was on its way: to send it again is safe
            * :class:`ConnectTimeout`: it never came to be
        * :class:`OutcomeUnknown`: after that, and before any answer
        * :class:`IncompleteStream`: it ended in the middle of a response
    * :class:`ProtocolViolation`: the server said what it may not say there
    * :class:`ConnectionClosed`: the connection was used after its end (local)
    * :class:`TurnState`: a turn was asked for what it cannot do now (local)
    * :class:`Unsupported`: this transport cannot carry that request (local)
    * :class:`UnsupportedUrl`: no transport for this URL (local)
    * :class:`MissingExtra`: a package of an extra is not installed (local)
"""

from typing import Final, cast

from tieline import responses
from tieline.errors import (
    ApiError,
    AuthenticationError,
    BadRequest,
    Cancelled,
    Conflict,
    DeadlineExceeded,
    NotFound,
    PermissionDenied,
    RateLimited,
    RequestTimeout,
    RequestTooLarge,
    ServerError,
    TielineError,
    Unavailable,
)


class FailedResponse(ApiError):
    """A response failed after it had begun: what there is of it, and what it has used.

    It is of the class of its status as well: ``except ServerError`` catches it, and
    ``except FailedResponse`` catches all of its kind.
    """

    response: responses.Response
    """As it stood at its end, with its partial output."""

    @property
    def usage(self) -> responses.Usage | None:
        """Tokens really used, where the server tells."""
        return self.response.usage

    @property
    def response_id(self) -> str:
        """The id of the response."""
        return self.response.id

    @property
    def model(self) -> str:
        """The model that was sampled."""
        return self.response.model


def failed(error: ApiError, response: responses.Response) -> FailedResponse:
    """The error as that of a response, of the same class.

    >>> response = responses.Response(id="resp_1")
    >>> error = failed(ApiError.of("server_error", "It broke."), response)
    >>> isinstance(error, ServerError), error.response_id
    (True, 'resp_1')
    """
    told = _FAILED[type(error)](
        error.code,
        error.message,
        param=error.param,
        status=error.status,
        error_type=error.type,
        retry_after=error.retry_after,
        request_id=error.request_id,
    )
    told.response = response
    return told


_FAILED: Final[dict[type[ApiError], type[FailedResponse]]] = {
    kind: cast(type[FailedResponse], type(kind.__name__, (FailedResponse, kind), {}))
    for kind in (
        BadRequest,
        AuthenticationError,
        PermissionDenied,
        NotFound,
        RequestTimeout,
        Conflict,
        RequestTooLarge,
        RateLimited,
        Cancelled,
        ServerError,
        Unavailable,
        DeadlineExceeded,
    )
}
"""Class of a status -> the same for a response that has failed."""


class ConnectionLost(TielineError):
    """The connection ended while something was pending; ``__cause__`` says why, where known."""


class NotSent(ConnectionLost):
    """The request never left this side: to send it again cannot make it happen twice."""


class ConnectTimeout(NotSent):
    """No connection within the connect timeout."""


class OutcomeUnknown(ConnectionLost):
    """The request was sent, and the connection ended before any answer.

    The server may have worked on it, and may still: to send it again may do everything twice.
    """


class IncompleteStream(ConnectionLost):
    """The connection ended before the response did: what came is a part, never a result.

    ``text`` is the message text so far, ``sequence_number`` that of the last event (None when
    no event had one), ``response`` the response as far as it is known; what it has used is not.
    """

    def __init__(
        self,
        reason: str,
        *,
        text: str,
        response_id: str,
        sequence_number: int | None,
        response: responses.Response | None = None,
    ) -> None:
        super().__init__(f"{reason}; response {response_id} is incomplete")
        self.text = text
        self.response_id = response_id
        self.sequence_number = sequence_number
        self.response = response or responses.Response(id=response_id)


class ProtocolViolation(TielineError):
    """The server sent what is none of its events, or an event that cannot come there.

    A connection of gRPC or WebSocket is over, with all its turns: what follows cannot be paired any
    more. Over HTTP it is the one turn whose answer it was. The turns raise
    :class:`IncompleteStream` or :class:`OutcomeUnknown`, whose cause is this.
    """


class ConnectionClosed(TielineError):
    """The connection was closed by this side."""


class TurnState(TielineError):
    """A turn cannot do that now: an append that is not held, a steer of one that has ended."""


class Unsupported(TielineError):
    """The transport cannot carry that: HTTP has no append and no steer."""


class UnsupportedUrl(TielineError, ValueError):
    """The URL names no transport, or no host and port."""


class MissingExtra(TielineError, ImportError):
    """A package of an extra is not installed; the message names the command that installs it."""
