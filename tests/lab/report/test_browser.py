"""The page as a person meets it, in Chromium: drawn, sorted, filtered, chosen, renewed, by mouse and by keyboard."""

from __future__ import annotations

import copy
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rankprune.lab.report.collect import Collector
from rankprune.lab.report.live import Server
from rankprune.lab.report.page import write_page

Open = Callable[..., Any]
CHARTS = ("accuracy", "sparsity", "tradeoff", "flops", "density", "rank", "dead", "spectrum", "filters")


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:
    """Opens an address; at the end no page may have complained or asked for anything elsewhere."""
    complaints: list[str] = []
    contexts = []

    def opened(url: str, width: int = 1280, **settings: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **settings)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith(("file:", "data:", "http://127.0.0.1")) else None)
        page.goto(url)
        page.wait_for_selector("#chart-accuracy .main-svg", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def page_file(data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_page(data, path)
    return path.as_uri()


def drawn(page: Any, chart: str) -> int:
    """Marks of a chart that cover some of the screen."""
    script = """(id) => [...document.querySelectorAll(`#chart-${id} .plot :is(.js-line, .point, .points path)`)]
        .filter((e) => { const box = e.getBoundingClientRect(); return box.width + box.height > 1; }).length"""
    count: int = page.evaluate(script, chart)
    return count


def until(page: Any, condition: str) -> None:
    """Wait for it to be true; the page's own policy forbids the browser to wait by evaluating text."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never came true: {condition}")


def show_numbers(page: Any) -> None:
    """Those behind the first chart; the page fills the table a moment after the click."""
    page.click("#chart-accuracy summary")
    page.locator("#chart-accuracy tbody tr").first.wait_for()


def column(page: Any, number: int, table: str = "runs-table") -> list[str]:
    texts: list[str] = page.locator(f"#{table} tbody tr > :nth-child({number})").all_inner_texts()
    return texts


def test_charts_are_there_and_not_empty(open_page: Open, page_file: str) -> None:
    page = open_page(page_file)
    empty = [chart for chart in CHARTS if drawn(page, chart) == 0]
    assert empty in ([], ["dead"])
    if empty:
        assert "None: each of the" in page.inner_text("#chart-dead")
    for box in page.locator(".plot:visible").all():
        assert len(box.get_attribute("aria-label")) > 40
        assert box.get_attribute("role") == "img"
    # Drawn inside its frame, not over what follows.
    assert page.evaluate("""[...document.querySelectorAll('.plot')].every((p) => !p.clientHeight
        || p.querySelector('.main-svg').getBoundingClientRect().height <= p.clientHeight + 1)""")
    image = page.locator("#picture img")
    assert image.evaluate("(i) => i.naturalWidth") > 0
    assert "Mask of" in image.get_attribute("alt")


def test_the_numbers_behind_a_chart(open_page: Open, page_file: str, data: dict[str, Any]) -> None:
    page = open_page(page_file)
    show_numbers(page)
    rows = page.locator("#chart-accuracy tbody tr")
    assert rows.count() == sum(len(run["metrics"]) for run in data["runs"])
    shown = set(page.locator("#chart-accuracy tbody td:nth-child(3)").all_inner_texts())
    assert shown == {f"{100 * line['accuracy']:.2f} %" for run in data["runs"] for line in run["metrics"]}


def test_sorting_by_mouse_and_keyboard(open_page: Open, page_file: str, data: dict[str, Any]) -> None:
    page = open_page(page_file)
    bytes_of = {run["name"]: run["result"]["bytes_sparse"] for run in data["runs"]}
    file = page.locator("#runs-table th", has_text="File")
    assert file.get_attribute("aria-sort") == "none"
    file.locator("button").click()
    assert page.locator("#runs-table th", has_text="File").get_attribute("aria-sort") == "descending"
    assert column(page, 1) == sorted(bytes_of, key=lambda name: -bytes_of[name])
    page.keyboard.press("Enter")  # the focus has stayed on the header that was drawn anew
    assert page.locator("#runs-table th", has_text="File").get_attribute("aria-sort") == "ascending"
    assert column(page, 1) == sorted(bytes_of, key=lambda name: bytes_of[name])
    page.locator("#runs-table th button", has_text="Run").click()
    assert column(page, 1) == sorted(bytes_of)
    page.locator("#layers-table th button", has_text="Kept").click()
    kept = [int(text.replace(",", "")) for text in column(page, 3, "layers-table")]
    assert kept == sorted(kept, reverse=True)
    assert len(kept) == 9


def test_the_filter_rules_table_and_charts(open_page: Open, page_file: str) -> None:
    page = open_page(page_file)
    lines = "document.querySelectorAll('#chart-accuracy .scatterlayer .trace').length"
    before = page.evaluate(lines)
    page.fill("#filter", "magnitude")
    assert column(page, 1) == ["fashion-magnitude-95"]
    assert page.inner_text("#shown") == "1 of 3 runs shown."
    until(page, f"{lines} < {before}")
    page.fill("#filter", "FASHION 9 rpg")
    assert column(page, 1) == ["fashion-rpg-98"]
    page.fill("#filter", "nothing like it")
    assert column(page, 1) == []
    assert "No run matches the filter." in page.inner_text("#runs-table")
    page.fill("#filter", "")
    assert len(column(page, 1)) == 3
    until(page, f"{lines} === {before}")


def test_focus_and_layer_are_chosen(open_page: Open, page_file: str, data: dict[str, Any]) -> None:
    page = open_page(page_file)
    for run in data["runs"]:
        page.select_option("#pick", run["id"])
        assert page.inner_text("h1") == run["name"]
        assert f"{100 * run['result']['accuracy_last']:.2f}" in page.inner_text("#tiles")
        assert page.locator("#runs-table [aria-pressed=true]").inner_text() == run["name"]
        assert run["recipe"]["optimizer.lr"] in page.text_content("#recipe-facts")
    page.locator("#runs-table .link", has_text="fashion-rpg-98").click()
    rpg = next(run for run in data["runs"] if run["method"] == "rpg")
    seen = set()
    for layer in rpg["layers"]:
        page.select_option("#pick-layer", layer["name"])
        assert f"{layer['kept']:,} weights kept" in page.inner_text("#layer-note")
        assert f"δ-rank {layer['delta_rank']}, exact rank {layer['exact']}, of {layer['full']}" in page.inner_text("#chart-spectrum")
        assert drawn(page, "spectrum") > 0
        seen.add(page.get_attribute("#picture img", "src"))
    assert len(seen) == len(rpg["layers"])
    page.locator("#layers-table .link").first.click()
    assert page.input_value("#pick-layer") == rpg["layers"][0]["name"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_one_way_and_text_is_readable(open_page: Open, page_file: str, scheme: str) -> None:
    page = open_page(page_file, 360, color_scheme=scheme, has_touch=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    show_numbers(page)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for text in ("ink", "soft", "accent", "warn", "good"):
        for ground in ("page", "card", "raised", "tint"):
            pair = page.evaluate("([a, b]) => [colour(a), colour(b)]", [text, ground])
            assert contrast(*pair) >= 4.5, (scheme, text, ground)
    assert contrast(*page.evaluate("() => [colour('faint'), colour('card')]")) >= 3, scheme  # drawn, not read


def test_every_column_of_the_runs_fits_a_small_desktop(open_page: Open, data: dict[str, Any], tmp_path: Path) -> None:
    """Latencies in three engines, long names, several tasks and seeds, one run unfinished: no column is out of sight."""
    wide = copy.deepcopy(data)
    time = {"median": 0.0123456, "minimum": 0.0111111, "low": 0.0112345, "high": 0.0134567}
    for seed, run in enumerate(wide["runs"]):
        run["name"] = f"cifar10-long-vgg-half-{run['method']}+rank_floor-99.5"
        run["seed"] = seed
        run["latency"] = {"times": dict.fromkeys(("rankprune", "torch", "onnxruntime"), time)}
    wide["runs"][0].update(task="cifar10-long-vgg-half", result=None)
    write_page(wide, tmp_path / "wide.html")
    page = open_page((tmp_path / "wide.html").as_uri())
    assert {"Engine", "torch", "ONNX Runtime", "Task", "Seed", "State"} <= set(page.locator("#runs-table th button").all_inner_texts())
    assert page.evaluate("document.querySelector('#runs-table').scrollWidth <= document.querySelector('#runs-table').clientWidth")
    ends = page.locator("#runs-table tbody th .link").evaluate_all("(all) => all.map((e) => e.scrollWidth - e.clientWidth)")
    assert max(ends) <= 0  # and no name is cut


def test_ticks_are_written_like_every_other_percentage(open_page: Open, page_file: str) -> None:
    page = open_page(page_file)
    for chart, axis in (("accuracy", "y"), ("sparsity", "y"), ("tradeoff", "y"), ("flops", "x"), ("flops", "y"), ("density", "y"), ("rank", "y")):
        texts = page.locator(f"#chart-{chart} .{axis}tick text").all_text_contents()
        assert len(texts) >= 2, chart
        assert all(re.fullmatch(r"[\d.]+ %", text) for text in texts), (chart, texts)


def contrast(one: str, other: str) -> float:
    """Of two colours `rgb(r, g, b)`, after WCAG 2."""

    def luminance(colour: str) -> float:
        parts = [int(x) / 255 for x in re.findall(r"\d+", colour)[:3]]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_follow_the_system_and_the_button(open_page: Open, page_file: str) -> None:
    page = open_page(page_file, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    ticks = "getComputedStyle(document.querySelector('#chart-accuracy .xtick text')).fill"
    dark = page.evaluate(ground), page.evaluate(ticks)
    page.click("#theme")  # from auto to light
    until(page, f"{ticks} !== '{dark[1]}'")
    assert page.evaluate(ground) != dark[0]
    assert "light" in page.get_attribute("#theme", "aria-label")
    page.click("#theme")
    until(page, f"{ticks} === '{dark[1]}'")
    assert page.evaluate(ground) == dark[0]


def test_the_keyboard_and_a_screen_reader_reach_everything(open_page: Open, page_file: str) -> None:
    page = open_page(page_file)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left >= 0")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "pick"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page.evaluate("[...document.querySelectorAll('select, input')].every((e) => e.labels.length === 1)")
    assert page.evaluate("[...document.querySelectorAll('section')].every((e) => document.getElementById(e.getAttribute('aria-labelledby')))")
    assert page.evaluate("[...document.querySelectorAll('table')].every((t) => t.caption && t.caption.textContent)")
    said = "[...document.querySelectorAll('summary')].map((e) => document.getElementById(e.getAttribute('aria-describedby'))?.textContent)"
    numbers = page.evaluate(said)  # each says the same, so each says of what
    assert all(numbers)
    assert len(set(numbers)) == len(numbers)
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map((e) => e.id)).size === document.querySelectorAll('[id]').length")


def test_names_are_text(open_page: Open, going: Path, runs: Path, tmp_path: Path) -> None:
    evil = "<img src=x onerror=document.title='taken'><b>bold</b> %{x} &amp; $1"
    other = tmp_path / "other"
    shutil.copytree(next(runs.glob("*-rpg-*")), other)
    for folder in (going, other):
        recipe = (folder / "recipe.yaml").read_text()
        recipe = re.sub(r"^name: .*$", lambda _: f"name: \"{evil}\"", recipe, count=1, flags=re.MULTILINE)
        recipe = re.sub(r"^  name: rpg$", lambda _: f"  name: \"{evil}\"", recipe, count=1, flags=re.MULTILINE)
        (folder / "recipe.yaml").write_text(recipe)
    out = tmp_path / "evil.html"
    write_page(Collector([going, other]).collect(), out)
    page = open_page(out.as_uri())
    assert page.inner_text("h1") == evil
    show_numbers(page)
    assert page.locator("#chart-accuracy tbody th").first.inner_text() == f"{evil} (going)"  # the other has its name
    assert page.locator("b:text-is('bold')").count() == 0
    assert page.locator("img[src=x]").count() == 0
    assert page.title() != "taken"
    box = page.locator("#chart-accuracy .point, #chart-accuracy .points path").last.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    hover = page.locator("#chart-accuracy .hovertext")
    hover.wait_for()
    assert "<img src=x onerror=document.title='taken'>" in hover.text_content()
    assert "%{x} &amp; $1" in hover.text_content()


def test_runs_of_one_name_are_told_apart(open_page: Open, runs: Path, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "fashion-rpg-98-two", "three")]
    for folder, seed in zip(folders, (1, 0, 0)):
        shutil.copytree(next(runs.glob("*-rpg-*")), folder)
        recipe = (folder / "recipe.yaml").read_text()
        (folder / "recipe.yaml").write_text(recipe.replace("seed: 0", f"seed: {seed}", 1))
    write_page(Collector(folders).collect(), tmp_path / "same.html")
    page = open_page((tmp_path / "same.html").as_uri())
    labels = ["fashion-rpg-98, seed 1", "fashion-rpg-98-two", "fashion-rpg-98 (three)"]
    assert sorted(page.locator("#pick option").all_inner_texts()) == sorted(labels)
    assert sorted(column(page, 1)) == sorted(["fashion-rpg-98", *labels[1:]])  # the seed has a column
    show_numbers(page)
    assert set(page.locator("#chart-accuracy tbody th").all_inner_texts()) == set(labels)


def test_one_run_of_one_epoch(open_page: Open, going: Path, runs: Path, tmp_path: Path) -> None:
    """One point has no spread to scale an axis by: no tick may stand where no accuracy can be, or over another."""
    done = next(runs.glob("*-rpg-*"))
    for name in ("result.json", "model.sparse.safetensors"):
        shutil.copy(done / name, going)
    recipe = (going / "recipe.yaml").read_text()
    (going / "recipe.yaml").write_text(recipe.replace("epochs: 2", "epochs: 1", 1))
    write_page(Collector([going]).collect(), tmp_path / "one.html")
    page = open_page((tmp_path / "one.html").as_uri())
    assert page.inner_text("#subtitle").endswith("1 epoch")
    for chart in ("accuracy", "tradeoff", "flops"):
        texts = page.locator(f"#chart-{chart} .ytick text").all_text_contents()
        assert texts, chart
        assert all(0 <= float(text.rstrip(" %").replace("−", "-")) <= 100 for text in texts), (chart, texts)
    ticks = page.locator("#chart-flops .xtick text").all()
    boxes = sorted((box["x"], box["x"] + box["width"]) for tick in ticks if (box := tick.bounding_box()))
    assert len(boxes) >= 2
    assert all(end < start for (_, end), (start, _) in pairwise(boxes))


def test_watch_renews_itself(open_page: Open, going: Path, runs: Path) -> None:
    done = next(runs.glob("*-rpg-*"))
    with Server([going], every=0.1) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            page = open_page(server.url)
            until(page, "document.querySelector('#live').textContent.startsWith('Live ·')")
            assert re.search(r"Epoch\s+1 of 2", page.inner_text("#tiles"))
            page.select_option("#pick-layer", "features.3")
            points = "document.querySelectorAll('#chart-sparsity .point').length"
            before = page.evaluate(points)
            with open(going / "metrics.jsonl", "a") as file:
                file.write((done / "metrics.jsonl").read_text().splitlines()[1] + "\n")
            until(page, "/Epoch\\s+2 of 2/.test(document.querySelector('#tiles').innerText)")
            assert page.evaluate(points) > before
            assert page.input_value("#pick-layer") == "features.3"
            shutil.copy(done / "model.sparse.safetensors", going)
            shutil.copy(done / "result.json", going)
            until(page, "document.querySelector('#live').textContent.startsWith('Finished ·')")
            assert "Model file" in page.inner_text("#tiles")
        finally:
            server.shutdown()
            thread.join()


def test_runs_are_ticked_to_stand_side_by_side(open_page: Open, page_file: str) -> None:
    page = open_page(page_file)
    assert not page.is_visible("#side")
    boxes = page.locator("#runs-table input[type=checkbox]")
    count = min(boxes.count(), 10)
    assert count >= 2
    for i in range(count):
        page.locator("#runs-table input[type=checkbox]").nth(i).check()
    assert page.is_visible("#side")
    assert page.locator("#side-table thead th").count() == 1 + count
    assert "Accuracy, last epoch" in page.inner_text("#side-table")


def test_the_recipe_shows_what_differs_from_the_defaults(open_page: Open, page_file: str) -> None:
    page = open_page(page_file)
    assert "default " in page.inner_text("#recipe-stated")
    assert page.locator("#recipe-stated dt").count() < page.locator("#recipe-facts dt").count()


def test_sharing_saves_one_file_that_opens(open_page: Open, page_file: str, tmp_path: Path) -> None:
    page = open_page(page_file)
    with page.expect_download() as download:
        page.click("#share")
    path = tmp_path / "shared.html"
    download.value.save_as(path)
    again = open_page(path.as_uri())
    assert again.inner_text("#title") == page.inner_text("#title")
    assert drawn(again, "accuracy") > 0
