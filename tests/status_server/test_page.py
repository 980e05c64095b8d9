"""The page in a real browser: what it asks, when it stops, and what it shows."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from playwright.async_api import Page, Request, async_playwright

import tenure
from tenure.status_server.http_server import StatusSettings, serving_documents
from tests.publish.stage import AGENT, archivist, await_status, read_json, until, work
from tests.server.stage import Site, site
from tools.chromium import ARGUMENTS, Chromium

pytestmark = pytest.mark.guard_seconds(180)

PLAN = [{"name": "load-context"}, {"name": "finalize"}]
MESSAGES = Path(tenure.__file__).parent / "status_server" / "page" / "messages"


class Tab:
    """A page of the browser, and the requests that it has sent."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self._sent: list[str] = []
        self.errors: list[str] = []
        page.on("request", self._note)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _note(self, request: Request) -> None:
        self._sent.append(request.url.partition("://")[2].partition("/")[2])

    def count(self, path: str) -> int:
        return sum(path in one for one in self._sent)

    async def settle(self) -> None:
        """Wait until the page has shown every answer. What it does next, it has done before the last evaluation."""

        async def is_quiet() -> bool:
            return await self.page.evaluate("document.getElementById('mode').dataset.waiting === '0'") is True

        await until(is_quiet)
        await self.page.evaluate("0")

    async def advance(self, seconds: float) -> None:
        """Let time pass in the page."""
        await self.page.clock.run_for(int(seconds * 1000))
        await self.settle()

    async def hide(self, *, hidden: bool) -> None:
        await self.page.evaluate(
            """(hidden) => {
                Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
                document.dispatchEvent(new Event("visibilitychange"));
            }""",
            hidden,
        )
        await self.settle()

    async def shows(self, selector: str, text: str) -> bool:
        return text in await self.page.inner_text(selector)

    async def wait(self, selector: str) -> None:
        await self.page.wait_for_selector(selector, state="attached", timeout=100_000)


@asynccontextmanager
async def opened_tab(chromium: Chromium, locale: str = "en-GB") -> AsyncIterator[Tab]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=chromium.program, args=list(ARGUMENTS), env=chromium.environment
        )
        try:
            context = await browser.new_context(locale=locale)
            tab = Tab(await context.new_page())
            yield tab
            assert tab.errors == []
        finally:
            await browser.close()


@asynccontextmanager
async def stage(tmp_path: Path) -> AsyncIterator[tuple[Site, str, str, str]]:
    """A server that publishes, the place, a status server's address, and a key that was published."""
    place = str(tmp_path / "documents")
    async with site(f"sqlite:{tmp_path / 'site.db'}", publish=place) as s:
        key = await s.key("viewer")
        await until(lambda: read_json(place, f"keys/{key.split('_')[1]}.json"))
        await until(lambda: read_json(place, "acme/proposals.json"))
        async with serving_documents(StatusSettings(documents=place, listen="127.0.0.1:0")) as address:
            yield s, place, address, key


