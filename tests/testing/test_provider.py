"""The scripted provider on the bare wire; frameworks' clients meet it in the adapters' tests."""

from __future__ import annotations

import http.client
import json

import pytest

from dex_agents.testing import Call, Cut, Fault, ProviderServer, Reply, Slow

ASKING = Reply("Let me look.", [Call("look", {"at": 1}), Call("look", {"at": 2}, "same")])
REQUESTS = {
    "/v1/chat/completions": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"model": "m", "input": [{"role": "user", "content": "Hi"}]},
    "/v1/messages": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
}


def post(server: ProviderServer, path: str, body: dict) -> tuple[int, dict, bytes]:
    host = server.root_url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response.status, dict(response.headers), response.read()
    finally:
        connection.close()


def events(content: bytes) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in content.decode().splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize("path", REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
def test_the_same_request_gets_the_same_answer(path, stream):
    """A call that is repeated after a crash does not move the script on."""
    with ProviderServer([ASKING, Reply("Done.")]) as server:
        request = {**REQUESTS[path], "stream": stream}
        first, second = post(server, path, request), post(server, path, request)
    assert first[0] == 200
    assert first[2] == second[2]
    assert b"look" in first[2]
    assert [each.answered for each in server.requests] == [0, 0]


def test_answers_are_counted_by_what_the_model_made():
    """Several items of one answer are one; an answer follows each batch of results."""
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    conversation = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "id": "r", "summary": []},
        call,
        call,
        result,
        result,
        call,
        result,
    ]
    with ProviderServer([Reply("1"), Reply("2"), Reply("three")]) as server:
        status, _, body = post(server, "/v1/responses", {"model": "m", "input": conversation})
    assert status == 200
    assert json.loads(body)["output"][0]["content"][0]["text"] == "three"


def test_a_chat_stream_tells_text_calls_and_usage():
    """The deltas add up to the whole answer."""
    with ProviderServer([ASKING]) as server:
        path = "/v1/chat/completions"
        _, _, content = post(server, path, {**REQUESTS[path], "stream": True})
    chunks = events(content)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == ASKING.text
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call["id"] for call in calls if "id" in call] == ["call_1_0", "same"]
    arguments = [c["function"]["arguments"] for c in calls if c["index"] == 0]
    assert json.loads("".join(arguments)) == {"at": 1}
    assert chunks[-1]["usage"]["total_tokens"] == 15
    assert content.endswith(b"data: [DONE]\n\n")


def test_malformed_arguments_are_sent_as_they_are():
    """What a model garbles reaches the client garbled."""
    with ProviderServer([Reply(calls=[Call("look", '{"at": ')])]) as server:
        path = "/v1/chat/completions"
        _, _, content = post(server, path, REQUESTS[path])
    call = json.loads(content)["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["arguments"] == '{"at": '


def test_a_fault_comes_once_with_its_header():
    """Troubles go to one request each, in order; then the script goes on."""
    with ProviderServer([Reply("Hello.")]) as server:
        server.troubles += [Fault(429, "slow down", retry_after=1.5), Fault(500)]
        path = "/v1/messages"
        limited, broken, fine = (post(server, path, REQUESTS[path]) for _ in range(3))
    assert (limited[0], limited[1]["Retry-After"]) == (429, "1.5")
    assert json.loads(limited[2])["error"]["message"] == "slow down"
    assert broken[0] == 500
    assert json.loads(fine[2])["content"] == [{"type": "text", "text": "Hello."}]


@pytest.mark.parametrize("path", REQUESTS)
def test_a_cut_stream_ends_early(path):
    """The connection closes after so many events, without the end of the answer."""
    with ProviderServer([ASKING]) as server:
        server.troubles.append(Cut(after=3))
        _, _, content = post(server, path, {**REQUESTS[path], "stream": True})
    assert len(events(content)) == 3


def test_a_cut_body_is_shorter_than_it_says():
    """A client sees that the answer is not whole."""
    with ProviderServer([Reply("Hello.")]) as server:
        server.troubles.append(Cut())
        path = "/v1/responses"
        with pytest.raises(http.client.IncompleteRead):
            post(server, path, REQUESTS[path])


def test_a_slow_answer_comes_whole():
    """Slowness changes nothing but the time."""
    with ProviderServer([Reply("Hi")]) as server:
        server.troubles.append(Slow(0.01))
        path = "/v1/messages"
        _, _, content = post(server, path, {**REQUESTS[path], "stream": True})
    assert events(content)[-1] == {"type": "message_stop"}


def test_a_script_at_its_end_says_so():
    """One model call too many is an error with a sentence, not an empty answer."""
    with ProviderServer([]) as server:
        path = "/v1/responses"
        status, _, content = post(server, path, REQUESTS[path])
    assert status == 400
    assert "0 replies; this is model call 1" in json.loads(content)["error"]["message"]


def test_a_script_that_raises_says_what():
    """A mistake in a script of code reaches the client that asked."""
    with ProviderServer(lambda request: request.body["missing"]) as server:
        status, _, content = post(server, "/v1/messages", REQUESTS["/v1/messages"])
    assert status == 500
    assert "KeyError('missing')" in json.loads(content)["error"]["message"]


def test_a_function_may_decide():
    """A script of code sees the request, and may let it fail."""

    def script(request):
        return Fault(401) if request.body["model"] == "m" else Reply("yes")

    with ProviderServer(script) as server:
        refused = post(server, "/v1/messages", REQUESTS["/v1/messages"])
        other = post(server, "/v1/messages", {**REQUESTS["/v1/messages"], "model": "n"})
    assert (refused[0], other[0]) == (401, 200)


def test_an_unknown_path_is_refused():
    """Only the three APIs are there."""
    with ProviderServer([]) as server:
        assert post(server, "/v1/embeddings", {})[0] == 404
