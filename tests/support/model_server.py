"""llama.cpp's own OpenAI-compatible server with the packaged model: a real upstream."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tieline_server.models.packaged import find

KEY = "a key of the upstream"
CONTEXT = 2048


@contextmanager
def model_server() -> Iterator[str]:
    """Its base URL; ``KEY`` opens it."""
    # As the llama engine has it: threads that spin starve the rest of a small machine. It is read
    # when the library loads, so that must not be when this module is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    xllamacpp: Any = import_module("xllamacpp")
    parameters: Any = xllamacpp.CommonParams()
    parameters.model.path = str(find())
    parameters.n_parallel = 2
    parameters.n_ctx = 2 * CONTEXT
    parameters.n_batch = parameters.n_ubatch = 128
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.cache_ram_mib = 0
    parameters.fit_params = False
    parameters.verbosity = 0
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_keys = [KEY]
    parameters.ui = False
    server: Any = xllamacpp.Server(parameters)
    # A stop before the server's thread has begun its loop would never end: an answer shows it has.
    server.handle_completions({"prompt": "a", "n_predict": 1}, lambda _: True)
    try:
        yield f"{server.listening_address}/v1"
    finally:
        del server
