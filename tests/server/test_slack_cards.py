"""The card of an approval in Slack: its content, how it is posted, and how it is updated (GOV-20)."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from tenure.clock import us
from tenure.errors import TenureError
from tenure.govern.proposals import encode_proposal
from tenure.kernel.act_commands import ProposeAct, ProposedAct, Ruling
from tenure.kernel.commands import Suspend
from tenure.kernel.feed import decode_feed_lines
from tenure.kernel.notifications import APPROVAL_REMINDER, build_notifications
from tenure.publish import slack_cards
from tenure.publish.slack_blocks import TEXT_CHARS_MAX
from tenure.publish.slack_cards import SlackCardPublisher
from tenure.testing.doubles.slack import SlackDouble
from tests.engine.stage import head
from tests.server.manual_worker import claim
from tests.server.stage import Site, problem, site
from tests.server.test_slack_hooks import link
from tests.server.webhook_senders import SECRET, SECRET_NAME, Slack, contents, make_hook

TOKEN = "xoxb-the-token-of-the-bot"
TOKEN_NAME = "TENURE_SECRET_acme_SLACK"
CHANNEL = "C0123456789"
CARDS = {"channel": CHANNEL, "token": f"env:{TOKEN_NAME}"}
DIGEST = "ab" * 32
pytestmark = pytest.mark.clause("GOV-20")


@pytest.fixture
def slack(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlackDouble]:
    monkeypatch.setenv(SECRET_NAME, SECRET)
    monkeypatch.setenv(TOKEN_NAME, TOKEN)
    with SlackDouble(token=TOKEN) as double:
        yield double


def stage(url: str, slack: SlackDouble) -> Any:
    return site(url, webhooks_to_loopback=True, slack_url=slack.url, public_url="https://tenure.test")


def proposal_content(
    *lines: str, why: str = "", rationale: tuple[str, ...] = ("policy 3: writes-to-prod",)
) -> Any:
    asked = encode_proposal(
        action="github.label.add",
        target={"repo": "acme/app"},
        fields={"label": "x"},
        rendered=list(lines) or ["add the label triage to acme/app#7"],
        rationale=list(rationale),
        why=why,
    )
    return msgspec.json.decode(asked)


async def ask(
    s: Site, question: Any = None, *, group: str = "", people: int = 1, tier: str = "", **more: Any
) -> str:
    """Start a run that waits for the approval of an act."""
    engine = s.engine.scoped(tenant="acme", actor="person:olga")
    run = await engine.create("triage", [{"name": "label"}])
    lease = await claim(s, run)
    assert lease is not None
    act = ProposedAct(
        label="x",
        connector="github",
        operation="label.add",
        name="k",
        digest=bytes.fromhex(DIGEST),
        repeats="none",
        reversible=False,
    )
    ruling = Ruling(
        version=1, outcome="needs_approval", people=people, people_in=group, tier=tier or "low", **more
    )
    shown_text = head(lease, 5)
    place = {name: shown_text[name] for name in ("run_id", "idx", "n")}
    message = ProposeAct(
        **place, act=act, ruling=ruling, question=msgspec.json.encode(question or proposal_content())
    )
    reply = await s.engine.orchestrator.send(message)
    await s.engine.orchestrator.send(Suspend(**shown_text, waits=(reply.no,)))
    return run


async def wait_for(s: Site, fits: Callable[[], Any]) -> Any:
    """Process cards until the condition holds."""
    for _ in range(300):
        if found := fits():
            return found
        await s.service.cards.look()
        await asyncio.sleep(0.02)
    raise AssertionError("the condition does not become true")


async def posted(s: Site, slack: SlackDouble) -> dict[str, Any]:
    found: list[dict[str, Any]] = await wait_for(s, lambda: slack.in_channel(CHANNEL))
    return found[0]


def texts(message: dict[str, Any]) -> str:
    return msgspec.json.encode(message["blocks"]).decode()


def buttons(message: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = [one for block in message["blocks"] if block["type"] == "actions" for one in block["elements"]]
    return {one["action_id"]: one for one in found}


async def test_a_card_shows_the_approval_and_a_click_decides_it(url: str, slack: SlackDouble) -> None:
    async with stage(url, slack) as s:
        hook = await make_hook(s, "slack", settings=CARDS)
        run = await ask(
            s, proposal_content(why="I am sure"), tier="high", within_seconds=3600.0, group="release"
        )
        card = await posted(s, slack)
        [approval] = await s.engine.scoped(tenant="acme").approvals.list(run)
        shown_text = texts(card)
        for part in ("add the label triage to acme/app#7", "policy 3: writes-to-prod", "high", "0 of 1",
                     "release", DIGEST[:12], "revision 1", run, "Expires"):  # fmt: skip
            assert part in shown_text, part
        assert (
            shown_text.index("Proposed writes")
            < shown_text.index("agent's own words")
            < shown_text.index("I am sure")
        )
        value = f"{approval.id}:1:{DIGEST}"
        assert {name: one.get("value") for name, one in buttons(card).items()} == {
            "tenure.approve": value, "tenure.reject": value, "tenure.open": None,
        }  # fmt: skip
        clicks = Slack(s, hook["id"])
        await link(clicks, await s.person("ada", groups=["release"]))
        assert (await clicks.click("tenure.approve", value)).endswith("is approved.")
        await wait_for(s, lambda: "Approved by person:ada" in texts(card))
        assert not buttons(card)
        assert len(slack.messages) == 1


async def test_a_card_whose_attempts_end_without_an_outcome_is_set_aside(
    url: str, slack: SlackDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slack_cards, "SILENT_TRIES_MAX", 0)
    shown_text: list[str] = []

    class Log:
        def __getattr__(self, level: str) -> Any:
            return lambda event, **_: shown_text.append(event)

    monkeypatch.setattr(slack_cards, "log", Log())
    async with stage(url, slack) as s:
        await make_hook(s, "slack", settings=CARDS)
        await ask(s)
        while "card_set_aside" not in shown_text:
            await s.service.cards.look()
        assert slack.messages == []
        assert await s.service.cards.look() == 0, "the card is not retried"


async def test_a_card_is_updated_on_votes_expiry_revision_and_cancellation(
    url: str, slack: SlackDouble
) -> None:
    async with stage(url, slack) as s:
        await make_hook(s, "slack", settings=CARDS)
        engine = s.engine.scoped(tenant="acme", actor="person:olga")
        run = await ask(s, people=2)
        card = await posted(s, slack)
        ada = await s.person("ada")
        answer = await ada.post(f"/runs/{run}/approve", json={"decision": "approve", "digest": DIGEST})
        assert answer.json()["status"] == "requested"
        await wait_for(s, lambda: "1 of 2" in texts(card))
        await engine.cancel(run)
        await wait_for(s, lambda: "Canceled" in texts(card) and not buttons(card))


async def test_two_processes_and_a_lost_response_post_one_card(url: str, slack: SlackDouble) -> None:
    async with stage(url, slack) as s:
        slack.trouble(drop="after")  # Slack posts the message; the answer is lost
        await make_hook(s, "slack", settings=CARDS)
        await ask(s)
        cards = s.service.cards
        other = SlackCardPublisher(
            s.engine.store, s.service.secrets, reach=cards._way.reach, slack_url=slack.url
        )
        await asyncio.gather(*(one.look() for one in (cards, other) * 3))
        assert len(slack.in_channel(CHANNEL)) == 1
        s.engine.store.shift_clock(us(7200))
        await asyncio.gather(cards.look(), other.look())
        await wait_for(s, lambda: any("conversations.history" in one.path for one in slack.requests))
        s.engine.store.shift_clock(us(14400))
        await asyncio.gather(cards.look(), other.look())
        assert len(slack.in_channel(CHANNEL)) == 1


async def test_one_reminder_is_posted_in_the_thread_of_the_card(url: str, slack: SlackDouble) -> None:
    async with stage(url, slack) as s:
        await make_hook(s, "slack", settings=CARDS)
        run = await ask(s, within_seconds=100_000.0)
        card = await posted(s, slack)
        s.engine.store.shift_clock(us(50_001))
        await s.engine.sweeper.sweep()
        [approval] = await s.engine.scoped(tenant="acme").approvals.list(run)
        assert approval.reminded_at is not None
        await wait_for(s, lambda: len(slack.messages) == 2)
        assert slack.messages[1]["thread_ts"] == card["ts"]
        assert "Still waiting" in slack.messages[1]["text"]
        s.engine.store.shift_clock(us(60_000))
        await s.engine.sweeper.sweep()
        await s.service.cards.look()
        assert len(slack.messages) == 2
        s.engine.store.shift_clock(us(100_001))
        await s.engine.sweeper.sweep()
        await wait_for(s, lambda: "Expired" in texts(card))
        rows = await s.engine.store.read("feed_rows_after", 0, 1_000)
        items = [
            news
            for row in rows
            if row.body
            for news in build_notifications(decode_feed_lines(row.body))
            if news.type == APPROVAL_REMINDER
        ]
        assert [news.question for news in items] == [approval.id]
        assert (await s.engine.scoped(tenant="acme").get(run)).status == "failed"


async def test_content_that_does_not_fit_has_a_link_instead_of_an_approve_button(
    url: str, slack: SlackDouble
) -> None:
    async with stage(url, slack) as s:
        await make_hook(s, "slack", settings=CARDS)
        run = await ask(s, proposal_content(*(f"line {n} " + "x" * 900 for n in range(40))))
        card = await posted(s, slack)
        [approval] = await s.engine.scoped(tenant="acme").approvals.list(run)
        assert set(buttons(card)) == {"tenure.reject", "tenure.open"}
        assert buttons(card)["tenure.open"]["url"] == f"https://tenure.test/approvals/{approval.id}"
        assert all(len(one["text"]["text"]) <= TEXT_CHARS_MAX for one in card["blocks"] if "text" in one)


async def test_the_content_of_a_proposal_cannot_imitate_the_card(url: str, slack: SlackDouble) -> None:
    evil = "add \u202etxt.exe\u202c <!channel> <https://evil.test|ok> & *bold* \x1b[2J zero\u200bwidth"
    async with stage(url, slack) as s:
        await make_hook(s, "slack", settings=CARDS)
        await ask(s, proposal_content(evil, why="<!here> approve me\u202e"))
        card = await posted(s, slack)
        shown_text = texts(card)
        assert "<U+202E>".replace("<", "&lt;").replace(">", "&gt;") in shown_text
        assert "&lt;!channel&gt;" in shown_text
        assert "<!channel>" not in shown_text
        assert "<!here>" not in shown_text
        assert not {"\u202e", "\u200b", "\x1b"} & set(shown_text)
        plain = [one["text"]["type"] for one in card["blocks"] if "channel" in str(one.get("text"))]
        assert set(plain) == {"plain_text"}


async def test_a_workflows_own_question_does_not_look_like_a_proposed_write(
    url: str, slack: SlackDouble
) -> None:
    async with stage(url, slack) as s:
        await make_hook(s, "slack", settings=CARDS)
        engine = s.engine.scoped(tenant="acme", actor="person:olga")
        spec = {"action": "github.label.add", "digest": DIGEST}
        gate = {
            "name": "gate",
            "kind": "approval",
            "approval": spec,
            "input": proposal_content("add a harmless label"),
        }
        await engine.create("triage", [gate])
        shown_text = texts(await posted(s, slack))
        assert "Proposed writes" not in shown_text
        assert shown_text.index("Shown by the workflow (its own words)") < shown_text.rindex(
            "add a harmless label"
        )
        with pytest.raises(TenureError) as refused:
            await engine.create("triage", [{**gate, "name": "act:x"}])
        assert refused.value.code == "PLAN_INVALID"


async def test_a_refused_post_is_retried_and_the_token_is_never_logged(
    url: str, slack: SlackDouble, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(url, slack) as s:
        slack.trouble(status=429, headers={"Retry-After": "30"})
        await make_hook(s, "slack", settings=CARDS)
        run = await ask(s)
        await wait_for(s, lambda: slack.writes)
        s.engine.store.shift_clock(us(31))
        await posted(s, slack)
        assert TOKEN not in repr(await contents(url)) + caplog.text
        assert run in texts(slack.messages[0])


async def test_the_channel_of_cards_is_checked_when_a_hook_is_created(url: str, slack: SlackDouble) -> None:
    async with stage(url, slack) as s:
        admin = await s.as_("admin")
        hook = {"kind": "slack", "name": "h", "secrets": [f"env:{SECRET_NAME}"]}
        for settings in (
            {"channel": CHANNEL},
            {"token": f"env:{TOKEN_NAME}"},
            {"channel": "#ops", "token": f"env:{TOKEN_NAME}"},
            {"channel": CHANNEL, "token": TOKEN},
            {"channel": CHANNEL, "token": "env:TENURE_SECRET_globex_SLACK"},
        ):
            answer = await admin.post("/hooks", json={**hook, "settings": settings})
            assert (answer.status_code, problem(answer)) == (422, "INVALID_INPUT"), settings
            assert TOKEN not in answer.text
