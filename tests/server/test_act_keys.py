"""Keys of actions in workflow files, over HTTP: a hash of chosen fields, one effect for each key of a tenant."""

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import httpx
import pytest

from tenure.canonical import canonical
from tenure.govern.connectors.settings import parse_connectors
from tenure.sdk import Registry
from tenure.store.policies import PolicyRegistry
from tenure.testing.doubles import ServiceNowDouble, SlackDouble
from tests.server.stage import Site, site

WORKFLOW = """
name: incidents
version: "1"
profile: governed-runtime
inputs:
  instance: {type: string}
  sys_id: {type: string}
  fields: {type: object}
  channel: {type: string}
  thread: {type: string}
  body: {type: string}
steps:
  - id: update
    uses: servicenow.incident.update
    idempotency_key: "sn:incident:update:${{ inputs.instance }}:${{ inputs.sys_id }}:${{ sha256(inputs.fields) }}"
    with: {target: {sys_id: "${{ inputs.sys_id }}"}, fields: "${{ inputs.fields }}"}
  - id: post
    uses: slack.message.post
    idempotency_key: "slack:post:${{ inputs.channel }}:${{ inputs.thread }}:${{ sha256(inputs.body) }}"
    with: {target: {channel: "${{ inputs.channel }}"}, fields: {text: "${{ inputs.body }}"}}
"""
POLICY = """
version: 1
rules:
  - {name: incidents, connector: servicenow, operation: incident.update, allow: true}
  - {name: messages, connector: slack, operation: message.post, allow: true}
"""
CONNECTORS = """
connectors:
  servicenow: {{base_url: "{servicenow}", tokens: {{acme: env:TENURE_SECRET_acme_T, globex: env:TENURE_SECRET_globex_T}}, allow_private: [127.0.0.1]}}
  slack: {{base_url: "{slack}", tokens: {{acme: env:TENURE_SECRET_acme_T, globex: env:TENURE_SECRET_globex_T}}, allow_private: [127.0.0.1]}}
"""


class Services:
    """The doubles of both services."""

    def __init__(self, servicenow: ServiceNowDouble, slack: SlackDouble) -> None:
        self.servicenow, self.slack = servicenow, slack

    @property
    def updates(self) -> list[Any]:
        return [request.json() for request in self.servicenow.requests if request.method == "PATCH"]

    @property
    def posts(self) -> list[str]:
        return [message["text"] for message in self.slack.in_channel("C0123")]


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    for tenant in ("acme", "globex"):
        monkeypatch.setenv(f"TENURE_SECRET_{tenant}_T", "token")
    with ServiceNowDouble(token="token") as servicenow, SlackDouble(token="token") as slack:
        yield Services(servicenow, slack)


async def finish(caller: httpx.AsyncClient, **given: Any) -> dict[str, Any]:
    """Start a run over HTTP, and wait for its end."""
    answer = await caller.post("/runs", json={"workflow": "incidents", "input": given})
    assert answer.status_code == 201, answer.text
    run: str = answer.json()["id"]
    for _ in range(600):
        view: dict[str, Any] = (await caller.get(f"/runs/{run}")).json()
        if view["finished_at"]:
            return view
        await asyncio.sleep(0.05)
    raise AssertionError(f"{run} does not end")


async def let_in(s: Site, tenant: str) -> httpx.AsyncClient:
    """A caller of a tenant with the workflow and the policy."""
    caller = await s.as_("operator", "viewer", tenant=tenant)
    await PolicyRegistry(s.engine.store, tenant).install(POLICY)
    made = await caller.put(
        "/workflows/incidents", content=WORKFLOW, headers={"Content-Type": "application/yaml"}
    )
    assert made.status_code == 201, made.text
    return caller


@pytest.mark.guard_seconds(120)
@pytest.mark.clause("GOV-14", "GOV-15", "GOV-24")
async def test_a_key_with_a_hash_of_the_fields_means_one_effect_per_tenant(
    url: str, services: Services
) -> None:
    text = CONNECTORS.format(servicenow=services.servicenow.url, slack=services.slack.url)
    known: Any = parse_connectors(text)
    sys_id = services.servicenow.incident("INC1")
    async with site(url, connectors=known) as s, s.engine.worker(Registry()):
        acme, globex = await let_in(s, "acme"), await let_in(s, "globex")
        fields = {"urgency": "2", "short_description": "VPN"}
        given = {
            "instance": "dev", "sys_id": sys_id, "fields": fields, "channel": "C0123", "thread": "1.2", "body": "hello",
        }  # fmt: skip
        first = await finish(acme, **given)
        assert (first["status"], first["error"]) == ("succeeded", None)
        receipts = (await acme.get(f"/runs/{first['id']}/receipts")).json()["items"]
        assert {one["key"] for one in receipts} == {
            f"sn:incident:update:dev:{sys_id}:{sha256(canonical(fields)).hexdigest()}",
            f"slack:post:C0123:1.2:{sha256(canonical('hello')).hexdigest()}",
        }
        assert (len(services.updates), services.posts) == (1, ["hello"])

        same = await finish(acme, **{**given, "fields": dict(reversed(fields.items()))})
        assert same["status"] == "succeeded"
        assert (len(services.updates), services.posts) == (1, ["hello"]), "equal fields are the same effect"
        steps = {
            run: [step["output"] for step in (await acme.get(f"/runs/{run}/steps")).json()["items"]]
            for run in (first["id"], same["id"])
        }
        assert steps[first["id"]] == steps[same["id"]], "the second run has the results of the first"

        other = await finish(acme, **{**given, "fields": {"urgency": "3"}, "body": "bye"})
        assert other["status"] == "succeeded"
        assert (len(services.updates), services.posts) == (2, ["hello", "bye"]), (
            "other fields are another effect"
        )

        theirs = await finish(globex, **given)
        assert theirs["status"] == "succeeded"
        assert (len(services.updates), services.posts) == (3, ["hello", "bye", "hello"]), (
            "a key is its tenant's"
        )
