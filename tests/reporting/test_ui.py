"""The UI in a real browser: the run's charts, its figures and the model are there for people to see."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import ROOT, Server

selenium = pytest.importorskip("selenium", reason="the browser is driven by selenium: pip install -e '.[dev]'")
SHOTS = ROOT / "runs" / "screenshots"  # of the last run of the tests, for people

pytestmark = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="a browser is needed: Debian's chromium and chromium-driver",
)
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
_FLAGS += ("--disable-background-networking", "--disable-component-update", "--window-size=1500,1100")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium import webdriver

    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or ""
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_page_load_timeout(60)
        try:
            yield driver
        finally:
            driver.quit()


def until(browser: Any, what: Callable[[Any], Any], seconds: float = 60.0) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, seconds).until(what)


def shows(*texts: str) -> Callable[[Any], bool]:
    return lambda browser: all(text in browser.find_element("tag name", "body").text for text in texts)


def shot(browser: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(SHOTS / f"{name}.png"))


@pytest.fixture
def page(server: Server, logged: Any) -> str:
    run = logged.run
    return f"{server.uri}/#/experiments/{run.info.experiment_id}/runs/{run.info.run_id}"


def test_the_overview_has_params_tags_and_the_data_set(browser: Any, page: str) -> None:
    browser.get(page)
    until(browser, shows("a run", "max_iterations", "final_bound", "train.csv"))
    shot(browser, "overview")


def test_the_charts_are_there(browser: Any, page: str) -> None:
    browser.get(f"{page}/model-metrics")
    until(browser, shows("a run (bound)", "Step"))
    until(browser, lambda browser: browser.find_elements("css selector", "svg.main-svg"))
    shot(browser, "charts")


def test_the_figures_are_there(browser: Any, page: str) -> None:
    browser.get(f"{page}/artifacts/figures/predicted.png")
    image = until(
        browser, lambda browser: browser.find_elements("css selector", "img[src^='blob:'], img[src*='predicted']")
    )
    width = until(browser, lambda browser: browser.execute_script("return arguments[0].naturalWidth", image[0]))
    assert width > 300
    shot(browser, "figure")


def test_the_model_has_a_page(browser: Any, server: Server, logged: Any) -> None:
    browser.get(f"{server.uri}/#/models/served")
    until(browser, shows("served", "champion"))
    shot(browser, "model")


def test_the_picture_in_the_readme_is_committed() -> None:
    text = (ROOT / "README.md").read_text()
    assert "docs/ui.png" in text
    assert (ROOT / "docs" / "ui.png").stat().st_size < 500_000
