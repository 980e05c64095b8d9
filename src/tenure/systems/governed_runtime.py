"""The system of governed-runtime.md, whole: ServiceNow starts a run, a policy asks for two people, Slack approves, and evidence proves it.

Laws:
1. Everything that is checked is read from outside: over the server's API, at the doubles, from the sealed bundle.
2. ServiceNow and Slack are doubles that speak HTTP and call as the services do: a shared secret in a header, and signed clicks. The worker
   is a process of its own.
3. The workflow is a YAML file, and its actions have the keys of the document: a hash of the fields, and a hash of the text.
"""

from __future__ import annotations

import hmac
import json
import secrets
from typing import Any
from urllib.parse import urlencode

import httpx

from tenure.clock import HostClock
from tenure.engine import Engine
from tenure.govern.connectors.settings import parse_connectors
from tenure.govern.evidence.verification import EvidenceFiles, verify_parts
from tenure.govern.signing import Signer, make_key
from tenure.private_files import write_file
from tenure.proof.signatures import TrustedKeys
from tenure.server.http_server import serving
from tenure.server.settings import Settings
from tenure.services.identity.principals import OPERATOR
from tenure.systems.stage import SERVER, TENANT, Stage, expect_json
from tenure.testing.doubles import ServiceNowDouble, SlackDouble

CHANNEL, TEAM = "C0123456789", "T1"
SECRET_HEADER = "x-tenure-secret"
WORKFLOW = """
name: triage
version: "1"
profile: governed-runtime
inputs:
  instance: {type: string}
  sys_id: {type: string}
  number: {type: string}
  fields: {type: object}
steps:
  - id: assign
    uses: servicenow.incident.assign
    idempotency_key: "sn:incident:update:${{ inputs.instance }}:${{ inputs.sys_id }}:${{ sha256(inputs.fields) }}"
    with:
      target: {sys_id: "${{ inputs.sys_id }}"}
      fields: "${{ inputs.fields }}"
      why: "${{ inputs.number }} belongs to another group"
  - id: tell
    uses: slack.message.post
    idempotency_key: "slack:post:CHANNEL:main:${{ sha256(inputs.number + ' was assigned') }}"
    with:
      target: {channel: CHANNEL}
      fields: {text: "${{ inputs.number + ' was assigned' }}"}
""".replace("CHANNEL", CHANNEL)
POLICY = """
version: 1
rules:
  - name: assignments-need-two
    connector: servicenow
    operation: incident.assign
    when: "!action.reverses"
    approval: {tier: med, people: 2, group: incidents, within: 4h}
    why: a wrong group costs an hour
  - name: messages-are-free
    connector: slack
    operation: [message.post, message.delete]
    allow: true
  - name: taking-back-is-free
    connector: servicenow
    operation: incident.assign
    when: action.reverses
    allow: true
"""
CONNECTORS = """
connectors:
  servicenow: {{kind: servicenow, base_url: "{servicenow}", tokens: {{{tenant}: "file:{folder}/servicenow"}}, allow_private: [127.0.0.1]}}
  slack: {{kind: slack, base_url: "{slack}", tokens: {{{tenant}: "file:{folder}/slack"}}, allow_private: [127.0.0.1]}}
"""
RULE = {
    "when": "body.table == 'incident'",
    "workflow": "triage",
    "input": {name: f"${{{{ body.{name} }}}}" for name in ("instance", "sys_id", "number", "fields")},
}

FORGED = "a call without the secret is refused"
STARTED = "ServiceNow calls twice, and one run starts"
ASKED = "the policy asks two people, and a card in Slack shows the writes"
FIRST = "one person approves, and nothing is written yet"
FORGED_CLICK = "a click with a wrong signature is refused"
WRITTEN = "the second person approves, and the incident is assigned once"
KEYS = "the keys hold the hashes of the fields and of the text"
AGAIN = "another run of the same fields is approved too, writes nothing, and takes the result of the first"
PROVEN = "the sealed evidence is verified with the key we trust"
UNDONE = "the assignment is undone from its receipt"
PARTS = (FORGED, STARTED, ASKED, FIRST, FORGED_CLICK, WRITTEN, KEYS, AGAIN, PROVEN, UNDONE)


