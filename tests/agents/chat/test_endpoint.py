"""The client of OpenAI-compatible servers, and the analyst behind one, against a server that speaks the protocol."""

import logging
import pickle
import re
import sys
import time
import warnings

import pytest
from failures import failed, story
from fake_openai import KEY, MODEL, error, in_turn, message, serving

from roleagent.agents.analysts.models import EndpointAnalyst
from roleagent.agents.chat.endpoint import KEYS, OVERLONG, Endpoint, EndpointError, Spending
from roleagent.types import Failure, Reflection


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def opened(fake, model=MODEL, **options):
    return Endpoint(fake.url, model, **options)


def ask(endpoint, *questions, max_tokens=50, temperature=0.5):
    conversations = [[{"role": "user", "content": question}] for question in questions]
    return endpoint.chat(conversations, max_tokens=max_tokens, temperature=temperature)


def spoken(caught):
    """The warnings that are the endpoint's: connections of earlier tests may be tidied up at any time."""
    return [warning for warning in caught if warning.category is UserWarning]


def texts(answers):
    return [answer and answer.text for answer in answers]


# --- asking -----------------------------------------------------------------------------------------------------------


def test_answers_come_in_order_from_as_many_at_a_time_as_allowed():
    def echo(body, number):
        time.sleep(0.03 if number % 2 else 0.01)
        return body["messages"][-1]["content"] + "!"

    with serving(echo) as fake:
        endpoint = opened(fake, concurrency=3)
        assert texts(ask(endpoint, *map(str, range(20)))) == [f"{n}!" for n in range(20)]
        assert 1 < fake.most <= 3
        assert ask(endpoint) == []
        spent = endpoint.settle()
        assert spent.requests == 20 and spent.retries == spent.failures == 0 and spent.seconds > 0
        assert (spent.prompt_tokens, spent.completion_tokens, spent.estimated) == (140, 60, 0)
        assert endpoint.settle() == Spending()


@pytest.mark.parametrize(
    ("answer", "text", "finish", "tokens", "estimated"),
    [
        (message("yes"), "yes", "stop", (7, 3), 0),
        (message(None, reasoning_content="let me see"), "", "stop", (7, 3), 0),
        (message("<think>why</think>yes", "length"), "<think>why</think>yes", "length", (7, 3), 0),
        (message([{"type": "text", "text": "ye"}, {"type": "text", "text": "s"}]), "yes", "stop", (7, 3), 0),
        (message("twelve bytes", finish=None, usage=None), "twelve bytes", "stop", (2, 4), 1),
        ({**message("yes", usage=None), "usage": {"prompt_tokens": "many"}}, "yes", "stop", (2, 1), 1),
    ],
)
def test_an_answer_is_read_as_it_comes(answer, text, finish, tokens, estimated):
    with serving(answer) as fake:
        endpoint = opened(fake)
        (read,) = ask(endpoint, "well?")
        assert (read.text, read.finish_reason, read.estimated) == (text, finish, bool(estimated))
        spent = endpoint.settle()
        assert (read.prompt_tokens, read.completion_tokens) == (spent.prompt_tokens, spent.completion_tokens) == tokens
        assert spent.estimated == estimated and spent.cut == (finish == "length")


# --- trouble that may pass --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        error(500),
        error(503, headers={"Retry-After": "0"}),
        error(429, headers={"Retry-After": "in a while"}),
        error(408),
        "drop",
    ],
    ids=str,
)
def test_what_may_pass_is_tried_again(trouble):
    with serving(in_turn(trouble, trouble, "yes")) as fake:
        endpoint = opened(fake)
        assert texts(ask(endpoint, "well?")) == ["yes"]
        spent = endpoint.settle()
        assert (spent.requests, spent.retries, spent.failures) == (3, 2, 0)


@pytest.mark.parametrize(
    "body",
    [b"<html>busy</html>", b"[" * 100_000, {"choices": []}, {"choices": [{}]}, {"error": {"message": "busy"}}, []],
    ids=lambda body: str(body)[:20],
)
def test_an_answer_that_cannot_be_read_leaves_its_question_unanswered(body):
    with serving(lambda asked, number: "yes" if asked["messages"][0]["content"] == "b" else body) as fake:
        endpoint = opened(fake, concurrency=2)
        with pytest.warns(UserWarning, match="1 of 2 questions stayed unanswered .the answer"):
            assert texts(ask(endpoint, "a", "b")) == [None, "yes"]


