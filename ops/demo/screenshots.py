"""Takes the pictures of the manual: `make screenshots`.

It runs `weir demo drift` and opens the page of the worker that adapts in Chromium. The picture is taken after a plan
change, when the timelines show it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from schemas.errors import UsageError

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"

WIDTH, HEIGHT = 1280, 860
CHANGED_MS = 120_000
AFTER_MS = 6_000
"""The picture is taken so long after the change, when the timelines have its mark."""

COLOURS = 96
"""The pictures are reduced to so many colours: few, and they compress well."""


def main() -> None:
    """Run the demonstration and take the pictures.

    Raises:
        UsageError: there is no Chromium.
    """
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise UsageError("there is no Chromium: `make browser` installs it")
    from playwright.sync_api import sync_playwright

    IMAGES.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "services.cli", "demo", "drift"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        address = _address(demo)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(address)
            page.locator("#decisions li[data-made=true]").first.wait_for(timeout=CHANGED_MS)
            page.wait_for_timeout(AFTER_MS)
            _keep(page, "live-page")
            page.set_viewport_size({"width": 390, "height": HEIGHT})
            page.emulate_media(color_scheme="dark")
            page.wait_for_timeout(1_000)
            _keep(page, "live-page-phone")
            browser.close()
        for line in demo.stdout or ():
            print(line, end="")


def _address(demo: subprocess.Popen[str]) -> str:
    for line in demo.stdout or ():
        print(line, end="")
        if found := re.match(r"adapts: (http://\S+)", line):
            return found[1]
    raise UsageError("the demonstration has no page")


def _keep(page: Any, name: str) -> None:
    from PIL import Image

    path = IMAGES / f"{name}.png"
    page.screenshot(path=str(path))
    with Image.open(path) as image:
        image.convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"screenshots: {error}")
