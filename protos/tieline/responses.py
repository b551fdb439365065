"""The Response object and its usage.

A :class:`Response` is a snapshot: lifecycle events carry one, and so does every stored answer.
All 31 members of wire.md 6.1 are always there when we make one. Free-form members (tools,
schemas, metadata) are raw JSON that is copied, never parsed; ``output`` holds raw items.
Decoding is lenient: a snapshot from elsewhere may lack what it likes.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

NULL: Final = Raw(b"null")
EMPTY_LIST: Final = Raw(b"[]")
EMPTY_OBJECT: Final = Raw(b"{}")


class InputTokensDetails(Struct, frozen=True, kw_only=True, gc=False):
    """Where the input tokens came from."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, frozen=True, kw_only=True, gc=False):
    """What the output tokens were spent on."""

    reasoning_tokens: int = 0


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """Tokens really used by one response."""

    input_tokens: int = 0
    input_tokens_details: InputTokensDetails = InputTokensDetails()
    output_tokens: int = 0
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int = 0

    @classmethod
    def of(
        cls, *, input: int, cached: int, output: int, reasoning: int, written: int = 0
    ) -> "Usage":
        """Usage from its counts; the total is input plus output.

        ``written`` is what was stated as written to a cache: clients take it off the input, and
        book it at a price of its own, so that nothing else may stand there.
        """
        return cls(
            input_tokens=input,
            input_tokens_details=InputTokensDetails(
                cached_tokens=cached,
                cache_write_tokens=min(written, max(0, input - cached)),
            ),
            output_tokens=output,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=reasoning),
            total_tokens=input + output,
        )

    def plus(self, other: "Usage") -> "Usage":
        """The sum of two usages, as of a rollout of several samplings."""
        if not self.total_tokens:
            return other
        details, more = self.input_tokens_details, other.input_tokens_details
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=details.cached_tokens + more.cached_tokens,
                cache_write_tokens=details.cache_write_tokens + more.cache_write_tokens,
            ),
            output_tokens=self.output_tokens + other.output_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=self.output_tokens_details.reasoning_tokens
                + other.output_tokens_details.reasoning_tokens
            ),
            total_tokens=self.total_tokens + other.total_tokens,
        )


NO_USAGE: Final = Usage()


class ResponseError(Struct, frozen=True, kw_only=True, gc=False):
    """Why a response failed after it had started."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True, gc=False):
    """Why a response stopped early: max_output_tokens, content_filter, steered, deadline, ..."""

    reason: str | None = None


class Response(Struct, frozen=True, kw_only=True, gc=False):
    """One response as it stands now.

    ``created_at`` and ``completed_at`` are Unix seconds.
    ``status`` is queued, in_progress, completed, incomplete, cancelled or failed.
    """

    id: str = ""
    object: str = "response"
    created_at: int | float = 0
    completed_at: int | float | None = None
    status: str | None = None
    model: str = ""
    output: list[Raw] = []
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    previous_response_id: str | None = None
    instructions: Raw = NULL
    tools: Raw = EMPTY_LIST
    tool_choice: Raw = Raw(b'"auto"')
    parallel_tool_calls: bool = True
    truncation: str | None = "disabled"
    text: Raw = Raw(b'{"format":{"type":"text"}}')
    temperature: float | None = 1.0
    top_p: float | None = 1.0
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    top_logprobs: int | None = 0
    reasoning: Raw = Raw(b'{"effort":null,"summary":null}')
    usage: Usage | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    store: bool | None = True
    background: bool | None = False
    service_tier: str | None = "default"
    metadata: Raw = EMPTY_OBJECT
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Response)


def encode(response: Response) -> bytes:
    """The snapshot as JSON, all members present."""
    return _encoder.encode(response)


def decode(raw: bytes | Raw) -> Response:
    """A snapshot from JSON; raises :class:`msgspec.MsgspecError` when a member has a wrong type."""
    return _decoder.decode(raw)
