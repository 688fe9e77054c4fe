"""The page of the crash playground in a real browser: played by clicks and keys, wide and narrow, light and dark."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

CURE = "needs a browser: apt-get install chromium, and pip install playwright"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=CURE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason=CURE)
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "outbox", "play", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture(params=[("wide", "light"), ("narrow", "dark")], ids=" ".join)
def page(request: pytest.FixtureRequest, browser: Any, address: str) -> Iterator[Any]:
    size, scheme = request.param
    width, height = SIZES[size]
    opened = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(address)
    opened.wait_for_selector(".worker")
    opened.click("#reset")
    opened.wait_for_selector("#verdict:not(.equal):not(.going)")
    yield opened
    assert opened.evaluate("document.documentElement.scrollWidth") <= width, "the page scrolls sideways"
    assert complaints == []
    opened.close()


def verdict(page: Any) -> list[str]:
    """The figures of the verdict box: what nails and parcels should be, and are."""
    return [text.strip() for text in page.locator("#verdict tbody td").all_inner_texts()]


def test_a_scenario_is_played_by_clicks(page: Any) -> None:
    page.get_by_role("button", name="Lost at the commit").click()
    page.locator("#guide .say", has_text="Was it written?").wait_for()
    page.get_by_role("button", name="Send o1, go on to the commit").click()
    page.locator("ol.steps li.now", has_text="commit").wait_for()
    page.get_by_role("button", name="Lose the reply").first.click()
    page.locator("#guide .say", has_text="does not guess").wait_for()
    assert page.locator("#store-body .stock b").inner_text() == "97"
    assert "to find out" in page.locator(".worker .about").inner_text()
    page.locator("[data-key=next]").click()
    page.get_by_role("button", name="Push and settle").click()
    page.locator("#verdict.equal").wait_for()
    assert verdict(page) == ["nails", "97", "97", "parcels", "1", "1"]
    for step in range(5, 10):
        page.locator("[data-key=next]").click()
        page.wait_for_selector(f".dots i.on:nth-child({step})")
    assert verdict(page) == ["nails", "94", "94", "parcels", "2", "2"]
    assert "The end" in page.locator("#guide-body").inner_text()


def boxes(page: Any) -> list[str]:
    found: list[str] = page.locator("ol.steps li").evaluate_all("all => all.map((one) => one.firstChild.textContent)")
    return found


def test_a_double_click_makes_one_step_of_a_scenario(page: Any) -> None:
    page.get_by_role("button", name="Crash after commit").click()
    page.locator("[data-key=next]").dblclick()
    page.wait_for_selector(".dots i.on")
    page.locator("[data-key=next]").click(force=True)  # a second click that comes late, on the next label
    page.locator("[data-key=next][aria-disabled]").wait_for(state="detached")
    assert page.locator(".dots i.on").count() == 1
    page.locator("[data-key=next]").click()
    page.wait_for_selector(".worker.dead")
    assert page.locator("ol.steps li.died").all_inner_texts()[0].startswith("commit ✕")


def test_a_click_by_hand_leaves_the_scenario_and_says_so(page: Any) -> None:
    page.get_by_role("button", name="Two workers").click()
    page.locator("[data-key=next]").click()
    page.locator("#orders li.held").wait_for()
    page.get_by_role("button", name="Let a minute pass", exact=True).click()
    page.locator("#guide", has_text="You play by hand now.").wait_for()
    assert "Its lock on o1 ran out; it does not know." in page.locator(".worker").inner_text()
    page.get_by_role("button", name="Play by itself").click()
    page.locator("#guide", has_text="It plays by itself now.").wait_for()
    page.get_by_role("button", name="Begin “Two workers” again").click()
    page.locator("#guide .title", has_text="Two workers").wait_for()


def test_the_steps_stand_in_the_order_in_which_they_happen(page: Any) -> None:
    for key, seen in [("s", "#orders li"), ("g", "li.now:text-is('load')"), ("g", "li.now:text-is('commit')")]:
        page.keyboard.press(key)
        page.wait_for_selector(seen)
    assert boxes(page) == ["receive", "on record?", "load", "run", "commit", "push", "settle"]
    page.keyboard.press("c")
    page.wait_for_selector("li.now:text-is('on record?')")
    assert boxes(page) == ["receive", "load", "run", "commit ?", "on record?", "push", "settle"]


def test_a_living_worker_that_lost_the_reply_to_its_receive_is_not_called_dead(page: Any) -> None:
    for key, seen in [("s", "#orders li"), ("l", "#orders li.stray")]:
        page.keyboard.press(key)
        page.wait_for_selector(seen)
    for place in ("#orders", "#hint", ".worker"):
        assert "not know" in page.locator(place).inner_text()
    assert page.locator("#workers .dead").count() == 0


def test_by_keys_alone_a_worker_is_killed_and_another_finishes(page: Any) -> None:
    for key, seen in [
        ("s", "#orders li"),
        ("g", "ol.steps li.now:text-is('load')"),
        ("g", "ol.steps li.now:text-is('commit')"),
        ("a", ".worker.dead"),
        ("w", ".worker:not(.dead)"),
        ("t", "#orders li:not(.dead)"),
        ("f", "#verdict.equal"),
    ]:
        page.keyboard.press(key)
        page.wait_for_selector(seen)
    assert verdict(page) == ["nails", "97", "97", "parcels", "1", "1"]
    assert "was killed after the commit" in page.locator("#history-body").inner_text()


def test_a_push_whose_reply_is_lost_leaves_a_copy_that_the_page_names(page: Any) -> None:
    page.get_by_role("button", name="Lost at the push").click()
    for step in range(1, 5):
        page.locator("[data-key=next]").click()
        page.wait_for_selector(f".dots i.on:nth-child({step})")
    assert page.locator("#parcels li.copy").count() == 1
    assert "1 copy of a parcel" in page.locator("#verdict").inner_text()


def test_it_plays_by_itself_and_stops(page: Any) -> None:
    page.get_by_role("button", name="Play by itself").click()
    page.wait_for_selector("#history-body li:nth-child(12)")
    page.get_by_role("button", name="Stop").click()
    page.locator("[data-key=auto]").wait_for()
    assert page.locator("[data-key=send]").is_enabled()


def test_a_page_without_the_token_says_what_to_open(browser: Any, address: str) -> None:
    opened = browser.new_page()
    opened.goto(address.partition("#")[0])
    opened.locator("#alert", has_text="open the address").wait_for()
    opened.close()