ERRORS_IN_BODIES = [
    {"error": {"code": 502, "message": "upstream"}},
    {"error": {"code": "429", "message": "slow down"}, "choices": []},
    {"error": "overloaded"},
    {"object": "error", "message": "busy", "code": 503},
    {"id": "1", "choices": []},
    {"id": "1", "choices": None},
    {"id": "1", "choices": [{"finish_reason": "stop"}]},
    *(message("go to", reason) for reason in ("error", "abort", "cancelled", "insufficient_system_resource")),
    {"choices": [{**message("half an ans")["choices"][0], "error": {"code": 504, "message": "timeout"}}]},
]


@pytest.mark.parametrize("body", ERRORS_IN_BODIES, ids=lambda body: str(body)[:40])
def test_an_error_that_comes_with_http_200_is_an_error(body):
    with serving(in_turn(body, "yes")) as fake:
        endpoint = opened(fake)
        assert texts(ask(endpoint, "well?")) == ["yes"]
        assert (endpoint.settle().requests, len(fake.asked)) == (2, 2)


@pytest.mark.parametrize("reason", ["content_filter", "sensitive", "SAFETY", "refusal"])
def test_an_answer_that_a_filter_took_is_no_command_and_asked_for_once(reason):
    """The conversation has no outcome; the others are answered, and the server is not taken for dead."""
    replies = {"a": message("go to", reason), "b": message("look", "STOP"), "c": message("look", "eos_token")}
    with serving(lambda asked, number: replies[asked["messages"][0]["content"]]) as fake:
        endpoint = opened(fake, retries=3)
        with pytest.warns(UserWarning, match=f"did not finish its answer: '{reason}'"):
            assert texts(ask(endpoint, "a")) == [None]
        assert texts(ask(endpoint, "a", "b", "c")) == [None, "look", "look"]
        assert len(fake.asked) == 4


def test_a_slow_answer_is_given_up_and_asked_for_again():
    with serving(in_turn("hang", "hang", "yes")) as fake:
        endpoint = opened(fake, timeout=0.5)
        # On a busy machine even the last answer may come too late once.
        assert texts(ask(endpoint, "well?")) == ["yes"] and endpoint.settle().retries >= 2


# --- servers that are down --------------------------------------------------------------------------------------------


def test_a_dead_server_ends_the_call_and_is_then_tried_without_repeats_until_it_answers():
    alive = []
    with serving(lambda body, number: "yes" if alive else "drop") as fake:
        endpoint = opened(fake, concurrency=2, retries=3)
        with pytest.warns(UserWarning, match=r"40 of 40 questions stayed unanswered \(.+\)") as caught:
            assert ask(endpoint, *["well?"] * 40) == [None] * 40
            first = len(fake.asked)
            assert first <= 2 * 4 + 2  # both threads' first conversation, and at most one more attempt each
            assert ask(endpoint, *["well?"] * 40) == [None] * 40
            assert len(fake.asked) - first <= 4
        assert len(spoken(caught)) == 1  # later cases are only counted
        assert endpoint.settle().failures == 80
        alive.append(True)
        assert None not in ask(endpoint, *["well?"] * 40)
        assert endpoint.settle().failures == 0


@pytest.mark.parametrize("trouble", ["hang", "dribble", "dribble headers"])
def test_no_call_outlasts_its_deadline(trouble):
    began = time.monotonic()
    with serving(trouble) as fake, pytest.warns(UserWarning, match="3 of 3 questions"):
        endpoint = opened(fake, concurrency=2, timeout=20, deadline=0.3)
        assert ask(endpoint, "a", "b", "c") == [None] * 3
        assert time.monotonic() - began < 9  # the server would have gone on for longer
        spent = endpoint.settle()
        assert spent.requests == 2 and spent.failures == 3


# --- trouble that stays -----------------------------------------------------------------------------------------------


