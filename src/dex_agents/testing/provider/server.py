"""Serves the script over HTTP, on loopback and in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType, TracebackType
from typing import Any, Self, TypeAlias

from msgspec import Struct, json

from dex_agents.testing.errors import ScriptError
from dex_agents.testing.provider import anthropic_messages, chat_completions, responses
from dex_agents.testing.provider.script import Cut, Fault, Reply, Slow, Trouble

__all__ = ("ModelRequest", "ProviderServer")

_APIS: dict[str, ModuleType] = {
    api.PATH: api for api in (chat_completions, responses, anthropic_messages)
}


class ModelRequest(Struct, frozen=True):
    """One request as it came.

    Attributes:
        path: Such as ``/v1/responses``.
        body: The JSON that the client sent.
        answered: How many answers of the model the conversation holds so far.
    """

    path: str
    body: dict[str, Any]
    answered: int


Script: TypeAlias = Sequence[Reply] | Callable[[ModelRequest], Reply | Trouble]


class ProviderServer:
    """A provider whose model plays a script.

    Which reply comes next is read off the request: the n-th answer of a
    conversation is the n-th reply. So a call that is made again gets the same
    answer, and nothing is lost when the caller is killed.

    Args:
        script: The replies of one conversation, or a function that returns the
            reply, or what goes wrong, for a request. It runs in a thread of the
            server and may block.

    Attributes:
        requests: Every request so far, refused ones included.
        troubles: What happens to the next requests, one each, before the script is asked.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.requests: list[ModelRequest] = []
        self.troubles: deque[Trouble] = deque()
        provider = self

        class Handler(_Handler):
            server_of_script = provider

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def base_url(self) -> str:
        """What OpenAI's clients take as ``base_url``."""
        return f"{self.root_url}/v1"

    @property
    def root_url(self) -> str:
        """What Anthropic's clients take as ``base_url``."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: ModelRequest) -> tuple[Reply, Trouble | None]:
        """Return what the script has for a request, and what happens to it on the way.

        Raises:
            ScriptError: The script is at its end.
        """
        self.requests.append(request)
        trouble = self.troubles.popleft() if self.troubles else None
        if isinstance(trouble, Fault):
            return Reply(), trouble
        if not callable(self._script):
            if request.answered >= len(self._script):
                raise ScriptError(
                    f"The script has {len(self._script)} replies; "
                    f"this is model call {request.answered + 1}."
                )
            return self._script[request.answered], trouble
        found = self._script(request)
        return (found, trouble) if isinstance(found, Reply) else (Reply(), found)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of_script: ProviderServer

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers["Content-Length"]))
        api = _APIS.get(self.path)
        if api is None:
            self._refuse(Fault(404, f"there is no {self.path} here"))
            return
        body = json.decode(given)
        request = ModelRequest(self.path, body, api.answered(body))
        try:
            reply, trouble = self.server_of_script.answer(request)
        except ScriptError as error:
            self._refuse(Fault(400, str(error)))
            return
        except Exception as error:  # noqa: BLE001 - a test reads it where its client fails
            self._refuse(Fault(500, f"the script raised {error!r}"))
            return
        if isinstance(trouble, Fault):
            self._refuse(trouble)
        elif body.get("stream"):
            self._stream(api, request, reply, trouble)
        else:
            self._whole(api.body(body, reply, request.answered + 1), trouble)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing."""

    def _refuse(self, fault: Fault) -> None:
        error = {"message": fault.message, "type": "scripted_fault", "code": None}
        content = json.encode({"type": "error", "error": error})
        self.send_response(fault.status)
        if fault.retry_after is not None:
            self.send_header("Retry-After", f"{fault.retry_after:g}")
        self._send(content, "application/json", len(content))

    def _whole(self, body: dict[str, Any], trouble: Trouble | None) -> None:
        content = json.encode(body)
        if isinstance(trouble, Slow):
            time.sleep(trouble.seconds)
        self.send_response(200)
        if isinstance(trouble, Cut):
            self._send(content[: len(content) // 2], "application/json", len(content))
            self.close_connection = True
        else:
            self._send(content, "application/json", len(content))

    def _send(self, content: bytes, content_type: str, length: int) -> None:
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)

    def _stream(
        self, api: ModuleType, request: ModelRequest, reply: Reply, trouble: Trouble | None
    ) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for index, chunk in enumerate(_chunks(api, request, reply)):
                if isinstance(trouble, Cut) and index >= trouble.after:
                    return
                if isinstance(trouble, Slow):
                    time.sleep(trouble.seconds)
                self.wfile.write(chunk)
                self.wfile.flush()
        except ConnectionError:
            return  # the client has gone, or was killed


def _chunks(api: ModuleType, request: ModelRequest, reply: Reply) -> Iterator[bytes]:
    for kind, data in api.events(request.body, reply, request.answered + 1):
        name = b"" if kind is None else b"event: %s\n" % kind.encode()
        yield b"%sdata: %s\n\n" % (name, json.encode(data))
    if api is chat_completions:
        yield b"data: [DONE]\n\n"
