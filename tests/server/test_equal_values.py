"""I60 at every entry point: two values have the same digest exactly if they are equal, and people are shown exactly the value that is sent.

`tests/test_canonical.py` tests the rule itself, as a property. These tests show that every entry point follows it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

import tenure
from tenure.declared import load_workflow
from tenure.errors import TenureError
from tenure.kernel.commands import CreateRun
from tenure.kernel.new_run import hash_command
from tenure.sdk import Workflow, codec
from tests.cases import cases
from tests.govern.act_service import ASK
from tests.server.stage import problem, site
from tests.server.test_runner_acts import POST, acme, claim_step, governed
from tests.server.webhook_senders import SECRET, SECRET_NAME, GitHub, make_hook, register
from tests.test_canonical import VALUES, equal

PAIRS = [
    ("9007199254740993", "9007199254740992"),
    ("1234567890123456789", "1234567890123456788"),
    ("9007199254740993", "9007199254740992.0"),
    ("123456789012345678901234567890", "123456789012345678901234567891"),
    ("1", "1.0"),
    ("-0", "0.0"),
    ("1e21", "1000000000000000000000"),
    ("true", "1"),
    ('"é"', '"\\u00e9"'),
    ('{"a": 1, "b": 2}', '{"b": 2, "a": 1.0}'),
]
"""Pairs of JSON texts."""
TWICE = '{"a": 1, "a": 2}'


def same(pair: tuple[str, str]) -> bool:
    one, other = (json.loads(text) for text in pair)
    return equal(one, other)


async def test_over_http_a_key_matches_equal_values_only(url: str) -> None:
    async with site(url) as s:
        await register(s)
        operator = await s.as_("operator")

        async def post(text: str, key: str) -> Any:
            body = f'{{"workflow": "review", "input": {{"value": {text}}}}}'
            headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
            return await operator.post("/runs", content=body.encode(), headers=headers)

        for number, pair in enumerate(PAIRS):
            first, second = [await post(text, f"k{number}") for text in pair]
            assert first.status_code == 201, first.text
            assert second.status_code == (201 if same(pair) else 422), (pair, second.text)
            run = (await operator.get(f"/runs/{first.json()['id']}")).json()
            assert equal(run["input"]["value"], json.loads(pair[0])), pair
        twice = await post(TWICE, "twice")
        assert (twice.status_code, problem(twice)) == (400, "REQUEST_MALFORMED")
        assert "'a' twice" in twice.json()["error"]["message"]


async def test_in_python_a_key_matches_equal_values_only(url: str) -> None:
    flow = Workflow(_taking, name="taking")
    async with site(url) as s:
        engine = s.engine.scoped(tenant="acme")
        for number, pair in enumerate(PAIRS):
            one, other = (json.loads(text) for text in pair)
            first = await engine.submit(flow, {"value": one}, key=f"k{number}")
            again = None
            with suppress(TenureError):
                again = await engine.submit(flow, {"value": other}, key=f"k{number}")
            assert (again is not None and again.id == first.id) == same(pair), pair
        for wrong in (float("nan"), float("inf"), "\ud800", {1: 1, "1": 2}):
            with pytest.raises(TenureError) as refused:
                await engine.submit(flow, {"value": wrong})
            assert refused.value.code == "INVALID_INPUT"


async def _taking(value: Any) -> Any:
    return value


async def test_a_number_from_a_hook_arrives_unchanged(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    async with site(url, hook_answer_seconds=20) as s:
        await register(s)
        rule = {
            "workflow": "review",
            "input": {"value": "${{ body.value }}", "listed": "${{ [body.value] }}"},
        }
        hook = await make_hook(s, "github", rule)
        github = GitHub(s, hook["id"])
        for text in (
            "9007199254740993",
            "1234567890123456789",
            "18446744073709551615",
            "-9223372036854775807",
            "0.1",
        ):
            answer = await github.deliver(f"told-{text}", f'{{"value": {text}}}'.encode())
            assert answer.json()["status"] == "done", answer.text
            run = await acme(s).get(answer.json()["run_id"])
            assert run.input == {"value": json.loads(text), "listed": [json.loads(text)]}
        for text in ("18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"):
            answer = await github.deliver(f"told-{text}", f'{{"value": {text}}}'.encode())
            assert answer.json()["status"] == "failed", "CEL would convert the number to a double"
            assert "64 bits" in answer.json()["note"]
        twice = await github.deliver("push", TWICE.encode())
        assert (twice.status_code, problem(twice)) == (400, "REQUEST_MALFORMED")


async def test_in_the_runner_protocol_a_label_matches_equal_values_only(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with governed(url, tmp_path, monkeypatch) as (s, service):
        caller, _, path, headers = await claim_step(s)
        headers["Content-Type"] = "application/json"

        async def act(label: str, text: str) -> Any:
            body = json.dumps({"label": label, **POST, "fields": {"json": {"n": "HERE"}}})
            return await caller.post(path, content=body.replace('"HERE"', text).encode(), headers=headers)

        for number, pair in enumerate(PAIRS):
            first, second = [(await act(f"p{number}", text)).json() for text in pair]
            assert first["state"] == "done", first
            assert second["state"] == ("done" if same(pair) else "misfit"), pair
            assert equal(service.effects[-1].body["n"], json.loads(pair[0])), "the value that was sent"
        twice = await act("twice", TWICE)
        assert (twice.status_code, problem(twice)) == (400, "REQUEST_MALFORMED")
        assert len(service.effects) == len(PAIRS)


async def test_an_approved_number_is_shown_digested_and_sent_exactly(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a retry changes the last digit of the number, the approval does not apply and people are asked again."""
    numbers = [1234567890123456789, 1234567890123456788]

    async def _pay() -> Any:
        return (
            await tenure.act("http.post", target={"url": "/effects"}, fields={"json": {"n": numbers[0]}})
        )["status"]

    async with governed(url, tmp_path, monkeypatch, ASK) as (s, service):
        pay = Workflow(_pay, name="pay")
        engine, ann = acme(s), await s.person("ann")
        async with engine.worker(pay):
            run = await engine.submit(pay, {})
            await run.reaches("waiting_approval", wait=20)
            (asked,) = (await ann.get(f"/approvals?run={run.id}")).json()["items"]
            assert asked["question"]["fields"] == {"json": {"n": numbers[0]}}
            assert any(str(numbers[0]) in line for line in asked["question"]["writes"])
            numbers.reverse()  # after the approval, the code returns another number
            body = {"decision": "approve", "digest": asked["digest"], "revision": asked["revision"]}
            assert (await ann.post(f"/approvals/{asked['id']}/decision", json=body)).status_code == 200
            await run.reaches("waiting_approval", "failed", wait=20)
            assert service.effects == [], "nobody has approved this number"