def test_a_question_that_is_refused_is_asked_once():
    def reply(body, number):
        return error(400, "this model's context is 4096") if body["messages"][0]["content"] == "long" else "yes"

    with serving(reply) as fake, pytest.warns(UserWarning, match="context is 4096"):
        endpoint = opened(fake, concurrency=1)
        assert texts(ask(endpoint, "long", "short", "long")) == [None, "yes", None]
        assert endpoint.settle() == Spending(3, 0, 2, 0, 7, 3, 0, pytest.approx(0, abs=1e9))


TOO_LONG = [
    (400, "This model's maximum context length is 4096 tokens."),  # OpenAI, DeepSeek, OpenRouter
    (400, "The decoder prompt (length 5000) is longer than the maximum model length of 4096."),  # vLLM
    (400, "max_tokens is too large: 512. This model's maximum context length is 4096 tokens"),
    (422, "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 `inputs` tokens"),
    (422, "Input validation error: `inputs` must have less than 1024 tokens. Given: 5000"),  # TGI
    (400, "The sum of prompt length (5000.0), query length (0) and max_tokens (20) should not exceed max_num_tokens"),
    (400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576)."),  # Gemini
    (400, "This model's maximum prompt length is 131072 but the request contains 537812 tokens."),  # xAI
    (400, "ValidationException: Input is too long for requested model."),  # Bedrock
    (400, "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000"),  # Cohere
    (400, "litellm.ContextWindowExceededError: BadRequestError"),
    (400, "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it"),  # llama.cpp
    (400, "Your request exceeded model token limit: 8192"),  # Moonshot
    (400, "Range of input length should be [1, 30720]"),  # DashScope
    (413, "no"),
    (500, "Context size has been exceeded."),
    (500, "no user query found in messages"),  # Ollama (ollama 18107)
]


@pytest.mark.parametrize(("status", "words"), TOO_LONG, ids=lambda value: str(value)[:30])
def test_a_conversation_that_is_too_long_is_recognized_by_status_or_words(status, words):
    with serving(error(status, words)) as fake, pytest.warns(UserWarning, match="stayed unanswered"):
        endpoint = opened(fake, retries=3)
        (answer,) = ask(endpoint, "well?")
        assert answer.finish_reason == OVERLONG and len(fake.asked) == 1, "another attempt would not help"


def test_a_server_that_cuts_conversations_without_saying_so_is_named_and_counted():
    """Ollama reads the last 2,050 tokens of a conversation of some 9,000, and answers (ollama 3839)."""

    def reply(body, number):
        read = sum(len(message["content"]) for message in body["messages"]) // 4
        return message("yes", usage=(min(read, 2050), 3))

    prose = "You arrive at cabinet 1. The cabinet 1 is closed. "
    with serving(reply) as fake:
        endpoint = opened(fake)
        assert not any(answer.shortened for answer in ask(endpoint, prose * 160, "well?", "=" * 1000))
        with pytest.warns(UserWarning, match="counts 2,050 prompt tokens .* OLLAMA_CONTEXT_LENGTH"):
            assert [answer.shortened for answer in ask(endpoint, prose * 720, "well?")] == [True, False]
        assert ask(endpoint, prose * 720)[0].shortened, "later ones are only counted"
        assert endpoint.settle().shortened == 2


@pytest.mark.parametrize("words", ["E1261", "No.", ""])
def test_a_conversation_that_is_refused_in_other_words_is_too_long_if_its_length_decides(words):
    """The server refuses long text, whichever it is, and takes short text."""

    def reply(body, number):
        return error(400, words) if sum(len(m["content"].split()) for m in body["messages"]) > 50 else "yes"

    with serving(reply) as fake, pytest.warns(UserWarning, match="HTTP 400"):
        endpoint = opened(fake, concurrency=1)
        long, short = ask(endpoint, "go on " * 100, "well?")
        assert (long.finish_reason, short.text) == (OVERLONG, "yes")
        assert endpoint.settle().requests == len(fake.asked) == 4


def test_parameters_that_newer_models_call_otherwise():
    def reply(body, number):
        if "max_tokens" in body:
            return error(400, "use max_completion_tokens", param="max_tokens", code="unsupported_parameter")
        if "temperature" in body:
            return error(400, "only 1 is supported", param="temperature", code="unsupported_value")
        return "yes"

    with serving(reply) as fake:
        endpoint = opened(fake, concurrency=4)
        assert texts(ask(endpoint, *"abcdefgh")) == ["yes"] * 8
        assert fake.asked[-1]["max_completion_tokens"] == 50
        asked = len(fake.asked)
        ask(endpoint, "once more")
        assert len(fake.asked) == asked + 1  # it remembers


