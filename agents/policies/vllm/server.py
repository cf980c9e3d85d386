"""vLLM as a server for a training run: it samples for all ranks, and takes the run's weights without the disk.

MODEL is a folder or hub name; only the model's description is read, since the weights come from the run, which names
the server by ``vllm.url=http://127.0.0.1:8000``. Give it the options of the run: sections ``vllm``, ``policy`` and
``lora`` count. It listens on loopback by default. Any client that reaches it can send requests and overwrite
its weights: never let it listen on an open network.

What comes in is JSON, and bytes of numbers by the trainer's broadcast; no object is ever made from what a client sent.

examples:
    python -m roleagent.agents.policies.vllm.server MODEL --config run.yaml --port 8000 vllm.memory=0.9
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import multiprocessing
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from roleagent.agents.policies.hf import PolicyError, reason_of
from roleagent.agents.policies.vllm.engine import (
    architecture,
    check_model,
    engine_options,
    require_vllm,
    set_environment,
)
from roleagent.agents.policies.vllm.requests import (
    PROTOCOL,
    SampleRequest,
    adapter_request,
    answer,
    model_shape,
    read_request,
    sampling,
)
from roleagent.commands import Parser, cannot_listen, port_number
from roleagent.config import Config, ConfigError, load
from roleagent.program import begin
from roleagent.slow_notice import waiting

_LARGEST = 256 * 2**20  # bytes of a request


class RefusedError(Exception):
    """The server refuses a request.

    Args:
        status: of HTTP.
    """

    def __init__(self, reason: str, status: int = 409):
        super().__init__(reason)
        self.status = status


class Service:
    """The methods of the server.

    Args:
        engine: vLLM's ``AsyncLLM``.
        description: its description for runs.
    """

    def __init__(self, engine: Any, description: dict[str, Any]):
        self.engine, self.description = engine, description
        self._numbers = itertools.count()
        self._adapter: Any = None
        self._has_weights = False
        self._known = description["model"]["vocab_size"]

    async def health(self, body: Any) -> dict[str, Any]:
        """``protocol``, ``context``, ``dtype``, ``model``, ``lora_rank``, ``devices``, and its own ``instance``."""
        return self.description

    async def generate(self, body: Any) -> dict[str, Any]:
        """Samples one answer per request."""
        if not self._has_weights:
            raise RefusedError("no weights have come yet")
        vocabulary, context = self.description["model"]["vocab_size"], self.description["context"]
        temperature = body["temperature"]
        if type(temperature) not in (int, float) or not 0 <= temperature < math.inf:
            raise ValueError("a temperature is a number from 0 on")
        requests = [read_request(one, vocabulary, context) for one in body["requests"]]
        for known in {request.known for request in requests} - {self._known}:
            await self.engine.collective_rpc("limit_vocabulary", args=(known,))
            self._known = known
        wanted = [sampling(request, temperature) for request in requests]
        return {"answers": await asyncio.gather(*map(self._one, requests, wanted))}

    async def _one(self, request: SampleRequest, wanted: Any) -> tuple[Any, ...]:
        prompt = {"prompt_token_ids": list(request.prompt_ids)}
        answers = self.engine.generate(prompt, wanted, str(next(self._numbers)), lora_request=self._adapter)
        [whole] = [output async for output in answers]
        found = answer(whole.outputs[0])
        return found.token_ids, found.logprobs, found.finish_reason

    async def join(self, body: Any) -> dict[str, Any]:
        """The workers meet the run that will send weights."""
        place = body["place"]
        self._raise_failures(await self.engine.collective_rpc("join_trainer", args=(place,)))
        return {}

    async def weights(self, body: Any) -> dict[str, Any]:
        """The workers receive what the run sends: all weights, or an ``adapter``."""
        adapter = body.get("adapter")
        shape = () if adapter is None else (adapter["rank"], adapter["alpha"])
        method = "receive_adapter" if shape else "receive_weights"
        self._has_weights = False  # a part of them is no model
        self._raise_failures(await self.engine.collective_rpc(method, args=shape))
        self._adapter = adapter_request() if adapter is not None else None
        if not await self.engine.reset_prefix_cache():
            raise RefusedError("the prefix cache is in use: another client asks this server as well")
        self._has_weights = True
        return {}

    @staticmethod
    def _raise_failures(failures: Sequence[str]) -> None:
        for failure in filter(None, failures):
            raise RefusedError(failure)


def application(service: Service) -> Any:
    """The service over HTTP: JSON in, JSON out.

    Where it refuses, a line of text: status 400 for what is damaged, 409 for what cannot be now, 413 and 415 for what
    is too long or no JSON, 500 for vLLM's own failures.
    """
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse, PlainTextResponse
    from starlette.routing import Route

    async def read(request: Request) -> Any:
        # Any page in a browser may send what calls itself something else here, and would not be asked beforehand.
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise RefusedError("the body must be application/json", 415)
        whole = bytearray()
        async for part in request.stream():
            whole += part
            if len(whole) > _LARGEST:
                raise RefusedError(f"the body has more than {_LARGEST} bytes: ask for fewer episodes at a time", 413)
        body = json.loads(whole)
        if not isinstance(body, dict):
            raise ValueError("the body must be an object")
        return body

    def route(act: Any, method: str) -> Any:
        async def respond(request: Request) -> Any:
            try:
                return JSONResponse(await act(await read(request) if method == "POST" else {}))
            except RefusedError as refusal:
                return PlainTextResponse(str(refusal), refusal.status)
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                return PlainTextResponse(f"damaged: {type(error).__name__}: {reason_of(error)}", 400)
            except Exception as error:  # vLLM's own
                return PlainTextResponse(f"{type(error).__name__}: {reason_of(error)}", 500)

        return Route(f"/{act.__name__}", respond, methods=[method])

    posts = [route(act, "POST") for act in (service.generate, service.join, service.weights)]
    return Starlette(routes=[route(service.health, "GET"), *posts])


def options_for(config: Config, model: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """vLLM's engine arguments, and the server's description for runs.

    Raises:
        PolicyError: there is no such model, or vLLM cannot compute it here.
    """
    from transformers import AutoConfig

    try:
        described = AutoConfig.from_pretrained(model, trust_remote_code=False)
    except Exception as error:
        raise PolicyError(f"cannot read the description of a model from {model}: {reason_of(error)}") from error
    check_model(described)
    options = engine_options(config, model)
    named = architecture(described)
    if named:
        options["hf_overrides"] = {"architectures": named}
    limit = int(getattr(described.get_text_config(), "max_position_embeddings", config.policy.context))
    options["max_model_len"] = min(config.policy.context, limit)
    description = {
        "protocol": PROTOCOL,
        "context": options["max_model_len"],
        "dtype": config.policy.dtype,
        "model": model_shape(described),
        "lora_rank": config.lora.rank,
    }
    return options, description


async def serve(config: Config, model: str, host: str, port: int) -> None:
    """Serves until it is stopped; port 0 takes a free one."""
    wanted, description = options_for(config, model)
    with _listening(host, port) as listener:
        await _serve(wanted, description, listener)


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port))
    except (OSError, OverflowError) as error:
        raise PolicyError(str(cannot_listen(host, port, error))) from error


def _end_with_server() -> None:
    """Ends this process when the server has ended, also by ``kill -9``: vLLM's engine would keep its memory."""
    while (server := multiprocessing.parent_process()) is None:  # this module is imported before that is known
        time.sleep(0.1)
    server.join()
    os._exit(1)