@settings(max_examples=cases(100), deadline=None)
@given(VALUES, VALUES)
def test_other_digests_follow_the_same_rule(one: Any, other: Any) -> None:
    assert (
        codec.digest_arguments((one,), {"x": one}) == codec.digest_arguments((other,), {"x": other})
    ) == equal(one, other)

    def hashed(value: Any) -> bytes:
        body = codec.encode({"value": value}, "it")
        return hash_command(CreateRun(run_id=1, tenant="acme", workflow="w", input=body))

    assert (hashed(one) == hashed(other)) == equal(one, other)


@pytest.mark.parametrize("pair", PAIRS)
def test_yaml_files_are_equal_exactly_if_their_values_are(pair: tuple[str, str]) -> None:
    def digest(text: str) -> str:
        return load_workflow(f"name: n\nsteps:\n  - id: a\n    uses: t\n    with: {{value: {text}}}\n").digest

    if len(pair[1]) > 20:
        with pytest.raises(TenureError, match="more than 63 bits"):
            digest(pair[1])
        return
    assert (digest(pair[0]) == digest(pair[1])) == same(pair)


def test_a_file_with_a_duplicate_key_is_refused() -> None:
    with pytest.raises(TenureError, match="the key 'a' is already in line 5"):
        load_workflow(f"name: n\nsteps:\n  - id: a\n    uses: t\n    with: {TWICE}\n")


def test_arguments_beyond_64_bits_are_compared_by_value() -> None:
    assert codec.digest_arguments((2**70,), {}) != codec.digest_arguments((2**71,), {})
    assert codec.digest_arguments((float("nan"),), {}) != codec.digest_arguments((None,), {}), (
        "NaN is a valid argument of a step"
    )