async def play(stage: Stage) -> None:
    """Start the system, and play its story."""
    service = stage.exits.enter_context(ServiceNowDouble(token=secrets.token_hex(16)))
    slack = stage.exits.enter_context(SlackDouble(token=secrets.token_hex(16)))
    story = _GovernedStory(stage, service, slack)
    await story.start()
    await story.set_up()
    await story.play()


class _GovernedStory:
    def __init__(self, stage: Stage, service: ServiceNowDouble, slack: SlackDouble) -> None:
        self.stage, self.service, self.slack = stage, service, slack
        self.secrets = {
            "servicenow": service.token,
            "slack": slack.token,
            "signing": secrets.token_hex(16),
            "calls": secrets.token_hex(16),
        }
        self.people: dict[str, httpx.AsyncClient] = {}
        self.hooks: dict[str, str] = {}
        self.address = ""
        self.clicks = 0
        self.key = stage.folder / "seal.key"

    # ------------------------------------------------------------------------------------------- setting up

    async def start(self) -> None:
        """Start the server, and the worker as a process."""
        stage = self.stage
        folder = stage.write_secrets(**self.secrets)
        make_key(self.key)
        connectors = stage.folder / "connectors.yaml"
        text = CONNECTORS.format(
            servicenow=self.service.url, slack=self.slack.url, tenant=TENANT, folder=folder
        )
        write_file(connectors, text)
        engine = Engine(
            stage.database,
            connectors=parse_connectors(text),
            signing_key=f"file:{self.key}",
            sweep_seconds=0.2,
        )
        self.engine = await stage.exits.enter_async_context(engine)
        await stage.create_tenant(engine)
        operator = engine.scoped(tenant="", caller=OPERATOR)
        await operator.tenants.set_slack_app(TENANT, TEAM, [f"file:{folder}/signing"])
        settings = Settings(
            port=stage.port,
            webhooks_to_loopback=True,
            slack_url=self.slack.url,
            log_runs=False,
            secrets_folder=str(stage.secrets_folder),
            hook_answer_seconds=30,
        )
        _, self.address = await stage.exits.enter_async_context(serving(engine, settings))
        stage.addresses |= {
            SERVER: self.address,
            "ServiceNow's double": self.service.url,
            "Slack's double": self.slack.url,
        }
        await stage.start("worker", "worker", "--commands", "--connectors", str(connectors))
        for person, roles in (
            ("olga", ("admin", "approver", "operator", "viewer")),
            ("ada", ("approver", "operator", "viewer")),
            ("bob", ("approver", "viewer")),
        ):
            key = await stage.create_person(engine, person, *roles, groups=("incidents",))
            self.people[person] = await stage.connect(self.address, key)

    async def set_up(self) -> None:
        """Olga registers the workflow, the policy and the hooks. A policy needs a second person."""
        olga, ada = self.people["olga"], self.people["ada"]
        yaml = {"Content-Type": "application/yaml"}
        await expect_json(olga.put("/workflows/triage", content=WORKFLOW, headers=yaml))
        version = (await expect_json(olga.post("/policies", json={"text": POLICY})))["version"]
        for caller in (olga, ada):
            await expect_json(caller.post(f"/policies/{version}/activate"))
        folder = self.stage.secrets_folder / TENANT
        hooks: dict[str, dict[str, Any]] = {
            "servicenow": {
                "secrets": [f"file:{folder}/calls"],
                "rules": [RULE],
                "settings": {
                    "secret_header": SECRET_HEADER,
                    "event_id": ["body:sys_id", "body:sys_mod_count"],
                },
            },
            "slack": {
                "secrets": [f"file:{folder}/signing"],
                "rules": [],
                "settings": {"channel": CHANNEL, "token": f"file:{folder}/slack"},
            },
        }
        for kind, fields in hooks.items():
            made = await expect_json(olga.post("/hooks", json={"kind": kind, "name": kind, **fields}))
            self.hooks[kind] = made["address"].removesuffix("/commands")
        for person in self.people:
            await self._link(person)

    # --------------------------------------------------------------------------------------- the outside world

    async def _call(self, body: dict[str, Any], secret: str) -> httpx.Response:
        """ServiceNow calls the hook: a secret in a header, and no signature."""
        async with httpx.AsyncClient(base_url=self.address, timeout=30.0) as client:
            return await client.post(self.hooks["servicenow"], json=body, headers={SECRET_HEADER: secret})

    async def _from_slack(
        self, where: str, fields: dict[str, str], secret: str | None = None
    ) -> httpx.Response:
        raw, at = urlencode(fields).encode(), str(HostClock().now_us() // 1_000_000)
        key = (secret or self.secrets["signing"]).encode()
        mac = hmac.digest(key, f"v0:{at}:".encode() + raw, "sha256").hex()
        headers = {
            "X-Slack-Request-Timestamp": at,
            "X-Slack-Signature": f"v0={mac}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        async with httpx.AsyncClient(base_url=self.address, timeout=30.0) as client:
            return await client.post(f"{self.hooks['slack']}/{where}", content=raw, headers=headers)

    async def _link(self, person: str) -> None:
        """A person links their Slack account: Slack shows a code, and the person sends it to the server."""
        self.clicks += 1
        who = {"team_id": TEAM, "user_id": f"U-{person}", "trigger_id": f"t{self.clicks}"}
        shown = await self._from_slack("commands", {**who, "command": "/tenure", "text": "link"})
        text = str(shown.json()["text"])
        code = next(word.rstrip(".") for word in text.split() if word.startswith("tns_"))
        await expect_json(self.people[person].put("/me/slack", json={"code": code}))

    async def _click(self, person: str, value: str, secret: str | None = None) -> httpx.Response:
        self.clicks += 1
        payload = {
            "type": "block_actions",
            "team": {"id": TEAM},
            "user": {"id": f"U-{person}"},
            "trigger_id": f"t{self.clicks}",
            "actions": [{"action_id": "tenure.approve", "value": value}],
        }
        return await self._from_slack("actions", {"payload": json.dumps(payload)}, secret)

    def _buttons(self) -> list[str]:
        """The values of the Approve buttons on the cards, oldest first."""
        return [
            str(element["value"])
            for message in self.slack.in_channel(CHANNEL)
            for block in message.get("blocks") or ()
            for element in block.get("elements") or ()
            if element.get("action_id") == "tenure.approve"
        ]

    async def _button_of(self, run: str) -> str | None:
        """The value of the Approve button of a run's card, once there is one."""
        asked = (await expect_json(self.people["ada"].get("/approvals", params={"run": run})))["items"]
        return next((one for one in self._buttons() if asked and one.startswith(asked[0]["id"])), None)

    async def _ended(self, run: str) -> Any:
        view = await expect_json(self.people["ada"].get(f"/runs/{run}"))
        return view if view["finished_at"] else None

    def _assignments(self) -> list[str]:
        """Who was assigned, as ServiceNow saw it."""
        return [
            str(request.json().get("assignment_group"))
            for request in self.service.requests
            if request.method == "PATCH"
        ]

    # ------------------------------------------------------------------------------------------------ the story

    async def play(self) -> None:
        stage, ada = self.stage, self.people["ada"]
        sys_id = self.service.incident("INC0042", assignment_group="Service desk")
        incident: dict[str, Any] = {
            "table": "incident",
            "instance": "dev1",
            "sys_id": sys_id,
            "number": "INC0042",
            "sys_mod_count": 3,
            "fields": {"assignment_group": "Network operations"},
        }
        refused = await self._call(incident, "wrong")
        stage.check(FORGED, refused.status_code == 401)
        calls = [await self._call(incident, self.secrets["calls"]) for _ in range(2)]
        run = str(calls[0].json()["run_id"])
        runs = (await expect_json(ada.get("/runs")))["items"]
        stage.check(
            STARTED,
            [one.status_code for one in calls] in ([201, 200], [202, 200])
            and [one["id"] for one in runs] == [run],
            run,
        )
        buttons = await self.stage.until("the card in Slack", self._buttons)
        asked = (await expect_json(ada.get("/approvals", params={"run": run})))["items"][0]
        cards = json.dumps(self.slack.in_channel(CHANNEL))
        stage.check(
            ASKED, asked["people"] == 2 and "Network operations" in cards and "costs an hour" in cards
        )
        first = str((await expect_json(self._click("ada", buttons[0])))["text"])
        stage.check(FIRST, self._assignments() == [], first)
        forged = await self._click("bob", buttons[0], "another secret")
        stage.check(FORGED_CLICK, forged.status_code == 401 and self._assignments() == [])
        await expect_json(self._click("bob", buttons[0]))
        view = await self.stage.until("the end of the run", lambda: self._ended(run))
        stage.check(WRITTEN, view["shown"] == "succeeded" and self._assignments() == ["Network operations"])
        await self._check_keys(run, incident)
        await self._check_evidence(run)
        await self._check_undo(run, sys_id)

    async def _check_keys(self, run: str, incident: dict[str, Any]) -> None:
        stage, ada = self.stage, self.people["ada"]
        receipts = (await expect_json(ada.get(f"/runs/{run}/receipts")))["items"]
        keys = {one["action"]: one["key"] for one in receipts}
        written = keys["servicenow.incident.assign"].split(":")
        told = keys["slack.message.post"].split(":")
        stage.check(
            KEYS,
            (written[:5], told[:4], len(written[5]), len(told[4]))
            == (
                ["sn", "incident", "update", "dev1", incident["sys_id"]],
                ["slack", "post", CHANNEL, "main"],
                64,
                64,
            ),
            ":".join(written),
        )
        body = {"workflow": "triage", "input": {name: incident[name] for name in RULE["input"]}}
        again = (await expect_json(self.people["olga"].post("/runs", json=body)))["id"]
        button = await self.stage.until("the card of the second run", lambda: self._button_of(again))
        for person in ("ada", "bob"):
            await expect_json(self._click(person, button))
        view = await self.stage.until("the end of the second run", lambda: self._ended(again))
        posted = [one for one in self.slack.in_channel(CHANNEL) if one.get("text") == "INC0042 was assigned"]
        stage.check(
            AGAIN,
            view["shown"] == "succeeded"
            and self._assignments() == ["Network operations"]
            and len(posted) == 1,
        )

    async def _check_evidence(self, run: str) -> None:
        signer = Signer.open(f"file:{self.key}")
        acme = self.engine.scoped(tenant=TENANT, actor="person:ada")

        async def sealed() -> list[EvidenceFiles] | None:
            parts = await acme.evidence.export(run) if await acme.evidence.list(run) else []
            return [
                EvidenceFiles(
                    name=part.name,
                    zip=part.zip,
                    envelope=part.envelope,
                    proof=part.proof.encode() if part.proof else None,
                )
                for part in parts
            ]

        parts = await self.stage.until("the evidence", sealed)
        [report, *_] = verify_parts(parts, TrustedKeys.from_public_keys(signer.public))
        self.stage.check(PROVEN, report.wrong is None and report.key == signer.id, f"{report.events} events")

    async def _check_undo(self, run: str, sys_id: str) -> None:
        ada = self.people["ada"]
        await expect_json(ada.post(f"/runs/{run}/undo", json={}))

        def undone() -> bool:
            return self.service.incidents[sys_id]["assignment_group"] == "Service desk"

        await self.stage.until("the undo", undone)
        self.stage.check(UNDONE, undone(), self.service.incidents[sys_id]["assignment_group"])