@pytest.mark.parametrize(
    ("options", "path", "model", "said"),
    [
        ({"key": KEY}, "/v1", MODEL, "HTTP 401.*set ROLEAGENT_API_KEY or OPENAI_API_KEY"),
        ({}, "/v1", "gpt-9", r"HTTP 404.*'gpt-9' is not offered; there is 'tiny-chat'"),
        ({}, "", MODEL, "HTTP 404.*often ends in /v1"),
        ({"models": ("a", "b", "c")}, "/v1", "", "offers 'a', 'b', 'c': say which"),
        ({"models": ()}, "/v1", "", "offers none"),
        ({"reply": error(402)}, "/v1", MODEL, "no credit"),
        ({"reply": error(429, code="insufficient_quota")}, "/v1", MODEL, "no credit"),
        ({"reply": error(400, "what a temperature")}, "/v1", MODEL, "HTTP 400.*what a temperature"),
        ({"reply": (301, {"Location": "https://elsewhere.example/"}, {})}, "/v1", MODEL, "HTTP 301.*base URL right"),
        ({"reply": error(503, "loading")}, "/v1", MODEL, r"HTTP 503 \(loading\)$"),
        ({"reply": "drop"}, "/v1", MODEL, "is it running, and the base URL right"),
        ({"reply": b"<html>"}, "/v1", MODEL, "not JSON: is the base URL right"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_configuration_is_said_in_one_line(options, path, model, said):
    with serving(**options) as fake:
        endpoint = Endpoint(fake.url.removesuffix("/v1") + path, model)
        with pytest.raises(EndpointError, match=said) as caught:
            endpoint.check()
        assert "\n" not in str(caught.value) and fake.url.removesuffix("/v1") in str(caught.value)
        assert len(fake.asked) <= 3


def test_a_key_that_is_revoked_ends_a_call_at_once():
    with serving(in_turn("yes", error(401, "revoked"))) as fake:
        endpoint = opened(fake, concurrency=1)
        with pytest.raises(EndpointError, match="revoked"):
            ask(endpoint, *"abcdef")
        assert len(fake.asked) <= 3 and endpoint.settle().failures == 5


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000", "ftp://host/v1", "http://", "http://host:port/v1", "http://[::1/v1"),
        *("http://me:secret@host/v1", "http://host/v1?key=secret", "http://ho st/v1"),
    ],
)
def test_what_is_no_url(url):
    with pytest.raises(EndpointError, match=r"http://127\.0\.0\.1:8000/v1") as caught:
        Endpoint(url, MODEL)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "proxy", ["socks5://me:secret@127.0.0.1:9", "socks://127.0.0.1:9", "http://[::", "127.0.0.1:x"]
)
@pytest.mark.parametrize("name", ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"])
def test_a_proxy_that_cannot_be_used_is_one_line_and_none_of_a_server_without_it(name, proxy, monkeypatch):
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv(name, proxy)
    with serving() as fake:
        assert texts(ask(opened(fake), "well?")) == ["yes"]  # NO_PROXY names it
    monkeypatch.setenv("NO_PROXY", "127.0.0.2")
    with pytest.raises(
        EndpointError, match=r"proxy for 127.0.0.1 cannot be used: .* or set NO_PROXY=127.0.0.1"
    ) as caught:
        Endpoint("http://127.0.0.1:1/v1", MODEL)
    assert "secret" not in str(caught.value) and ("socksio" in str(caught.value)) == proxy.startswith("socks5")


# --- the key ----------------------------------------------------------------------------------------------------------


def test_the_key_is_sent_and_nowhere_shown(monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-another")
    monkeypatch.setenv("ROLEAGENT_API_KEY", f" {KEY}\n")
    caplog.set_level(logging.DEBUG)
    with (
        serving(in_turn("yes", error(500, f"bad {KEY}")), key=KEY) as fake,
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        endpoint = opened(fake, retries=0)
        endpoint.check()
        assert fake.headers[0]["Authorization"] == f"Bearer {KEY}"
        ask(endpoint, "well?")
        fake.key = "sk-new"  # this server repeats the key that it was given
        with pytest.raises(EndpointError, match="does the key in ROLEAGENT_API_KEY belong") as caught:
            endpoint.check()
        with pytest.raises(TypeError):
            pickle.dumps(endpoint)
        shown = [repr(endpoint), repr(vars(endpoint)), str(caught.value), caplog.text, *(str(w.message) for w in said)]
    assert any("HTTP 500" in str(warning.message) for warning in said) and len(caplog.text) > 100
    assert not any(KEY in text for text in shown)


def test_a_key_that_cannot_be_one(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a\nsk-b")
    with pytest.raises(EndpointError, match="OPENAI_API_KEY holds characters") as caught:
        Endpoint("http://127.0.0.1:1/v1", MODEL)
    assert "sk-a" not in str(caught.value)


# --- the analyst ------------------------------------------------------------------------------------------------------

REFLECTION = """<think>It walked.</think><reflection>
DOMINANT_TYPE: navigation_loop
DETAIL: it walked to and fro
CRITICAL_STEP: 2
CORE_LESSON: Look somewhere new.
RETRIEVAL_QUERY: heat: navigation loop
</reflection>"""
SELECTION = "<selected_tasks>\n2: alike\n9: no such task\n</selected_tasks>"


def both(body, number):
    return SELECTION if "<selected_tasks>" in body["messages"][0]["content"] else REFLECTION


def analyst_at(fake, retries=5, **options):
    return EndpointAnalyst(Endpoint(fake.url, retries=retries), **options)


def candidates(n):
    return [Failure(*(lambda t, r: (t.task, r))(*failed(f"t{number}"))) for number in range(n)]


def test_the_analyst_reads_what_the_server_says_and_knows_what_it_cost():
    walked = story(("go to desk 1", "A desk."), ("go to shelf 1", "A shelf."))
    with serving(both) as fake:
        analyst = analyst_at(fake, prices=(1e6, 2e6))
        analyst.check()
        reflections = analyst.reflect([walked] * 3)
        assert (
            reflections
            == [
                Reflection(
                    "navigation_loop",
                    "it walked to and fro",
                    1,
                    "Look somewhere new.",
                    "heat: navigation loop",
                    "endpoint",
                )
            ]
            * 3
        )
        chosen, nothing = analyst.select(reflections[:2], [candidates(3), []])
        assert (chosen.indices, chosen.reasons, chosen.dropped, chosen.source) == ((1,), ("alike",), 1, "endpoint")
        assert nothing.indices == () and nothing.source == "endpoint"
        assert len(fake.asked) == 5 and {body["temperature"] for body in fake.asked} == {0.5}
        costs = analyst.costs()
        assert costs.pop("analysis_seconds") > 0
        assert costs == {
            "analysis_tokens": 15.0,
            "endpoint_shortened": 0.0,
            **{"endpoint_requests": 5.0, "endpoint_retries": 0.0, "endpoint_failures": 0.0, "endpoint_cut": 0.0},
            **{"endpoint_prompt_tokens": 35.0, "endpoint_estimated": 0.0, "endpoint_cost": 35.0 + 2 * 15.0},
        }
        again = analyst.costs()
        assert set(again) == {"analysis_seconds", *costs} and not any(again.values())


@pytest.mark.parametrize(
    "trouble", [error(500), error(401), error(400), "drop", message(None), message("<think>hm", "length")]
)
def test_trouble_costs_analyses_and_not_the_run(trouble):
    walked = story(("go to desk 1", "A desk."))
    with serving(trouble) as fake, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        analyst = analyst_at(fake, retries=1)
        reflections = analyst.reflect([walked] * 4)
        selections = analyst.select(reflections, [candidates(2)] * 4)
    assert {r.source for r in reflections} == {s.source for s in selections} == {"fallback"}
    assert not any(s.indices for s in selections) and all(r.query for r in reflections)
    costs, said = analyst.costs(), spoken(said)
    answered = isinstance(trouble, dict)
    assert costs["endpoint_failures"] == (0 if answered else 8) and len(said) == (0 if answered else 1)
    assert not said or re.search("HTTP [45]0|disconnected|closed|peer", str(said[0].message))