async def _serve(wanted: dict[str, Any], description: dict[str, Any], listener: socket.socket) -> None:
    import uvicorn
    from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports] - it may be missing
    from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore[reportMissingImports]

    try:
        with waiting("vLLM to start"):
            engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**wanted))
    except Exception as error:
        raise PolicyError(f"vLLM cannot start: {reason_of(error)}") from error
    try:
        description["instance"] = secrets.token_hex(8)
        description["devices"] = await engine.collective_rpc("device_name")
        # Idle connections end on the client's side: a request would meet one that the server is just closing.
        options = uvicorn.Config(
            application(Service(engine, description)),
            log_level="warning",
            timeout_graceful_shutdown=3,
            timeout_keep_alive=60,
        )
        host, port = listener.getsockname()[:2]
        print(f"serving {wanted['model']} as vllm.url=http://{host}:{port}", flush=True)
        await uvicorn.Server(options).serve([listener])
    finally:
        engine.shutdown()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = Parser("python -m roleagent.agents.policies.vllm.server", __doc__)
    parser.add_argument("model", help="folder or hub name of the policy's model")
    parser.add_argument("--config", type=Path, help="the run's YAML file")
    parser.add_argument("--host", default="127.0.0.1", help="interface to listen on (default: %(default)s)")
    parser.add_argument("--port", type=port_number, default=8000, help="(default: %(default)s)")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="options, e.g. vllm.extra.tensor_parallel_size=2"
    )
    options = parser.parse_intermixed_args(arguments)
    set_environment(own_processes=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engine's processes end in either way
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # SLURM sends it to the whole job; only the trainer ends by it
    try:
        require_vllm()
        with suppress(KeyboardInterrupt):
            asyncio.run(serve(load(options.config, options.overrides), options.model, options.host, options.port))
    except (ConfigError, PolicyError) as error:
        print(f"vllm_server: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__mp_main__":  # in a process that vLLM spawns
    threading.Thread(target=_end_with_server, daemon=True).start()

if __name__ == "__main__":
    begin("vllm_server")
    sys.exit(main())
