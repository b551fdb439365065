"""What the server is: its models, in two shapes, and its capabilities."""

import hashlib
from typing import Any, Final

import msgspec
from aiohttp import web

from tieline.errors import ApiError
from tieline_server.core.create.profile import EXTENSIONS, REVISION
from tieline_server.engines.base import Model
from tieline_server.runtime import Services
from tieline_server.transports.http.request import Call, json_response

HTTP_EXTENSIONS: Final = (
    "cancel",
    "heartbeat",
    "idempotency_key",
    "resume",
    "timeout_ms",
    "timing",
    "warnings",
)
"""What of our extensions one request can carry."""

CODEX_INSTRUCTIONS: Final = (
    "You are a coding agent in the user's terminal. Use the tools you are given to read files, "
    "run commands and edit code. When the task is done, say briefly what you did."
)
"""What Codex sends as instructions for a model that it knows from us alone."""


class ModelCalls:
    """Handlers of routes. ``websocket`` says whether the port speaks that too."""

    def __init__(self, services: Services, *, websocket: bool) -> None:
        self._services = services
        self._websocket = websocket

    async def list(self, call: Call) -> web.Response:
        """The models that the caller's key may use."""
        principal = self._services.keys.authenticate(call.authorization)
        models = [model for _, model in self._services.offered(principal)]
        if "client_version" in call.request.query:
            return _codex(call, models)
        return _json({"object": "list", "data": [_entry(model) for model in models]})

    async def get(self, call: Call) -> web.Response:
        """One of them."""
        principal = self._services.keys.authenticate(call.authorization)
        for _, model in self._services.offered(principal):
            if model.id == call.name:
                return _json(_entry(model))
        name = call.name[:128]
        raise ApiError.of("model_not_found", f"The model '{name}' does not exist.", param="model")

    async def capabilities(self, call: Call) -> web.Response:
        """What is offered, on which transport, within which limits."""
        principal = self._services.keys.authenticate(call.authorization)
        services, limits = self._services, self._services.limits
        extended = services.profile.extensions
        engines: dict[str, list[dict[str, Any]]] = {}
        for name, model in services.offered(principal):
            engines.setdefault(name, []).append(_ability(model))
        offered = {
            "http": HTTP_EXTENSIONS if extended else (),
            "websocket": (EXTENSIONS if extended else ()) if self._websocket else None,
        }
        return _json(
            {
                "object": "capabilities",
                "revision": REVISION,
                "profile": services.profile.name,
                "extensions": {name: each for name, each in offered.items() if each is not None},
                # No part of a connection: a call of its own (wire.md 7.9).
                "background": ["grpc", "http"],
                "limits": {
                    "active_responses": limits.active,
                    "lanes": limits.lanes,
                    "queued_per_lane": limits.queue,
                    "held_timeout_ms": int(limits.held_timeout * 1000),
                    "resume_window_ms": int(limits.resume_window * 1000),
                    "max_message_bytes": limits.message_bytes,
                    "max_websocket_message_bytes": limits.websocket_message_bytes,
                    "max_grpc_message_bytes": limits.grpc_message_bytes,
                },
                "engines": [{"name": name, "models": each} for name, each in engines.items()],
            }
        )


def _json(body: dict[str, Any]) -> web.Response:
    return json_response(msgspec.json.encode(body))


def _entry(model: Model) -> dict[str, Any]:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created,
        "owned_by": model.owned_by,
    }


def _ability(model: Model) -> dict[str, Any]:
    ability = {
        "id": model.id,
        "context_window": model.context_window,
        "steering": model.steering,
    }
    return ability if model.price is None else {**ability, "price": model.price}


def _codex(call: Call, models: list[Model]) -> web.Response:
    """The list in the shape that Codex keeps, with an ETag (wire.md 7.10)."""
    entries = [_codex_entry(model, priority) for priority, model in enumerate(models)]
    body = msgspec.json.encode({"models": entries})
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    known = call.request.headers.get("If-None-Match", "")
    if etag in (tag.strip() for tag in known.split(",")):
        response = web.Response(status=304)
    else:
        response = json_response(body)
    response.headers["ETag"] = etag
    return response


def _codex_entry(model: Model, priority: int) -> dict[str, Any]:
    return {
        "slug": model.id,
        "display_name": model.id,
        "description": None,
        "supported_reasoning_levels": [],
        "shell_type": "shell_command",
        "visibility": "list",
        "supported_in_api": True,
        "priority": priority,
        "upgrade": None,
        "base_instructions": CODEX_INSTRUCTIONS,
        "supports_reasoning_summaries": False,
        "support_verbosity": False,
        "default_verbosity": None,
        "apply_patch_tool_type": None,
        "truncation_policy": {"mode": "bytes", "limit": 10_000},
        "supports_parallel_tool_calls": True,
        "context_window": model.context_window,
        "experimental_supported_tools": [],
        "input_modalities": ["text"],
    }
