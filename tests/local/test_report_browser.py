"""Reports in a real browser: no errors, no requests, readable on small screens, small files; what the script does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import browser
import pytest
from browser import Page

from gridtf.report import page
from tests.support import recordedruns
from tests.support.packages import need_program
from tests.support.recordedruns import BEGIN


@pytest.fixture(scope="module")
def opened() -> Iterator[Page]:
    with browser.page(need_program("chromium")) as made:
        yield made


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a job with two attempts."""
    folder = tmp_path_factory.mktemp("report")
    run = recordedruns.make(folder / "digits", workers=4, ps=1, gpus=2, minutes=20, interval=10, state="FAILED")
    recordedruns.make(folder / "digits", workers=4, ps=1, gpus=2, minutes=20, interval=10, begin=BEGIN + 4000)
    path = folder / "report.html"
    path.write_text(page.of_job(run, BEGIN + 7200), encoding="utf-8")
    return path


def problems(opened: Page) -> list[object]:
    """Errors that the page has told of, and requests other than for itself."""
    told = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
    errors: list[object] = [parameters for method, parameters in opened.events if method in told]
    urls = [
        parameters["request"]["url"] for method, parameters in opened.events if method == "Network.requestWillBeSent"
    ]
    return errors + urls[1:]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_page_has_no_errors_and_fits(opened: Page, report: Path, width: int, dark: bool) -> None:
    opened.show(report, width, dark=dark)
    assert problems(opened) == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.evaluate("document.querySelector('h1').textContent") == "digits (4711)"
    assert opened.evaluate("document.querySelectorAll('.chart').length") == 10
    background = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 26)" if dark else "rgb(251, 251, 249)")
    assert opened.picture(400).startswith(b"\x89PNG")


def test_values_are_shown_under_the_pointer_and_by_keys(opened: Page, report: Path) -> None:
    opened.show(report, 1200)
    opened.evaluate("document.querySelector('.chart').scrollIntoView({block: 'center'})")
    box = "(() => { const b = document.querySelector('.chart svg').getBoundingClientRect(); return %s })()"
    x, y = opened.evaluate(box % "b.x + b.width / 4"), opened.evaluate(box % "b.y + b.height / 2")
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    output = "document.querySelector('.chart output').textContent"
    assert "worker:0 " in opened.evaluate(output)
    assert opened.evaluate(box % "b.y + b.height / 2") == y  # the chart does not move below the pointer
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert opened.evaluate(output) == ""
    opened.evaluate("document.querySelector('.chart').focus()")
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    first = opened.evaluate(output)
    opened.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert first != opened.evaluate(output) != ""
    assert problems(opened) == []


def test_logarithmic_axis_is_chosen_by_key_also_without_the_script(opened: Page, report: Path, tmp_path: Path) -> None:
    shown = "[...document.querySelectorAll('.chart g')].slice(0, 2).map((one) => getComputedStyle(one).display)"
    text = report.read_text(encoding="utf-8")
    (tmp_path / "no-script.html").write_text(re.sub(r"<script>.*</script>", "", text, flags=re.DOTALL))
    for path in (report, tmp_path / "no-script.html"):
        opened.show(path, 1200)
        assert opened.evaluate(shown) == ["inline", "none"]
        opened.evaluate("document.querySelector('.switch').focus()")
        for kind in ("keyDown", "keyUp"):
            opened.call(
                "Input.dispatchKeyEvent", type=kind, key=" ", text=" " if kind == "keyDown" else "", code="Space"
            )
        assert opened.evaluate(shown) == ["none", "inline"]
        assert problems(opened) == []


def test_lone_chart_is_no_larger_than_one_of_several(opened: Page, tmp_path: Path) -> None:
    first, second = (recordedruns.make(tmp_path / name, minutes=5, reports=True) for name in ("a", "b"))
    text = page.of_two(first, second, BEGIN + 3600)
    begin, end = text.index("By step</h2>"), text.index("By time</h2>")
    one = text[begin:end].index("</figure>") + begin + len("</figure>")
    (tmp_path / "lone.html").write_text(f"{text[:one]}</div></section>{text[text.rindex('<section>', 0, end) :]}")
    opened.show(tmp_path / "lone.html", 1200)
    widths = "[...document.querySelectorAll('.chart')].map((one) => one.getBoundingClientRect().width)"
    lone, *others = opened.evaluate(widths)
    assert len(others) > 2
    assert lone == others[0] < 600


def test_scripts_of_others_are_not_run(opened: Page, report: Path, tmp_path: Path) -> None:
    text = report.read_text(encoding="utf-8")
    (tmp_path / "foreign.html").write_text(text.replace("<h1>", "<script>document.title = 'x'</script><h1>"))
    opened.show(tmp_path / "foreign.html", 1200)
    assert "Content Security Policy" in str(problems(opened))
    assert opened.evaluate("document.title") != "x"


def test_comparison_has_no_errors_and_fits(opened: Page, tmp_path: Path) -> None:
    first, second = (recordedruns.make(tmp_path / name, workers=2, minutes=5) for name in ("a", "b"))
    (tmp_path / "both.html").write_text(page.of_two(first, second, BEGIN + 3600), encoding="utf-8")
    opened.show(tmp_path / "both.html", 400)
    assert problems(opened) == []
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    assert opened.evaluate("document.querySelectorAll('.chart').length") == 9


def test_many_runs_are_told_apart_by_their_legend(opened: Page, tmp_path: Path) -> None:
    runs = [recordedruns.make(tmp_path / f"r{number}", workers=1, host_count=1, minutes=5) for number in range(9)]
    (tmp_path / "many.html").write_text(page.of_several(runs, BEGIN + 3600), encoding="utf-8")
    for width in (400, 1200):
        opened.show(tmp_path / "many.html", width)
        assert opened.evaluate("document.documentElement.scrollWidth") <= width
    lit = "[...document.querySelectorAll('.chart')[0].querySelectorAll('.lit')].map((one) => one.dataset.line)"
    output = "document.querySelector('.chart output').textContent"
    item = "document.querySelectorAll('.chart li[data-line]')[3]"
    stroke = "getComputedStyle(document.querySelector('.line[data-line=\"%d\"]')).stroke"
    assert opened.evaluate(stroke % 0) != opened.evaluate(stroke % 8) != "none"
    opened.evaluate(f"{item}.scrollIntoView({{block: 'center'}})")
    x, y = opened.evaluate(f"(() => {{ const b = {item}.getBoundingClientRect(); return [b.x + 5, b.y + 5] }})()")
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    assert set(opened.evaluate(lit)) == {"3"}
    assert opened.evaluate(output) == "4: r3"
    faded = "getComputedStyle(document.querySelector('.line[data-line=\"%d\"]')).opacity"
    assert opened.evaluate(faded % 0) < opened.evaluate(faded % 3) == "1"
    opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert (opened.evaluate(lit), opened.evaluate(output)) == ([], "")
    assert problems(opened) == []


def test_long_job_with_64_tasks_is_a_small_page(opened: Page, tmp_path: Path) -> None:
    run = recordedruns.make(tmp_path / "long", workers=64, host_count=8, gpus=8, minutes=600, interval=60)
    path = tmp_path / "long.html"
    path.write_text(page.of_job(run, BEGIN + 40_000), encoding="utf-8")
    assert path.stat().st_size < 5_000_000
    opened.show(path, 1200)
    assert problems(opened) == []
    assert opened.evaluate("document.querySelectorAll('*').length") < 5000