@pytest.mark.clause("AGR-06")
async def test_the_page_polls_until_the_end_and_not_while_it_is_hidden(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with stage(tmp_path) as (s, place, address, key), opened_tab(chromium) as tab:
        run = await s.engine.scoped(tenant="acme").create("archivist-violin", PLAN, profile=AGENT)
        await await_status(place, run, "queued")
        await tab.page.clock.install(time=datetime(2026, 2, 14, 8, tzinfo=UTC))
        await tab.page.route("**/events/stream", lambda route: route.abort())  # no stream: the page must poll
        await tab.page.goto(f"{address}/page#key={key}&run={run}")
        await tab.wait("#status[data-status=queued]")
        await tab.wait("#mode[data-mode=polling]")
        await tab.page.clock.pause_at(datetime(2026, 2, 14, 9, tzinfo=UTC))
        await tab.hide(hidden=True)
        await tab.hide(hidden=False)  # from here on, time passes only when the test says so
        await tab.wait("#mode[data-mode=polling]")
        await tab.settle()
        status, inbox, proposals = (
            tab.count(path) for path in ("/status", "inbox/stats", "proposals/pending")
        )
        await tab.advance(4.9)
        assert tab.count("/status") == status
        await tab.advance(0.2)
        assert tab.count("/status") == status + 1, "every 5 seconds"
        for _ in range(4):
            await tab.advance(5)
        assert (tab.count("/status"), tab.count("inbox/stats")) == (status + 5, inbox)
        await tab.advance(5)
        assert (tab.count("inbox/stats"), tab.count("proposals/pending")) == (inbox + 1, proposals + 1), (
            "every 30 seconds"
        )
        # A hidden tab asks nothing; a tab that is shown again asks at once.
        await tab.hide(hidden=True)
        asked = len(tab._sent)
        await tab.wait("#mode[data-mode=paused]")
        for _ in range(3):
            await tab.advance(30)
        assert tab._sent[asked:] == []
        before = tab.count("/status")
        await tab.hide(hidden=False)
        await tab.wait("#mode[data-mode=polling]")
        await tab.settle()
        assert tab.count("/status") == before + 1
        # The end of the run ends the polling of its status, and of nothing else.
        for _ in PLAN:
            await work(s.engine)
        await await_status(place, run, "completed")
        await tab.advance(5)
        await tab.wait("#status[data-status=completed]")
        last, lists = tab.count("/status"), tab.count("inbox/stats")
        for _ in range(7):
            await tab.advance(10)
        assert tab.count("/status") == last, "a terminal state ends the polling"
        assert tab.count("inbox/stats") > lists


@pytest.mark.clause("AGR-07")
async def test_the_page_follows_the_stream_and_falls_back_to_polling(
    tmp_path: Path, chromium: Chromium
) -> None:
    async with stage(tmp_path) as (s, place, _address, key), opened_tab(chromium) as tab:
        async with serving_documents(StatusSettings(documents=place, listen="127.0.0.1:0")) as second:
            run = await s.engine.scoped(tenant="acme").create("archivist-violin", PLAN, profile=AGENT)
            await await_status(place, run, "queued")
            await tab.page.goto(f"{second}/page#key={key}&run={run}")
            await tab.wait("#mode[data-mode=streaming]")
            await tab.wait("#status[data-status=queued]")
            assert tab.page.url == f"{second}/page", "the key does not stay in the address"
            await tab.settle()
            asked = tab.count("/status")
            await work(s.engine)  # an event, long before the next poll
            await tab.wait("#status[data-status=running]")
            assert tab.count("/status") > asked
            async with s.engine.worker(archivist):
                other = await s.engine.scoped(tenant="acme").submit(archivist, {"topic": "<img src=x>"})
                await other.result(wait=30)
            await tab.wait("#proposals li")
            assert await tab.page.inner_text("#proposals li") != ""
        # The server of the stream is gone: the page polls.
        await tab.wait("#mode[data-mode=polling]")
        await until(lambda: tab.shows("#problem", "cannot be reached"))


@pytest.mark.clause("AGR-07")
async def test_the_stream_has_the_documents_frames_in_a_browser(tmp_path: Path, chromium: Chromium) -> None:
    async with stage(tmp_path) as (s, _place, address, key), opened_tab(chromium) as tab:
        await tab.page.goto(f"{address}/page")
        await tab.page.evaluate(
            """async ([key]) => {
                window.heard = [];
                const answer = await fetch("/events/stream", { headers: { Authorization: `Bearer ${key}` } });
                const source = answer.body.pipeThrough(new TextDecoderStream()).getReader();
                (async () => {
                    for (let all = "";;) {
                        const { done, value } = await source.read();
                        if (done) return;
                        all += value;
                        window.heard = [...all.matchAll(/^data: (.*)$/gm)].map((found) => JSON.parse(found[1]));
                    }
                })();
            }""",
            [key],
        )
        async with s.engine.worker(archivist):
            run = await s.engine.scoped(tenant="acme").submit(archivist, {"topic": "violins"})
            await run.result(wait=30)
        await until(lambda: tab.page.evaluate("window.heard.at(-1)?.status === 'completed'"))
        heard: list[dict[str, Any]] = await tab.page.evaluate("window.heard")
        kinds = [event["type"] for event in heard]
        assert kinds.count("run.step.completed") == 2
        assert kinds.count("proposal.created") == 1
        assert [event["status"] for event in heard if event["type"] == "run.status.changed"] == [
            "requested", "queued", "running", "completed",
        ]  # fmt: skip


async def test_the_page_speaks_ukrainian_and_english(tmp_path: Path, chromium: Chromium) -> None:
    async with stage(tmp_path) as (s, place, address, key), opened_tab(chromium, locale="uk-UA") as tab:
        run = await s.engine.scoped(tenant="acme").create("archivist-violin", PLAN, profile=AGENT)
        for _ in PLAN:
            await work(s.engine)
        await await_status(place, run, "completed")
        await tab.page.goto(f"{address}/page#key={key}&run={run}")
        await tab.wait("#status[data-status=completed]")
        shown = await tab.page.inner_text("#status")
        assert "завершено" in shown
        assert "2 з 2" in shown
        await tab.page.select_option("#language", "en")
        await tab.wait("html[lang=en]")
        assert "completed" in await tab.page.inner_text("#status")
        await tab.page.fill("#key", "tn_wrong_key")
        await tab.page.click("button")
        await until(lambda: tab.shows("#problem", "not valid"))


def test_the_catalogues_have_the_same_messages() -> None:
    english, ukrainian = (
        msgspec.json.decode((MESSAGES / f"{name}.json").read_bytes(), type=dict[str, str])
        for name in ("en", "uk")
    )
    assert english.keys() == ukrainian.keys()
    for name, text in english.items():
        assert text
        assert sorted(part.split("}")[0] for part in text.split("{")[1:]) == sorted(
            part.split("}")[0] for part in ukrainian[name].split("{")[1:]
        )
