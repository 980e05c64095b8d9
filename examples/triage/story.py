"""An incident arrives, two people approve, it is assigned, evidence proves what happened, and the assignment is undone.

Everything here is real except for the two services: a Tenure server on this machine, its policy, its people, its Slack hook,
its ledger. ServiceNow and Slack are doubles that speak HTTP. Run it: `.venv/bin/python examples/triage/story.py`.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import structlog

import tenure
from tenure import Engine
from tenure.cli.workflows.registration import register_workflows
from tenure.govern.connectors.settings import parse_connectors
from tenure.govern.evidence.verification import EvidenceFiles, verify_parts
from tenure.govern.signing import Signer, make_key
from tenure.proof.signatures import TrustedKeys
from tenure.server.http_server import serving
from tenure.server.settings import Settings
from tenure.services.identity.principals import OPERATOR
from tenure.testing.doubles import ServiceNowDouble, SlackDouble

HERE = Path(__file__).parent
SECRETS = {
    "SERVICENOW": "sn-token",
    "SLACK": "xoxb-token",
    "SIGNING": "slack-signs",
    "WEBHOOK": "servicenow-signs",
}
CHANNEL = "C0123456789"
PATIENCE_SECONDS = 30.0

GROUPS = {"network": "Network operations", "database": "Database team"}


@tenure.step
async def classify(text: str) -> dict[str, str]:
    """Classify an incident, as a model would. (This one only looks for words, but it reports a cost.)"""
    tenure.report_cost("example", "tiny-1", tokens_in=len(text.split()), tokens_out=2, money="0.0004")
    kind = "network" if "vpn" in text.lower() else "database"
    return {"kind": kind, "why": f"it says {text!r}"}


@tenure.workflow(profile="governed-runtime", compensate=True, budget="0.05 USD")
async def triage(sys_id: str, number: str, description: str) -> dict[str, Any]:
    """Classify, then assign. The policy says who must approve the assignment."""
    found = await classify(description)
    assigned = await tenure.act(
        "servicenow.incident.assign",
        target={"sys_id": sys_id},
        fields={"assignment_group": GROUPS[found["kind"]]},
        why=f"I think {number} is about the {found['kind']}: {found['why']}",
    )
    return {"incident": number, "assigned": assigned["assignment_group"]}


class Story:
    """The server, the people, and their actions."""

    def __init__(self, address: str, engine: Engine, slack: SlackDouble) -> None:
        self.address, self.engine, self.slack = address, engine, slack
        self.people: dict[str, httpx.AsyncClient] = {}
        self.hooks: dict[str, str] = {}
        self.clicks = 0

    async def hire(
        self, stack: AsyncExitStack, person: str, *roles: str, groups: tuple[str, ...] = ()
    ) -> None:
        """Add a person to the tenant, and enrol them with their own key."""
        people = self.engine.scoped(tenant="acme", caller=OPERATOR).people
        await people.create(name=person.title(), roles=roles, groups=groups, person=person)
        made = (await people.enrol((await people.invite(person)).code)).key
        client = httpx.AsyncClient(
            base_url=self.address, headers={"Authorization": f"Bearer {made.key}"}, timeout=30
        )
        self.people[person] = await stack.enter_async_context(client)

    async def call(self, who: str, method: str, path: str, body: Any = None) -> Any:
        """Send a request to the server as a person."""
        answer = await self.people[who].request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    async def until(self, what: str, look: Any) -> Any:
        """Wait until a condition holds."""
        end = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < end:
            found = look()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.05)
        raise TimeoutError(what)

    # -------------------------------------------------------------------------------- requests of others

    async def webhook(self, message: str, body: dict[str, Any]) -> int:
        """ServiceNow reports an incident, signed."""
        raw, at = json.dumps(body).encode(), str(int(time.time()))
        mac = hmac.digest(SECRETS["WEBHOOK"].encode(), f"{message}.{at}.".encode() + raw, "sha256")
        signature = "v1," + base64.b64encode(mac).decode()
        headers = {"webhook-id": message, "webhook-timestamp": at, "webhook-signature": signature}
        async with httpx.AsyncClient(base_url=self.address) as client:
            answer = await client.post(
                f"/hooks/generic/{self.hooks['servicenow']}",
                content=raw,
                headers={**headers, "Content-Type": "application/json"},
            )
        return answer.status_code

    async def _from_slack(self, where: str, fields: dict[str, str]) -> str:
        raw, at = urlencode(fields).encode(), str(int(time.time()))
        mac = hmac.digest(SECRETS["SIGNING"].encode(), f"v0:{at}:".encode() + raw, "sha256").hex()
        headers = {
            "X-Slack-Request-Timestamp": at,
            "X-Slack-Signature": f"v0={mac}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        async with httpx.AsyncClient(base_url=self.address) as client:
            answer = await client.post(
                f"/hooks/slack/{self.hooks['slack']}/{where}", content=raw, headers=headers
            )
        assert answer.is_success, answer.text
        return str(answer.json()["text"])

    async def link(self, person: str) -> None:
        """A person links their Slack account: Slack shows a code, and the person sends it to the server."""
        self.clicks += 1
        who = {"team_id": "T1", "user_id": f"U-{person}", "trigger_id": f"t{self.clicks}"}
        text = await self._from_slack("commands", {**who, "command": "/tenure", "text": "link"})
        code = next(word.rstrip(".") for word in text.split() if word.startswith("tns_"))
        await self.call(person, "PUT", "/me/slack", {"code": code})

    async def click(self, person: str, value: str) -> str:
        """A person clicks Approve on the card."""
        self.clicks += 1
        payload = {
            "type": "block_actions",
            "team": {"id": "T1"},
            "user": {"id": f"U-{person}"},
            "trigger_id": f"t{self.clicks}",
            "actions": [{"action_id": "tenure.approve", "value": value}],
        }
        return await self._from_slack("actions", {"payload": json.dumps(payload)})

    def button(self) -> str | None:
        """The value of the Approve button on the newest card."""
        for message in reversed(self.slack.in_channel(CHANNEL)):
            for block in message.get("blocks", ()):
                for one in block.get("elements", ()):
                    if one.get("action_id") == "tenure.approve":
                        return str(one["value"])
        return None


async def set_up(story: Story, stack: AsyncExitStack) -> None:
    """Create the tenant, its people, its policy and its hooks."""
    operator = story.engine.scoped(tenant="", caller=OPERATOR).tenants
    await operator.create("acme", name="Acme")
    # People can link accounts and decide in Slack only through an app that the operator has registered.
    await operator.set_slack_app("acme", "T1", ["env:TENURE_SECRET_acme_SIGNING"])
    await story.hire(stack, "olga", "admin", "approver", "viewer", groups=("incidents",))
    for person in ("ada", "bob"):
        await story.hire(stack, person, "approver", "operator", "viewer", groups=("incidents",))
    await register_workflows(story.engine, [triage])
    version = (await story.call("olga", "POST", "/policies", {"text": (HERE / "policy.yaml").read_text()}))[
        "version"
    ]
    await story.call("olga", "POST", f"/policies/{version}/activate")
    active = await story.call("ada", "POST", f"/policies/{version}/activate")
    print(f"policy version {version} is {active['state']}: olga requested it, ada approved")
    rule = {
        "when": "event == 'incident.created'",
        "workflow": "triage",
        "input": {name: f"${{{{ body.{name} }}}}" for name in ("sys_id", "number", "description")},
    }
    asked: dict[str, dict[str, Any]] = {
        "servicenow": {"kind": "generic", "secrets": ["env:TENURE_SECRET_acme_WEBHOOK"], "rules": [rule]},
        "slack": {
            "kind": "slack",
            "secrets": ["env:TENURE_SECRET_acme_SIGNING"],
            "settings": {"channel": CHANNEL, "token": "env:TENURE_SECRET_acme_SLACK"},
        },
    }
    for name, body in asked.items():
        story.hooks[name] = (await story.call("olga", "POST", "/hooks", {"name": name, "rules": [], **body}))[
            "id"
        ]
    for person in ("olga", "ada", "bob"):
        await story.link(person)


async def play(story: Story, service: ServiceNowDouble, signer: Signer) -> None:
    """Play the story, and print what happens."""
    sys_id = service.incident("INC0042", assignment_group="Service desk", short_description="VPN drops")
    told = {
        "type": "incident.created",
        "sys_id": sys_id,
        "number": "INC0042",
        "description": "VPN drops all calls",
    }
    answers = [await story.webhook("msg-1", told) for _ in range(2)]
    print(f"ServiceNow reported INC0042 twice: {answers}")
    value = await story.until("the card", story.button)
    (run,) = [one["id"] for one in (await story.call("ada", "GET", "/runs"))["items"]]
    print("one run; a card in Slack asks:")
    (asked,) = (await story.call("ada", "GET", f"/approvals?run={run}"))["items"]
    for line in asked["question"]["writes"]:
        print(f"  {line}")
    print(f"  the agent's reason: {asked['question']['why']}")
    for person in ("olga", "ada", "ada", "bob"):
        print(f"{person} clicks Approve: {await story.click(person, value)}")

    async def ended() -> Any:
        view = await story.call("ada", "GET", f"/runs/{run}")
        return view if view["finished_at"] else None

    view = await story.until("the run's end", ended)
    print(f"the run {view['status']}: {view['output']}")
    print(f"INC0042 is assigned to {service.incidents[sys_id]['assignment_group']}")
    costs = await story.call("ada", "GET", f"/runs/{run}/costs")
    print(f"the run spent {costs['spent']} of {costs['budget']} millionths of a {costs['currency']}")

    acme = story.engine.scoped(tenant="acme", actor="person:ada")
    await acme.evidence.seal(run)
    parts = await acme.evidence.export(run)
    given = [
        EvidenceFiles(
            name=part.name,
            zip=part.zip,
            envelope=part.envelope,
            proof=part.proof.encode() if part.proof else None,
        )
        for part in parts
    ]
    (report,) = verify_parts(given, TrustedKeys.from_public_keys(signer.public))
    assert report.wrong is None, report.wrong
    print(
        f"evidence of {report.events} events, {report.outcome}, signed by the key we trust: {report.key == signer.id}"
    )

    undo = (await story.call("ada", "POST", f"/runs/{run}/undo", {}))["id"]

    async def undone() -> Any:
        (entry,) = (await story.call("ada", "GET", f"/runs/{run}/undo"))["items"]
        return entry if entry["run"] == undo and entry["lines"] else None

    (line,) = (await story.until("the undo", undone))["lines"]
    print(
        f"undo: {line['action']} {line['outcome']}; INC0042 is assigned to {service.incidents[sys_id]['assignment_group']}"
    )


async def main() -> None:
    """Start the services and the server, and play the story."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    for name, secret in SECRETS.items():
        os.environ[f"TENURE_SECRET_acme_{name}"] = secret
    with (
        tempfile.TemporaryDirectory() as folder,
        ServiceNowDouble(token=SECRETS["SERVICENOW"]) as service,
        SlackDouble(token=SECRETS["SLACK"]) as slack,
    ):
        key = Path(folder) / "seal.key"
        make_key(key)
        signer = Signer.open(f"file:{key}")
        text = (HERE / "connectors.yaml").read_text().replace("SERVICENOW_URL", service.url)
        url = os.environ.get("TENURE_DB", f"sqlite:{folder}/triage.db")
        settings = Settings(port=0, webhooks_to_loopback=True, slack_url=slack.url, log_runs=False)
        async with AsyncExitStack() as stack:
            engine = Engine(url, connectors=parse_connectors(text), signing_key=f"file:{key}")
            await stack.enter_async_context(engine)
            _, address = await stack.enter_async_context(serving(engine, settings))
            await stack.enter_async_context(engine.worker(triage))
            story = Story(address, engine, slack)
            await set_up(story, stack)
            await play(story, service, signer)


if __name__ == "__main__":
    asyncio.run(main())
